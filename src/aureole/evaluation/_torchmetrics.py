"""The metrics of this package as torchmetrics classes, which accumulate over batches and processes.

The only module that imports torchmetrics.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from aureole.errors import InvalidInputError, MissingPackageError
from aureole.evaluation._rank_correlation import spearman
from aureole.evaluation._rejection import area_under_rejection, augrc, aurc, r_auroc
from aureole.evaluation._retrieval_metrics import recall_at_1

try:
    from torchmetrics import Metric
    from torchmetrics.utilities import dim_zero_cat
except ImportError as error:
    raise MissingPackageError(
        "metrics need torchmetrics: pip install 'aureole[metrics]'."
    ) from error

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class _PairedMetric(Metric):
    """Stores two streams of values, because ranks need all items at once, and scores them in ``compute``.

    In distributed use every process must call ``update``; one without items passes an empty batch of the same dtype and
    width.
    """

    is_differentiable = False
    full_state_update = False
    score: ClassVar[Callable[[Tensor, Tensor], float]]
    first: list[Tensor]
    second: list[Tensor]

    def __init__(
        self,
        *,
        compute_on_cpu: bool = False,
        dist_sync_on_step: bool = False,
        process_group: "ProcessGroup | None" = None,
        sync_on_compute: bool = True,
    ) -> None:
        super().__init__(
            compute_on_cpu=compute_on_cpu,
            dist_sync_on_step=dist_sync_on_step,
            process_group=process_group,
            sync_on_compute=sync_on_compute,
        )
        self.add_state("first", default=[], dist_reduce_fx="cat")
        self.add_state("second", default=[], dist_reduce_fx="cat")

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
        """The score of all items so far, in float64."""
        if len(self.first) == 0:
            raise InvalidInputError("there are no items to score: call update first.")
        first, second = dim_zero_cat(self.first), dim_zero_cat(self.second)
        value = type(self).score(first, second)
        return torch.tensor(value, dtype=torch.float64, device=self.device)


class RankCorrelation(_PairedMetric):
    """Spearman's rank correlation of two streams, such as 1 / kappa and the entropy of annotators.

    See :func:`aureole.evaluation.spearman`.

    Examples
    --------
    >>> metric = RankCorrelation()
    >>> metric.update(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    >>> metric.update(torch.tensor([3.0]), torch.tensor([9.0]))
    >>> metric.compute().item()
    1.0
    """

    higher_is_better = True
    score = staticmethod(spearman)


class RecallAt1(_PairedMetric):
    """Recall@1 of embeddings with labels, among all items of all batches. See :func:`aureole.evaluation.recall_at_1`.

    Examples
    --------
    >>> metric = RecallAt1()
    >>> metric.update(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([7, 8]))
    >>> metric.update(torch.tensor([[1.0, 0.1], [0.5, 1.0]]), torch.tensor([7, 7]))
    >>> metric.compute().item()
    0.5
    """

    higher_is_better = True
    score = staticmethod(recall_at_1)


class RejectionArea(_PairedMetric):
    """The area under the rejection curve of uncertainty and correctness.

    See :func:`aureole.evaluation.area_under_rejection`.

    Examples
    --------
    >>> metric = RejectionArea()
    >>> metric.update(torch.tensor([0.4, 0.1]), torch.tensor([False, True]))
    >>> metric.update(torch.tensor([0.2, 0.3]), torch.tensor([True, True]))
    >>> metric.compute().item()
    0.9375
    """

    higher_is_better = True
    score = staticmethod(area_under_rejection)


class RAUROC(_PairedMetric):
    """The AUROC of certainty for correctness. See :func:`aureole.evaluation.r_auroc`.

    Examples
    --------
    >>> metric = RAUROC()
    >>> metric.update(torch.tensor([0.4, 0.1]), torch.tensor([False, True]))
    >>> metric.update(torch.tensor([0.2, 0.2]), torch.tensor([True, False]))
    >>> metric.compute().item()
    0.875
    """

    higher_is_better = True
    score = staticmethod(r_auroc)


class AURC(_PairedMetric):
    """The area under the risk-coverage curve of uncertainty and correctness. See :func:`aureole.evaluation.aurc`.

    Examples
    --------
    >>> metric = AURC()
    >>> metric.update(torch.tensor([0.4, 0.1]), torch.tensor([False, True]))
    >>> metric.update(torch.tensor([0.2, 0.3]), torch.tensor([True, True]))
    >>> metric.compute().item()
    0.0625
    """

    higher_is_better = False
    score = staticmethod(aurc)


class AUGRC(_PairedMetric):
    """The area under the generalised risk-coverage curve. See :func:`aureole.evaluation.augrc`.

    Examples
    --------
    >>> metric = AUGRC()
    >>> metric.update(torch.tensor([0.4, 0.1]), torch.tensor([False, True]))
    >>> metric.update(torch.tensor([0.2, 0.3]), torch.tensor([True, True]))
    >>> metric.compute().item()
    0.03125
    """

    higher_is_better = False
    score = staticmethod(augrc)
