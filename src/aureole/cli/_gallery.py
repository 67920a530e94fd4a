"""Galleries for the commands: the posteriors, ids and payload of a table, calibration, and facts to print."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any

import numpy as np
import torch
from typer import Option

from aureole.cli._options import (
    ColumnsFrom,
    IdColumn,
    KappaColumn,
    MuColumn,
    OptionalHead,
    VectorColumn,
)
from aureole.data import Groups, read_column, read_vectors
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.models import WEIGHTS
from aureole.records import file_hash
from aureole.retrieval import (
    ConformalMass,
    CredibleIndex,
    Origin,
    engine_of,
    is_local,
    shown_address,
)
from aureole.training import FrozenHead, kappas

CHUNK = 65_536  # rows per append


@dataclass(frozen=True)
class TableColumns:
    """How to read posteriors, ids and payload from a table."""

    head: OptionalHead = None
    vector_column: VectorColumn = None
    mu_column: MuColumn = "mu"
    kappa_column: KappaColumn = "kappa"
    id_column: IdColumn = None
    columns_from: ColumnsFrom = None
    payload_column: Annotated[
        list[str] | None,
        Option(
            help="Column to store with the rows, for filters and display; repeatable.",
            metavar="COLUMN|NAME=COLUMN",
        ),
    ] = None


class TablePosteriors:
    """The posteriors of a table: a head's predictions for its vectors, or its own columns of mu and kappa.

    ``source[rows]`` returns some rows; memory does not grow with the table.
    """

    def __init__(
        self,
        path: Path,
        columns: TableColumns,
        *,
        work: Path | None = None,
        observer: Callable[[int], None] | None = None,
    ) -> None:
        self._head = None if columns.head is None else FrozenHead.load(columns.head)
        name = columns.mu_column if self._head is None else columns.vector_column
        self.work = work
        self._vectors = read_vectors(path, name, work=work, observer=observer)
        self.kappa = np.zeros(0, np.float32)
        if self._head is None:
            self.kappa = _numbers(path, columns.kappa_column, len(self._vectors))

    def __len__(self) -> int:
        return len(self._vectors)

    def __getitem__(self, rows: Any) -> VonMisesFisher:
        part = np.ascontiguousarray(self._vectors[rows])
        if self._head is not None:
            return self._head.predict(part)
        return VonMisesFisher(torch.from_numpy(part), torch.from_numpy(self.kappa[rows]))

    def typical_kappa(self, observer: Callable[[int], None] | None = None) -> float:
        """The median kappa of all rows."""
        if self._head is not None and not len(self.kappa):
            self.kappa = kappas(self._head, self._vectors, observer=observer)
        return float(np.median(self.kappa))


def read_ids(path: Path, column: str | None, rows: int) -> list[str]:
    """The ids of a table's rows as strings; without a column, row numbers from 0."""
    if column is None:
        return [str(i) for i in range(rows)]
    values = _complete(path, column, rows)
    if values.dtype.kind not in "OUiu":
        raise InvalidInputError(
            f"ids must be strings or integers, but the column {column!r} of {path} has type {values.dtype}."
        )
    return [str(value) for value in values.tolist()]


def read_payload(path: Path, columns: Sequence[str], rows: int) -> dict[str, list[Any]]:
    """The payload columns of a table, by name; ``NAME=COLUMN`` stores a column under another name."""
    payload: dict[str, list[Any]] = {}
    for text in columns:
        name, _, column = text.partition("=")
        if name in payload:
            raise InvalidInputError(f"the payload column {name!r} is given twice.")
        payload[name] = _complete(path, column or name, rows).tolist()
    return payload


def head_origin(folder: Path | None) -> Origin:
    """The provenance of a gallery whose posteriors come from the head in a folder; unknown without one."""
    if folder is None:
        return Origin()
    return Origin(FrozenHead.load(folder).kappa_pos_, file_hash(folder / WEIGHTS))


def calibration(
    source: TablePosteriors,
    groups: np.ndarray,
    *,
    kappa_pos: float,
    kappa_other: float,
    most: int,
    seed: int,
) -> ConformalMass:
    """A conformal calibration by one random pair from each of at most ``most`` random groups of a table."""
    if len(groups) != len(source):
        raise InvalidInputError(f"there are {len(source)} rows, but {len(groups)} groups.")
    index, rng = Groups.of(groups), torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(index.sizes), generator=rng)[:most].sort().values
    start, size = index.starts[chosen], index.sizes[chosen]
    first = (torch.rand(len(chosen), generator=rng, dtype=torch.float64) * size).long()
    step = (torch.rand(len(chosen), generator=rng, dtype=torch.float64) * (size - 1)).long()
    left, right = (
        index.members[start + place].numpy() for place in (first, (first + 1 + step) % size)
    )
    return ConformalMass.fit(source[left], source[right], kappa_pos, kappa_other=kappa_other)


@contextmanager
def staged(where: str) -> Iterator[str]:
    """A temporary address for a new gallery, renamed to its own when it is complete: an atomic write.

    Databases and object stores are written in place.
    """
    engine_of(where)  # raises for an unknown engine before anything is read
    if not is_local(where):
        yield where
        return
    final = Path(where)
    if final.exists() and not (final.is_dir() and not any(final.iterdir())):
        raise InvalidInputError(
            f"{final} already exists. Choose another --out, append to it with aureole index append, or delete it."
        )
    part = final.with_name(f".{final.stem}.partial-{token_hex(4)}{final.suffix}")
    try:
        yield str(part)
        part.rename(final)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        Path(f"{part}.lock").unlink(missing_ok=True)


def facts(index: CredibleIndex, where: str) -> dict[str, Any]:
    """Facts about an index to print; the address has no password."""
    schema, held, origin = index.schema, index.conformal, index.origin
    calibrated = None
    if held is not None:
        pairs = len(held.scores)
        calibrated = {
            "pairs": pairs,
            "largest_mass": pairs / (pairs + 1),
            "kappa_pos": held.kappa_pos,
            "kappa_other": held.kappa_other,
        }
    return {
        "gallery": shown_address(where),
        "engine": index.engine,
        "rows": index.count(),
        "dim": schema.dim,
        "typical_kappa": schema.typical_kappa,
        "columns": dict(schema.columns),
        "approximate": index.approximate,
        "conformal": calibrated,
        "kappa_pos": origin.kappa_pos,
        "head": origin.weights,
    }


def _complete(path: Path, column: str, rows: int) -> np.ndarray:
    """A column, which must have a value in every row."""
    values = read_column(path, column)
    if len(values) != rows:
        raise InvalidInputError(
            f"there are {rows} vectors, but the column {column!r} of {path} has {len(values)} values: the files do "
            "not match row by row."
        )
    missing = next((row for row, value in enumerate(values.tolist()) if value is None), None)
    if missing is not None:
        raise InvalidInputError(
            f"row {missing} (counted from 0) of the column {column!r} of {path} has no value. Fill it in, or drop the "
            "row."
        )
    return values


def _numbers(path: Path, column: str, rows: int) -> np.ndarray:
    values = _complete(path, column, rows)
    if values.dtype.kind not in "fiu":
        raise InvalidInputError(
            f"kappa must be a column of numbers, but {column!r} of {path} has type {values.dtype}."
        )
    return values.astype(np.float32)
