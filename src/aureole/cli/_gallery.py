"""Galleries as the commands see them: posteriors of a table piece by piece, ids, payload, and facts to print."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
import torch

from aureole.data import Groups, read_column, read_vectors
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.models import WEIGHTS
from aureole.records import file_hash
from aureole.retrieval import (
    ConformalMass,
    CredibleIndex,
    Origin,
    adapter_of,
    is_local,
    shown_address,
)
from aureole.training import FrozenHead, kappas

CHUNK = 65_536  # rows that are stored at a time


class TablePosteriors:
    """The posteriors of a table: those that a head makes of its vectors, or its own columns of mu and kappa.

    ``source[rows]`` are those of some rows; memory does not grow with the table.
    """

    def __init__(
        self,
        path: Path,
        head: FrozenHead | None,
        columns: tuple[str | None, str],
        *,
        work: Path | None = None,
        observer: Callable[[int], None] | None = None,
    ) -> None:
        self._head = head
        vectors, kappa = columns
        self._vectors = read_vectors(path, vectors, work=work, observer=observer)
        self.kappa = np.zeros(0, np.float32) if head else _numbers(path, kappa, len(self._vectors))

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
    """The ids of a table's rows as strings; without a column, the numbers of the rows from 0 on."""
    if column is None:
        return [str(i) for i in range(rows)]
    values = _whole(path, column, rows)
    if values.dtype.kind not in "OUiu":
        raise InvalidInputError(
            f"ids must be strings or whole numbers, but the column {column!r} of {path} has {values.dtype}."
        )
    return [str(value) for value in values.tolist()]


def read_payload(path: Path, columns: Sequence[str], rows: int) -> dict[str, list[Any]]:
    """The columns of a table to keep with the rows, by name; ``NAME=COLUMN`` keeps a column under another name."""
    found: dict[str, list[Any]] = {}
    for text in columns:
        name, _, column = text.partition("=")
        if name in found:
            raise InvalidInputError(f"the payload column {name!r} is named twice.")
        found[name] = _whole(path, column or name, rows).tolist()
    return found


def head_origin(folder: Path, head: FrozenHead) -> Origin:
    """What a head's gallery remembers of it."""
    return Origin(head.kappa_pos_, file_hash(folder / WEIGHTS))


def calibration(
    source: TablePosteriors,
    groups: np.ndarray,
    *,
    kappa_pos: float,
    kappa_other: float,
    most: int,
    seed: int,
) -> ConformalMass:
    """The calibration by one random pair of each group of a table, of ``most`` random groups at most."""
    if len(groups) != len(source):
        raise InvalidInputError(
            f"{len(source)} rows need as many groups, but there are {len(groups)}."
        )
    found, rng = Groups.of(groups), torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(found.sizes), generator=rng)[:most].sort().values
    start, size = found.starts[chosen], found.sizes[chosen]
    first = (torch.rand(len(chosen), generator=rng, dtype=torch.float64) * size).long()
    step = (torch.rand(len(chosen), generator=rng, dtype=torch.float64) * (size - 1)).long()
    left, right = (
        found.members[start + place].numpy() for place in (first, (first + 1 + step) % size)
    )
    return ConformalMass.fit(source[left], source[right], kappa_pos, kappa_other=kappa_other)


@contextmanager
def staged(where: str) -> Iterator[str]:
    """The address to write a new gallery to: beside its own, whose name it has only when it is whole.

    A database or an object store is written to in place.
    """
    adapter_of(where)  # before anything is read
    if not is_local(where):
        yield where
        return
    final = Path(where)
    if final.exists() and not (final.is_dir() and not any(final.iterdir())):
        raise InvalidInputError(
            f"{final} is there already. Choose another place, append to it with aureole index append, or delete it."
        )
    part = final.with_name(f".{final.stem}.partial-{token_hex(4)}{final.suffix}")
    try:
        yield str(part)
        part.rename(final)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        Path(f"{part}.lock").unlink(missing_ok=True)


def facts(index: CredibleIndex, where: str) -> dict[str, Any]:
    """What there is to know of an index, for people and for JSON; no password is in it."""
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


def _whole(path: Path, column: str, rows: int) -> np.ndarray:
    """A column with a value in every row."""
    values = read_column(path, column)
    if len(values) != rows:
        raise InvalidInputError(
            f"{rows} vectors need as many values, but the column {column!r} of {path} has {len(values)}: the files "
            "do not belong together."
        )
    missing = next((row for row, value in enumerate(values.tolist()) if value is None), None)
    if missing is not None:
        raise InvalidInputError(
            f"row {missing} (counted from 0) of the column {column!r} of {path} has no value. "
            "Fill it in, or drop the row."
        )
    return values


def _numbers(path: Path, column: str, rows: int) -> np.ndarray:
    values = _whole(path, column, rows)
    if values.dtype.kind not in "fiu":
        raise InvalidInputError(
            f"kappa is a column of numbers, but {column!r} of {path} has {values.dtype}."
        )
    return values.astype(np.float32)
