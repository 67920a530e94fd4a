"""Votes of several annotators: counts per item and class, the rates of pairs that they imply, and readers of files."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole.data._array_files import ARRAYS, map_array
from aureole.data._pairs import label_rates, missing_values
from aureole.data._table_files import listed, require_columns, table_parts
from aureole.data._tables import read_column, rows_by_id, unique_ids
from aureole.errors import InvalidInputError, MissingInputError

Values = Any  # a list, an array, a tensor, or a column of pandas, polars or pyarrow
_LARGEST = 2**28  # entries of the table of counts: 2 GiB
_MOST_VOTES = 2**31  # of one item for one class: sums and squares stay exact
_MOST_ROWS = 10**8  # without ids: a larger item is an id, such as a hash or a time


@dataclass(frozen=True, eq=False)
class Votes:
    r"""Counts of the annotators who gave each item each label.

    Items may have different numbers of votes. An item without any is allowed: it is in no pair. Build votes with
    ``Votes.of`` from counts, or with ``Votes.from_table`` from a long table (item, annotator, label).

    Attributes
    ----------
    counts
        Number of votes [n, classes].
    items
        Ids of the items [n].
    classes
        Names of the classes [classes].

    Examples
    --------
    >>> votes = Votes.from_table(["a", "a", "b", "b", "c"], ["cat", "dog", "cat", "cat", "dog"])
    >>> votes
    Votes(5 votes on 3 items, 2 classes)
    >>> votes.counts.tolist()
    [[1, 1], [2, 0], [0, 1]]
    >>> votes.agreement
    tensor([0., 1., nan], dtype=torch.float64)
    """

    counts: Int[Tensor, "n classes"]
    items: np.ndarray
    classes: np.ndarray

    def __repr__(self) -> str:
        n, classes = self.counts.shape
        return f"Votes({int(self.totals.sum())} votes on {n} items, {classes} classes)"

    def __len__(self) -> int:
        return len(self.counts)

    @classmethod
    def of(
        cls, counts: Any, *, items: Values | None = None, classes: Values | None = None
    ) -> "Votes":
        """Votes from counts [n, classes].

        Parameters
        ----------
        counts
            Whole numbers of votes, as a tensor, an array or a list of lists.
        items
            Ids of the items (default: row numbers from 0).
        classes
            Names of the classes (default: column numbers from 0).
        """
        checked = _whole_counts(counts)
        names = []
        for size, what, values in zip(
            checked.shape, ("items", "classes"), (items, classes), strict=True
        ):
            names.append(np.arange(size) if values is None else _unique(values, what))
            if len(names[-1]) != size:
                raise InvalidInputError(
                    f"counts of shape {tuple(checked.shape)} need {size} {what}, but got {len(names[-1])}."
                )
        if not bool(checked.any()):
            raise InvalidInputError("all counts are 0: there are no votes to learn from.")
        return cls(checked, *names)

    @classmethod
    def from_table(
        cls,
        items: Values,
        labels: Values,
        annotators: Values | None = None,
        *,
        order: Values | None = None,
        classes: Values | None = None,
    ) -> "Votes":
        """Votes from the columns of a long table with one vote per row.

        Parameters
        ----------
        items
            The item of each vote. Columns may be lists, arrays, tensors, or columns of pandas, polars or pyarrow.
        labels
            The label of each vote.
        annotators
            The annotator of each vote (default: unknown). They are only used to check that nobody votes twice on
            an item: two votes of one annotator are not independent.
        order
            Ids of the items, in the order of your vectors (default: the items with a vote, sorted). An item without a
            vote gets counts of 0; a vote on an item that is not listed raises an error.
        classes
            Names of the classes in order (default: the labels that occur, sorted).
        """
        columns = {"items": items, "labels": labels, "annotators": annotators}
        table = {name: _column(v, name) for name, v in columns.items() if v is not None}
        rows = len(table["items"])
        for name, values in table.items():
            if len(values) != rows:
                raise InvalidInputError(
                    f"a table of votes has one row per vote, but there are {rows} items and {len(values)} {name}."
                )
        if not rows:
            raise InvalidInputError("the table of votes is empty.")
        item_ids, item = _codes(table["items"], order, "items")
        class_ids, label = _codes(table["labels"], classes, "labels")
        if annotators is not None:
            _refuse_repeated(item, table)
        size = len(item_ids) * len(class_ids)
        if size > _LARGEST:
            raise InvalidInputError(
                f"{len(item_ids):,} items with {len(class_ids):,} classes need a table of counts with {size:,} "
                f"entries; the limit is {_LARGEST:,}. Merge rare labels, or pass fewer items."
            )
        cells = np.bincount(item * len(class_ids) + label, minlength=size)
        counts = torch.from_numpy(cells.reshape(len(item_ids), len(class_ids)))
        return cls(counts, item_ids, class_ids)

    @cached_property
    def totals(self) -> Int[Tensor, " n"]:
        """The number of votes on each item."""
        return self.counts.sum(1)

    @cached_property
    def probabilities(self) -> Float[Tensor, "n classes"]:
        """The share of each class among the votes on an item; 0 for an item without votes."""
        return self.counts.double() / self.totals.clamp(min=1)[:, None]

    @cached_property
    def prior(self) -> Float[Tensor, " classes"]:
        """The mean of the shares over the items with votes."""
        return self.probabilities.sum(0) / int((self.totals > 0).sum())

    @cached_property
    def agreement(self) -> Float[Tensor, " n"]:
        r"""The share of an item's pairs of annotators that agree, :math:`\sum_k n_k (n_k - 1) / (n (n - 1))`.

        NaN for an item with fewer than two votes, where no pair was observed.
        """
        total, counts = self.totals.double(), self.counts.double()
        pairs = total * (total - 1)
        equal = (counts * (counts - 1)).sum(1)
        return torch.where(pairs > 0, equal / pairs.clamp(min=1), torch.nan)

    @property
    def pair_agreement(self) -> float:
        """The share of all pairs of annotators of one item that agree; NaN if no item has two votes."""
        total, counts = self.totals.double(), self.counts.double()
        pairs = float((total * (total - 1)).sum())
        return float((counts * (counts - 1)).sum()) / pairs if pairs else math.nan

    def rates(self, rows: Int[Tensor, " m"] | None = None) -> Float[Tensor, "m m"]:
        r"""Return the rate of equal votes on two items, relative to chance.

        For two different items, ``label_rates`` of the shares of the votes. On the diagonal, the rate of two different
        annotators of the item, :math:`\sum_k n_k (n_k - 1) / (n (n - 1) P(k))`: 0 for a single vote.

        Parameters
        ----------
        rows
            Row numbers of the items (default: all items).

        Examples
        --------
        >>> Votes.of([[2, 0], [1, 1]]).rates()
        tensor([[1.3333, 0.6667],
                [0.6667, 0.0000]], dtype=torch.float64)
        """
        chosen = slice(None) if rows is None else rows
        rates = label_rates(self.probabilities[chosen], self.prior)
        total, counts = self.totals[chosen].double(), self.counts[chosen].double()
        seen = self.prior > 0
        equal = (counts * (counts - 1))[:, seen] / self.prior[seen]
        own = equal.sum(1) / (total * (total - 1)).clamp(min=1)
        return rates.diagonal_scatter(own)

    def take(self, rows: Int[Tensor, " m"]) -> "Votes":
        """The votes on some of the items, with the same classes."""
        chosen = torch.as_tensor(rows)
        return Votes(self.counts[chosen], self.items[chosen.numpy()], self.classes)


def read_votes(
    path: Path | str,
    columns: tuple[str, str, str | None] = ("item", "label", "annotator"),
    *,
    ids: tuple[Path | str, str] | None = None,
    n_rows: int | None = None,
) -> Votes:
    r"""Return the votes of a long table with one vote per row, in the order of your vectors.

    Parameters
    ----------
    path
        A table as in ``read_vectors``, or a CSV or TSV file.
    columns
        Names of the columns of items, labels and annotators. Without a column of annotators (None), every row counts as
        an independent vote.
    ids
        (Table, column) with the id of each vector; the items are such ids. Ids must be unique. By default, items are
        row numbers from 0.
    n_rows
        Number of vectors (default: up to the last item with a vote). Not used with ``ids``.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "votes.csv"
    >>> _ = path.write_text("item,annotator,label\n0,ann,cat\n0,bob,dog\n2,ann,dog\n")
    >>> read_votes(path).counts.tolist()
    [[1, 1], [0, 0], [0, 1]]
    """
    known = None if ids is None else unique_ids(*ids)
    rows = rows_by_id(path, columns[0], known)
    last = int(rows.argmax())
    if known is None and rows[last] >= (n_rows or _MOST_ROWS):
        raise InvalidInputError(
            f"row {last} of {path} (counted from 0) is a vote on item {rows[last]}, but there are "
            f"{n_rows or _MOST_ROWS} vectors at most. For ids, pass ids=(table, column), or --id-column in commands."
        )
    order: Any = np.arange(n_rows or int(rows[last]) + 1) if known is None else np.asarray(known)
    labels, people = (None if c is None else read_column(path, c) for c in columns[1:])
    with _naming(path):
        return Votes.from_table(order[rows], labels, people, order=order)


def read_vote_counts(path: Path | str, columns: Sequence[str] = ()) -> Votes:
    r"""Return the votes of a table with one column of counts per class and one row per item, or of an array of counts.

    Names of columns with ``*`` or ``?`` are patterns and stand for all columns that match.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "counts.csv"
    >>> _ = path.write_text("id,votes_cat,votes_dog\na,2,1\nb,0,3\n")
    >>> read_vote_counts(path, ["votes_*"]).counts.tolist()
    [[2, 1], [0, 3]]
    """
    if Path(path).suffix in ARRAYS:
        counts, names = map_array(Path(path)), None
    else:
        existing = require_columns(table_parts(path)[0], []).names
        matches = {
            name: [n for n in existing if n == name or fnmatchcase(n, name)] for name in columns
        }
        names = list(dict.fromkeys(name for found in matches.values() for name in found))
        unmatched = [name for name, found in matches.items() if not found]
        if unmatched or not names:
            problem = f"no column {unmatched[0]!r}" if unmatched else "columns of votes to be named"
            raise MissingInputError(f"{path} has {problem}; {listed(existing)}.")
        counts = np.stack([read_column(path, name, numbers=True) for name in names], 1)
    with _naming(path):
        return Votes.of(counts, classes=names)


@contextmanager
def _naming(path: Path | str) -> Iterator[None]:
    """Name the file in errors about its votes."""
    try:
        yield
    except InvalidInputError as error:
        raise InvalidInputError(f"in {path}, {error}") from error


def _whole_counts(counts: Any) -> Int[Tensor, "n classes"]:
    """The counts as int64; raise unless they are a table of whole numbers of votes."""
    given = counts.detach().cpu().numpy() if isinstance(counts, Tensor) else counts
    try:
        array = np.asarray(given)
    except ValueError as error:  # rows of different lengths
        raise InvalidInputError(f"counts must be a table [n, classes]: {error}.") from error
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "iuf":
        raise InvalidInputError(
            f"counts must be numbers of votes [n, classes], but are {array.dtype} of shape {array.shape}."
        )
    with np.errstate(invalid="ignore"):
        bad = ~((array >= 0) & (array < _MOST_VOTES) & (array == np.floor(array)))
    if bad.any():
        row, column = np.argwhere(bad)[0].tolist()
        raise InvalidInputError(
            f"counts[{row}, {column}] is {array[row, column]}, but counts are whole numbers of votes from 0 on. "
            "For shares of votes, multiply by the number of votes."
        )
    return torch.from_numpy(array.astype(np.int64))


def _column(values: Any, name: str) -> np.ndarray:
    """A column as an array [n] without missing values."""
    if isinstance(values, str | bytes):
        raise InvalidInputError(f"{name} must be a column with one value per row, not one text.")
    given = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    try:
        array = np.asarray(given)
        if array.dtype.kind in "US" and array.ndim == 1 and not isinstance(given, np.ndarray):
            # a list of texts and NaN would become an array of texts, with "nan" among them
            array = np.fromiter(given, object, len(given))
        if array.ndim != 1:
            raise ValueError(f"its shape is {array.shape}")
        # of objects only the distinct ones are looked at: there are few, and each takes a call
        known = array.dtype.kind == "O" and not missing_values(list(set(array.tolist()))).any()
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"{name} must be a column with one value per row: {error}."
        ) from error
    missing = np.zeros(len(array), bool) if known else missing_values(array)
    if missing.any():
        advice = {
            "annotators": "Drop the row, or leave out the annotators to count every row as an independent vote.",
            "labels": "Drop the row: an annotator who abstains casts no vote.",
        }.get(name, "Drop the row.")
        row = int(missing.argmax())
        raise InvalidInputError(f"{name}[{row}] is missing ({array[row]}). {advice}")
    return array


def _unique(values: Any, name: str) -> np.ndarray:
    """A column whose values are all different."""
    array, seen = _column(values, name), set()
    for value in array.tolist():
        if value in seen:
            raise InvalidInputError(f"{name} must be unique, but {value!r} is listed twice.")
        seen.add(value)
    return array


def _codes(
    values: np.ndarray, known: Values | None, name: str
) -> tuple[np.ndarray, Int[np.ndarray, " n"]]:
    """(The known or else the sorted distinct values, the place of each value among them)."""
    if known is None and values.dtype.kind in "biuf":
        distinct, codes = np.unique(values, return_inverse=True)
        return distinct, codes.astype(np.int64)
    entries, where = values.tolist(), "order" if name == "items" else "classes"
    try:
        ordered = [] if known is not None else sorted(set(entries))
    except TypeError as error:
        raise InvalidInputError(
            f"{name} must be all numbers or all texts: {error}. Convert them with str()."
        ) from error
    ids = np.fromiter(ordered, object, len(ordered)) if known is None else _unique(known, where)
    place = {value: number for number, value in enumerate(ids.tolist())}
    codes = np.fromiter(map(place.get, entries, repeat(-1)), np.int64, len(entries))
    if (codes < 0).any():
        row = int((codes < 0).argmax())
        raise InvalidInputError(f"{name}[{row}] is {entries[row]!r}, which is not in {where}.")
    return ids, codes


def _refuse_repeated(item: Int[np.ndarray, " n"], table: dict[str, np.ndarray]) -> None:
    """Raise if an annotator votes twice on an item."""
    people, annotator = _codes(table["annotators"], None, "annotators")
    cell = item * len(people) + annotator
    order = np.argsort(cell, kind="stable")
    again = np.flatnonzero(np.diff(cell[order]) == 0)
    if len(again):
        first, second = order[again[0]], order[again[0] + 1]
        who, what = table["annotators"].tolist()[second], table["items"].tolist()[second]
        raise InvalidInputError(
            f"annotator {who!r} votes twice on item {what!r} (rows {first} and {second}, counted from 0; repeated "
            f"votes: {len(again)}). Keep one of them, or leave out the annotators if the votes are "
            "independent."
        )
