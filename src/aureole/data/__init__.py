"""Data: positive pairs, groups and votes, and readers of tables, arrays and image files."""

from aureole.data._pairs import Groups, PairBatch, Triplets, label_rates, poisson_pairs
from aureole.data._tables import read_column, read_groups, read_pairs, read_vectors, write_columns
from aureole.data._vote_files import read_vote_counts, read_votes
from aureole.data._votes import Votes

__all__ = [
    "Groups",
    "PairBatch",
    "Triplets",
    "Votes",
    "label_rates",
    "poisson_pairs",
    "read_column",
    "read_groups",
    "read_pairs",
    "read_vectors",
    "read_vote_counts",
    "read_votes",
    "write_columns",
]
