"""The area under the generalised risk-coverage curve."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from aureole.evaluation._rejection import check_outcomes, kept_correct


def augrc(uncertainty: Float[Tensor, " n"], correct: Bool[Tensor, "..."]) -> float:
    r"""The area under the generalised risk-coverage curve of Traub et al. (2024); lower is better, at most 1/2.

    The generalised risk :math:`E_k / n` is the joint probability that an item is kept and wrong. Its area over the
    coverage k/n, from (0, 0) and straight between items, is

    .. math:: \frac1n \sum_{k=1}^n \frac{E_{k-1} + E_k}{2n} = (1 - a)\, r\, (1 - r) + \tfrac12 (1 - r)^2

    with r the share of correct items and a their AUROC, :func:`r_auroc`. The mean of :math:`E_k / n` over k, without
    the curve's start, is larger by :math:`(1 - r) / 2n`.

    Examples
    --------
    >>> augrc(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([True, True, True, False]))
    0.03125
    """
    check_outcomes(uncertainty, correct)
    n = len(correct)
    k = torch.arange(1, n + 1, dtype=torch.float64, device=uncertainty.device)
    wrong = kept_correct(uncertainty, ~correct, k)
    return ((wrong.sum() - wrong[-1] / 2) / n**2).item()
