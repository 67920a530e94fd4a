"""Data: batches of pairs, and processes and drawn shapes whose truth is known."""

from aureole.data.drawn import DrawnShapes, drawn_shapes
from aureole.data.pairs import PairBatch, Triplets

__all__ = ["DrawnShapes", "PairBatch", "Triplets", "drawn_shapes"]
