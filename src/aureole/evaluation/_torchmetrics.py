"""The metrics of this package for torchmetrics, accumulated over batches and processes.

The only module that imports torchmetrics.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aureole.errors import InvalidInputError, MissingPackageError
from aureole.evaluation._rejection import augrc, aurc

try:
    from torchmetrics import Metric
    from torchmetrics.utilities import dim_zero_cat
except ImportError as error:
    raise MissingPackageError("metrics need torchmetrics: pip install 'aureole[train]'.") from error


class StreamingMetric(Metric):
    """A metric of two streams of values, which keeps both, because ranks need all items at once.

    In distributed use every process must call ``update``; one without items passes an empty batch of the same dtype and
    width.

    Parameters
    ----------
    score
        ``spearman``, ``recall_at_1``, ``r_auroc``, ``aurc``, ``augrc``, or any function of two tensors.
    options
        The keyword options of ``torchmetrics.Metric``, such as ``sync_on_compute``.

    Examples
    --------
    >>> from aureole.evaluation import recall_at_1
    >>> metric = StreamingMetric(recall_at_1)
    >>> metric.update(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([7, 8]))
    >>> metric.update(torch.tensor([[1.0, 0.1], [0.5, 1.0]]), torch.tensor([7, 7]))
    >>> metric.compute().item()
    0.5
    """

    is_differentiable = False
    full_state_update = False
    first: list[Tensor]
    second: list[Tensor]

    def __init__(self, score: Callable[[Tensor, Tensor], float], **options: Any) -> None:
        super().__init__(**options)
        self.score = score
        self.add_state("first", default=[], dist_reduce_fx="cat")
        self.add_state("second", default=[], dist_reduce_fx="cat")

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        """Return False for areas under a risk curve."""
        return self.score not in (aurc, augrc)

    def update(self, first: Tensor, second: Tensor) -> None:
        """Add a batch of both streams."""
        if first.shape[:1] != second.shape[:1]:  # two wrong batches could add up to a right whole
            raise InvalidInputError(
                f"both arguments must have the same length, but have shapes {tuple(first.shape)} and "
                f"{tuple(second.shape)}."
            )
        self.first.append(first.detach())
        self.second.append(second.detach())

    def compute(self) -> Tensor:
        """Return the score of all items so far, in float64."""
        if len(self.first) == 0:
            raise InvalidInputError("there are no items to score: call update first.")
        value = self.score(dim_zero_cat(self.first), dim_zero_cat(self.second))
        return torch.tensor(value, dtype=torch.float64, device=self.device)
