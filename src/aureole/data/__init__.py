"""Data: batches of pairs, and processes whose posteriors are known."""

from aureole.data.pairs import PairBatch, Triplets

__all__ = ["PairBatch", "Triplets"]
