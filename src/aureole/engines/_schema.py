"""What a gallery stores: its schema, its rows (validated before any engine sees them) and its provenance."""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from aureole.distributions import VonMisesFisher
from aureole.engines._integrity import MAX_DIM, MAX_ID_BYTES, TYPES, parse_note
from aureole.errors import DamagedGalleryError, EncoderError, InvalidInputError, MissingInputError

MAX_TEXT_BYTES = 1_000_000
DTYPES = {"text": object, "integer": np.int64, "number": np.float64, "boolean": np.bool_}
POINT = 1e30  # a typical kappa that is infinite is stored as this
NO_MU = np.zeros((0, 0), np.float32)  # the mu of rows that are returned without it
_RESERVED = {"id", "mu", "kappa"}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_ORIGIN_FORMAT = "aureole-origin-1"


@dataclass(frozen=True)
class Schema:
    """What all rows of a gallery share: dimension, payload columns with their types, and a typical kappa.

    Predictive caps use the typical kappa, the median at creation, for the partner. Appending does not change it.
    """

    dim: int
    columns: dict[str, str] = field(default_factory=dict)
    typical_kappa: float = 1.0

    def check_columns(self, *names: str | None) -> None:
        """Raise if a payload column does not exist; None is ignored."""
        for name in names:
            if name is not None and name not in self.columns:
                raise MissingInputError(
                    f"payload column {name!r} not found; the gallery has {sorted(self.columns)}."
                )

    def to_json(self) -> dict[str, Any]:
        """The schema as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any, where: str) -> "Schema":
        """The schema from untrusted JSON; ``where`` names its source in the error."""
        try:
            dim, columns = values["dim"], values["columns"]
            valid = type(dim) is int and 2 <= dim <= MAX_DIM and isinstance(columns, dict)
            valid = valid and all(_NAME.fullmatch(n) and t in TYPES for n, t in columns.items())
            if not valid or _RESERVED & columns.keys():
                raise ValueError("dim or columns")
            typical_kappa = float(values["typical_kappa"])
            if not 0 <= typical_kappa < math.inf:
                raise ValueError(f"typical_kappa {typical_kappa}")
            return cls(dim, columns, typical_kappa)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DamagedGalleryError(
                f"{where} does not hold a gallery: its schema is invalid ({repr(error)[:200]})."
            ) from error


@dataclass(frozen=True)
class Origin:
    """The ``kappa_pos`` of the model that produced a gallery's posteriors, and the SHA-256 of its weights, if known.

    Queries must come from the same weights: the directions of two different heads are unrelated. ``encoder`` is the
    fingerprint of the encoder whose vectors the head takes, if known. Both are only compared.

    Examples
    --------
    >>> Origin.from_json(Origin(64.0).to_json())
    Origin(kappa_pos=64.0, weights=None, encoder=None)
    """

    kappa_pos: float | int | None = None  # stored as a float
    weights: str | None = None
    encoder: str | None = None

    def __post_init__(self) -> None:
        if self.kappa_pos is not None:
            number = isinstance(self.kappa_pos, Real) and not isinstance(self.kappa_pos, bool)
            if not number or not 0 <= self.kappa_pos < math.inf:
                raise InvalidInputError(
                    f"kappa_pos must be finite and at least 0, or None, but is {self.kappa_pos!r}."
                )
            object.__setattr__(self, "kappa_pos", float(self.kappa_pos))
        if not isinstance(self.weights, str | None):
            raise InvalidInputError(f"weights must be a string or None, but is {self.weights!r}.")
        if not isinstance(self.encoder, str | None):
            raise InvalidInputError(f"encoder must be a string or None, but is {self.encoder!r}.")

    @property
    def fingerprint(self) -> str | None:
        """Of the model that produced the directions: the weights, or the encoder's fingerprint if there is no head."""
        return self.encoder if self.weights is None else self.weights

    def check_same(self, weights: str, who: str, *, encoder: str | None = None) -> None:
        """Raise if these weights, or this encoder, are known to differ from the gallery's; ``who`` names the model."""
        if None not in (self.encoder, encoder) and encoder != self.encoder:
            raise EncoderError(
                f"{who} takes the vectors of another encoder than the one that produced this gallery (their "
                "fingerprints differ). Use the encoder that the gallery was built with, or rebuild the gallery."
            )
        if self.weights is not None and weights != self.weights:
            raise EncoderError(
                f"{who} is not the model that produced this gallery (its weights differ), so their directions are "
                "unrelated. Use the model that the gallery was built with, or rebuild the gallery."
            )

    def to_json(self) -> str:
        """As JSON text, saved with the index."""
        return json.dumps({"format": _ORIGIN_FORMAT, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> "Origin":
        """From untrusted JSON text."""
        values = parse_note(text, "not a saved origin: the text")
        try:
            if values["format"] != _ORIGIN_FORMAT:
                raise ValueError("another format")
            return cls(values["kappa_pos"], values["weights"], values.get("encoder"))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DamagedGalleryError(f"not a saved origin: {repr(error)[:200]}.") from error


@dataclass(frozen=True)
class Rows:
    """Rows as engines store and return them: ids (an array of str), float32 mu [n, D] and kappa [n], payload.

    Rows that are returned without mu have ``NO_MU`` instead.
    """

    ids: np.ndarray
    mu: np.ndarray
    kappa: np.ndarray
    payload: dict[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)


def stored_direction(mu: Float[Tensor, "*batch dim"]) -> np.ndarray:
    """The directions as an index stores them: normalised in float64, then rounded to float32."""
    wide = mu.numpy(force=True).astype(np.float64)
    norm = np.sqrt(np.einsum("...d,...d->...", wide, wide))
    return (wide / np.maximum(norm, 1e-12)[..., None]).astype(np.float32)


def exact_cosines(query: np.ndarray, mu: np.ndarray) -> np.ndarray:
    """The float64 cosines [n] of a float32 direction [D] with others [n, D]; bitwise the same in any batch.

    They decide which rows are in a cap. Each direction is divided by its own norm, and sums are in an order that
    depends on the dimension alone, so the cosine of a direction with itself is exactly 1 on any engine.
    """
    wide = mu.astype(np.float64)
    own = query.astype(np.float64)
    dot = np.einsum("nd,d->n", wide, own)
    square = np.einsum("nd,nd->n", wide, wide) * np.einsum("nd,nd->n", own[None], own[None])
    return np.minimum(np.maximum(dot / np.sqrt(square), -1.0), 1.0)


def check_rows(
    posteriors: VonMisesFisher,
    ids: Sequence[str],
    payload: Mapping[str, Sequence[Any]] | None,
    schema: Schema,
) -> Rows:
    """Validate rows and convert them to the stored form; the error names the first invalid row."""
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
        raise InvalidInputError(f"{n} posteriors need {n} ids, but got {len(names)}.")
    mu = stored_direction(posteriors.mu)
    kappa = posteriors.kappa.detach().cpu().float().numpy().copy()
    norms = np.linalg.norm(mu.astype(np.float64), axis=-1)
    bad = np.flatnonzero(~(np.abs(norms - 1) < 1e-4) | ~(kappa >= 0))
    if len(bad):
        raise InvalidInputError(
            f"row {bad[0]} (id {names[bad[0]]!r}) has a mu of norm {norms[bad[0]]:.6g} and kappa {kappa[bad[0]]:.6g}; "
            "mu must be a finite direction and kappa at least 0. Nothing was stored."
        )
    return Rows(object_array(names), mu, kappa, _check_payload(payload or {}, n, schema))


def matches_schema(rows: Rows, schema: Schema) -> bool:
    """Whether rows have the dimension, the payload columns and the types of a schema."""
    held = {name: column.dtype for name, column in rows.payload.items()}
    kinds = {name: np.dtype(DTYPES[kind]) for name, kind in schema.columns.items()}
    return rows.mu.shape == (len(rows), schema.dim) and held == kinds


def schema_of(
    posteriors: VonMisesFisher,
    payload: Mapping[str, Sequence[Any]] | None,
    typical_kappa: float | None = None,
) -> Schema:
    """Infer the schema from a gallery's first rows: the type of a column is that of its values."""
    columns = {}
    for name, values in (payload or {}).items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _RESERVED:
            raise InvalidInputError(
                f"{name!r} cannot name a payload column: use at most 63 lowercase letters, digits and _, starting with "
                f"a letter, and none of {', '.join(sorted(_RESERVED))}."
            )
        kinds = {type(_plain(v)) for v in values}
        if kinds == {int, float}:
            kinds = {float}
        matching = [name for name, kind in TYPES.items() if kinds == {kind}]
        if not matching:
            got = ", ".join(sorted(kind.__name__ for kind in kinds)) or "nothing"
            raise InvalidInputError(
                f"payload column {name!r} must hold values of one type, str, int, float or bool, but holds {got}."
            )
        columns[name] = matching[0]
    if typical_kappa is None:
        kappa = posteriors.kappa.detach().float()
        typical_kappa = float(kappa.median()) if kappa.numel() else 1.0
    elif not typical_kappa >= 0:
        raise InvalidInputError(f"typical_kappa must be at least 0, but is {typical_kappa}.")
    return Schema(posteriors.dim, columns, min(typical_kappa, POINT))


def check_ids(ids: Sequence[str]) -> list[str]:
    """The ids as a list; raise unless they are distinct strings that every engine can store verbatim."""
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
        twice = Counter(names).most_common(1)[0][0]
        raise InvalidInputError(f"ids must be distinct, but {twice!r} occurs more than once.")
    return names


def no_rows(columns: Sequence[str], dim: int = 0) -> Rows:
    """An empty batch of rows with some payload columns."""
    payload = {name: object_array([]) for name in columns}
    return Rows(object_array([]), np.zeros((0, dim), np.float32), np.zeros(0, np.float32), payload)


def pick_rows(rows: Rows, places: np.ndarray) -> Rows:
    """The rows at some positions, or of a mask."""
    payload = {name: column[places] for name, column in rows.payload.items()}
    return Rows(rows.ids[places], rows.mu[places], rows.kappa[places], payload)


def join_rows(parts: Sequence[Rows], columns: Sequence[str], dim: int) -> Rows:
    """The rows of several blocks, which may all be empty."""
    filled = [part for part in parts if len(part)]
    if len(filled) < 2:
        return filled[0] if filled else no_rows(columns, dim)
    return Rows(
        np.concatenate([part.ids for part in filled]),
        np.concatenate([part.mu for part in filled]),
        np.concatenate([part.kappa for part in filled]),
        {name: np.concatenate([part.payload[name] for part in filled]) for name in columns},
    )


def object_array(values: Sequence[Any]) -> np.ndarray:
    """The values as an array of Python objects, which can be indexed by an array of positions."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def pack_strings(values: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Strings as (bytes, ends): their concatenated UTF-8, and where each string ends in it."""
    parts = [value.encode() for value in values]
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    return np.frombuffer(b"".join(parts), np.uint8).copy(), np.asarray(ends, np.int64)


def unpack_strings(text: np.ndarray, ends: np.ndarray) -> list[str]:
    """The inverse of ``pack_strings``."""
    content = text.tobytes()
    bounds = np.concatenate([[0], ends])
    flat = text.dtype == np.uint8 and ends.dtype == np.int64 and text.ndim == ends.ndim == 1
    if not flat or (np.diff(bounds) < 0).any() or bounds[-1] != len(content):
        raise ValueError("the ends of strings do not fit their text")
    return [content[start:end].decode() for start, end in pairwise([0, *ends.tolist()])]


def _check_text(text: str, where: str, largest: int) -> None:
    if len(text) > largest:
        raise InvalidInputError(
            f"{where} has {len(text)} characters, but the limit is {largest} bytes."
        )
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{where} is not valid Unicode: {error.reason}.") from error
    if size > largest or "\0" in text:
        fault = "contains a NUL character" if "\0" in text else f"has {size} bytes"
        raise InvalidInputError(f"{where} {fault}; the limit is {largest} bytes without NUL.")


def _check_payload(
    payload: Mapping[str, Sequence[Any]], n: int, schema: Schema
) -> dict[str, np.ndarray]:
    if payload.keys() != schema.columns.keys():
        raise InvalidInputError(
            f"the gallery has the payload columns {sorted(schema.columns)}, but got {sorted(payload)}."
        )
    columns = {}
    for name, kind in schema.columns.items():
        values = [check_value(value, kind, f"payload {name!r}") for value in payload[name]]
        if len(values) != n:
            raise InvalidInputError(
                f"payload column {name!r} has {len(values)} values for {n} rows."
            )
        columns[name] = np.array(values, dtype=DTYPES[kind])
    return columns


def check_value(value: Any, kind: str, where: str) -> Any:
    """A Python value of the column's type: str, 64-bit int, finite float or bool; raise otherwise."""
    value = _plain(value)
    if kind == "number" and type(value) is int:
        value = float(value)
    if type(value) is not TYPES[kind]:
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
