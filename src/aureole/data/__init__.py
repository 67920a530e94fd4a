"""Data: positive pairs, groups and votes, and readers of tables, arrays and image files."""

from aureole.data import (
    _addresses as _addresses,
    _array_files as _array_files,
    _columns as _columns,
    _image_files as _image_files,
    _pairs as _pairs,
    _table_files as _table_files,
    _tables as _tables,
    _votes as _votes,
)
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
