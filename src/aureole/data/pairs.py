"""Batches for contrastive learning: inputs with the positive pairs among them, or anchors, partners and negatives."""

from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

__all__ = ["PairBatch", "Triplets"]


@dataclass(frozen=True)
class PairBatch:
    """N inputs of the data's marginal and P positive pairs (anchor, partner) among them, as indices [P, 2].

    ``expected_pairs`` is the mean of P over batches: a sum over pairs divided by it is unbiased, where dividing by P
    itself would not be. A loss takes it as ``loss.among(posterior, pairs)``.
    """

    inputs: Tensor
    pairs: Int[Tensor, "p 2"]
    expected_pairs: float


@dataclass(frozen=True)
class Triplets:
    """Anchors [B, ...], their partners [B, ...] and fresh negatives [M, ...] or [B, M, ...]; None for in-batch ones."""

    anchor: Tensor
    positive: Tensor
    negative: Tensor | None = None
