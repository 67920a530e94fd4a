"""Data: positive pairs, groups and votes, and readers of tables, arrays and image files."""

from aureole.data._pairs import PairBatch, Triplets, label_rates, poisson_pairs
from aureole.data._tables import read_column, read_groups, read_vectors, write_columns
from aureole.data._votes import Votes, read_votes

__all__ = [
    "PairBatch",
    "Triplets",
    "Votes",
    "label_rates",
    "poisson_pairs",
    "read_column",
    "read_groups",
    "read_vectors",
    "read_votes",
    "write_columns",
]
