"""Votes in files: a long table (item, annotator, label), columns of counts, or an array of counts."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from aureole.data import _arrow_columns as arrow, _table_files as files
from aureole.data._array_files import ARRAYS, map_array
from aureole.data._tables import rows_by_id, table_name, unique_ids, whole_column
from aureole.data._votes import Votes
from aureole.errors import InvalidInputError, MissingInputError

_MOST_ROWS = 10**8  # without ids: a larger item is an id, such as a hash or a time
_ADVICE = {"item": "Drop the row.", "label": "Drop the row: an annotator who abstains has no vote."}


def read_votes(
    path: Any,
    columns: tuple[str, str, str | None] = ("item", "label", "annotator"),
    *,
    ids: tuple[Any, str] | None = None,
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
    item, label, annotator = columns
    _present_column(path, item, "item")
    known = None if ids is None else unique_ids(*ids)
    rows = rows_by_id(path, item, known)
    order: Any = _row_order(path, rows, n_rows) if known is None else np.asarray(known)
    labels = _present_column(path, label, "label")
    people = None if annotator is None else _present_column(path, annotator, "annotator")
    with _naming(path):
        return Votes.from_table(order[rows], labels, people, order=order)


def _row_order(path: Any, rows: np.ndarray, n_rows: int | None) -> np.ndarray:
    """Return the row numbers of all vectors; raise if an item cannot be one of them."""
    last = int(rows.argmax())
    if rows[last] < (_MOST_ROWS if n_rows is None else n_rows):
        return np.arange(int(rows[last]) + 1 if n_rows is None else n_rows)
    limit = (
        "which is too large to be a row number. If items are ids, pass ids=(table, column), or --id-column in "
        "commands; if they are row numbers, pass n_rows."
        if n_rows is None
        else f"but there are {n_rows} vectors."
    )
    raise InvalidInputError(
        f"row {last} of {table_name(path)} (counted from 0) is a vote on item {rows[last]}, {limit}"
    )


def read_vote_counts(path: Any, columns: Sequence[str] = ()) -> Votes:
    r"""Return the votes of a table with one column of counts per class and one row per item, or of an array of counts.

    Parameters
    ----------
    path
        A table as in ``read_vectors``, a CSV or TSV file, or an ``.npy`` or ``.safetensors`` file with an array
        [n, classes], for which ``columns`` must be empty.
    columns
        Names of the columns. Names with ``*`` or ``?`` are patterns and stand for all columns that match.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "counts.csv"
    >>> _ = path.write_text("id,votes_cat,votes_dog\na,2,1\nb,0,3\n")
    >>> read_vote_counts(path, ["votes_*"]).counts.tolist()
    [[2, 1], [0, 3]]
    """
    if isinstance(path, str | Path) and Path(path).suffix in ARRAYS:
        counts, names = map_array(Path(path)), None
    else:
        names = _matching(path, columns)
        counts = np.stack([_numbers(path, name) for name in names], 1)
    with _naming(path):
        return Votes.of(counts, classes=names)


def _numbers(path: Any, name: str) -> np.ndarray:
    values = _present_column(path, name, "number of votes", numbers=True).to_numpy()
    if values.dtype.kind not in "iuf":
        raise InvalidInputError(
            f"the column {name!r} of {table_name(path)} has {values.dtype}, but numbers of votes are needed."
        )
    return values


@contextmanager
def _naming(path: Any) -> Iterator[None]:
    """Name the file in errors about its votes."""
    try:
        yield
    except InvalidInputError as error:
        raise InvalidInputError(f"in {table_name(path)}, {error}") from error


def _matching(path: Any, columns: Sequence[str]) -> list[str]:
    """Return the columns with these names, and all that match a pattern, in the order of the table for each."""
    existing = files.require_columns(files.table_parts(path)[0], []).names
    chosen: dict[str, None] = {}
    for name in columns:
        if name in existing or not set(name) & set("*?"):
            chosen[name] = None
            continue
        matches = [other for other in existing if fnmatchcase(other, name)]
        if not matches:
            raise MissingInputError(
                f"no column of {table_name(path)} matches {name!r}; {files.listed(existing)}."
            )
        chosen |= dict.fromkeys(matches)
    if not chosen:
        raise MissingInputError(f"name the columns of votes of {table_name(path)}.")
    files.require_columns(files.table_parts(path)[0], list(chosen))
    return list(chosen)


def _present_column(path: Any, column: str, what: str, *, numbers: bool = False) -> Any:
    """Return a column as an Arrow array; raise if a value is missing."""
    values = whole_column(path, column, numbers=numbers)
    missing = arrow.compute_package().is_null(values, nan_is_null=True).to_numpy()
    if missing.any():
        advice = _ADVICE.get(what, "Fill in the value, or drop the row.")
        raise InvalidInputError(
            f"row {int(missing.argmax())} of {table_name(path)} (counted from 0) has no {what} in the column "
            f"{column!r}. {advice}"
        )
    return values
