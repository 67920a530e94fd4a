"""Rows of a gallery: ids, directions, concentrations and payload, checked before any engine sees them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.retrieval._scores import stored_direction

MAX_ID_BYTES = 1024
MAX_TEXT_BYTES = 1_000_000
_TYPES = {"text": str, "integer": int, "number": float, "boolean": bool}
DTYPES = {"text": object, "integer": np.int64, "number": np.float64, "boolean": np.bool_}
_RESERVED = {"id", "mu", "kappa"}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


@dataclass(frozen=True)
class Schema:
    """What all rows of an index share: dimension, payload columns with their types, and a typical kappa.

    The typical kappa, the median at creation, stands for the partner's in predictive caps; appending does not move it.
    """

    dim: int
    columns: dict[str, str] = field(default_factory=dict)
    typical_kappa: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any, where: str) -> "Schema":
        """From plain values that may come from anywhere; ``where`` names their place in the error."""
        try:
            dim, columns = values["dim"], values["columns"]
            good = isinstance(dim, int) and dim >= 2 and isinstance(columns, dict)
            good = good and all(_NAME.fullmatch(n) and t in _TYPES for n, t in columns.items())
            if not good:
                raise ValueError("dim or columns")
            return cls(dim, columns, float(values["typical_kappa"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(
                f"{where} does not hold a gallery of this library: {error!r}."
            ) from error


@dataclass(frozen=True)
class Rows:
    """Rows as an engine takes and gives them: ids (an array of str), float32 mu [n, D] and kappa [n], payload."""

    ids: np.ndarray
    mu: np.ndarray
    kappa: np.ndarray
    payload: dict[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)


def check_rows(
    posteriors: VonMisesFisher,
    ids: Sequence[str],
    payload: Mapping[str, Sequence[Any]] | None,
    schema: Schema,
) -> Rows:
    """The rows in the form they are stored in; an error names the first thing that is wrong."""
    if not isinstance(posteriors, VonMisesFisher) or len(posteriors.batch_shape) != 1:
        got = getattr(posteriors, "batch_shape", type(posteriors).__name__)
        raise InvalidInputError(
            f"a gallery holds a batch of VonMisesFisher posteriors, batch shape (n,), but got {got}. Store a mixture "
            "as its components, one row each."
        )
    if posteriors.dim != schema.dim:
        raise InvalidInputError(
            f"the gallery lies in R^{schema.dim}, but these posteriors lie in R^{posteriors.dim}."
        )
    names = check_ids(ids)
    n = len(posteriors.kappa)
    if len(names) != n:
        raise InvalidInputError(f"{n} posteriors need as many ids, but got {len(names)}.")
    mu = stored_direction(posteriors.mu)
    kappa = posteriors.kappa.detach().cpu().float().numpy().copy()
    norms = np.linalg.norm(mu.astype(np.float64), axis=-1)
    bad = np.flatnonzero(~(np.abs(norms - 1) < 1e-4) | ~(kappa >= 0))
    if len(bad):
        raise InvalidInputError(
            f"row {bad[0]} (id {names[bad[0]]!r}) has a mu of norm {norms[bad[0]]:.6g} and kappa {kappa[bad[0]]:.6g}; "
            "mu must be a finite direction and kappa at least 0. Nothing was stored."
        )
    return Rows(strings(names), mu, kappa, _check_payload(payload or {}, n, schema))


def fits(rows: Rows, schema: Schema) -> bool:
    """Whether rows have the dimension, the payload columns and the types of a schema."""
    held = {name: column.dtype for name, column in rows.payload.items()}
    kinds = {name: np.dtype(DTYPES[kind]) for name, kind in schema.columns.items()}
    return rows.mu.shape == (len(rows), schema.dim) and held == kinds


def schema_of(
    posteriors: VonMisesFisher,
    payload: Mapping[str, Sequence[Any]] | None,
    typical_kappa: float | None = None,
) -> Schema:
    """The schema that a gallery's first rows imply: a column's type is that of its values."""
    columns = {}
    for name, values in (payload or {}).items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _RESERVED:
            raise InvalidInputError(
                f"{name!r} cannot name a payload column: use at most 63 small letters, digits and _, a letter first, "
                f"and none of {', '.join(sorted(_RESERVED))}."
            )
        kinds = {type(_plain(v)) for v in values}
        if kinds == {int, float}:
            kinds = {float}
        found = [name for name, kind in _TYPES.items() if kinds == {kind}]
        if not found:
            got = ", ".join(sorted(kind.__name__ for kind in kinds)) or "nothing"
            raise InvalidInputError(
                f"payload column {name!r} must hold values of one type, str, int, float or bool, but holds {got}."
            )
        columns[name] = found[0]
    kappa = posteriors.kappa.detach().float()
    typical = float(kappa.median()) if kappa.numel() else 1.0
    if typical_kappa is not None:
        if not typical_kappa >= 0:
            raise InvalidInputError(f"typical_kappa must be at least 0, but is {typical_kappa}.")
        typical = typical_kappa
    return Schema(posteriors.dim, columns, typical if np.isfinite(typical) else 1e30)


def check_ids(ids: Sequence[str]) -> list[str]:
    """The ids as a list, if they are distinct strings that every engine can store verbatim."""
    if isinstance(ids, str):
        raise InvalidInputError("ids must be a sequence of strings, but is one string.")
    names = list(ids)
    for place, name in enumerate(names):
        if not isinstance(name, str):
            raise InvalidInputError(
                f"ids must be strings, but ids[{place}] is {name!r}. Use [str(i) for i in ids]."
            )
        _check_text(name, f"ids[{place}]", MAX_ID_BYTES)
    if len(set(names)) != len(names):
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))
        raise InvalidInputError(f"ids must be distinct, but {twice!r} is there more than once.")
    return names


def strings(values: Sequence[str]) -> np.ndarray:
    """An array of Python strings: picking many of them is faster than from a list."""
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def text_of(values: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Strings as (bytes, ends): one run of UTF-8 and where each string ends in it."""
    parts = [value.encode() for value in values]
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    return np.frombuffer(b"".join(parts), np.uint8).copy(), np.asarray(ends, np.int64)


def _check_text(text: str, where: str, largest: int) -> None:
    if len(text) > largest:
        raise InvalidInputError(
            f"{where} has {len(text)} characters, but at most {largest} bytes are stored."
        )
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{where} is not valid Unicode: {error.reason}.") from error
    if size > largest or "\0" in text:
        fault = "holds the character NUL" if "\0" in text else f"has {size} bytes"
        raise InvalidInputError(
            f"{where} {fault}, but at most {largest} bytes without NUL are stored."
        )


def _check_payload(
    payload: Mapping[str, Sequence[Any]], n: int, schema: Schema
) -> dict[str, np.ndarray]:
    if payload.keys() != schema.columns.keys():
        raise InvalidInputError(
            f"the gallery has the payload columns {sorted(schema.columns)}, but got {sorted(payload)}."
        )
    found = {}
    for name, kind in schema.columns.items():
        values = [check_value(value, kind, f"payload {name!r}") for value in payload[name]]
        if len(values) != n:
            raise InvalidInputError(
                f"payload column {name!r} has {len(values)} values for {n} rows."
            )
        column = np.empty(n, dtype=DTYPES[kind])
        column[:] = values
        found[name] = column
    return found


def check_value(value: Any, kind: str, where: str) -> Any:
    """A plain value of a column's type: str, int in 64 bits, finite float, or bool."""
    value = _plain(value)
    if kind == "number" and type(value) is int:
        value = float(value)
    if type(value) is not _TYPES[kind]:
        raise InvalidInputError(f"{where} must be {kind}, but is {value!r}.")
    if kind == "integer" and not -(2**63) <= value < 2**63:
        raise InvalidInputError(f"{where} must fit 64 bits, but is {value}.")
    if kind == "number" and not np.isfinite(value):
        raise InvalidInputError(f"{where} must be finite, but is {value}.")
    if kind == "text":
        _check_text(value, where, MAX_TEXT_BYTES)
    return value


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
