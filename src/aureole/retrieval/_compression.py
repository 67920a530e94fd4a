"""Compressed approximate indexes: codes in memory instead of vectors.

A compressed index only proposes candidates: its cosines are estimates. A search lowers the bound of the cap by
``Compression.widening``, and the float64 cosine of the stored direction decides, as for any other index.
"""

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from aureole.errors import DamagedGalleryError, InvalidInputError

_CODES = ("pq", "scalar", "half")
_MOST_BYTES = 2**22
_MOST_BANDS = 64
_LEAST_WIDENING = 1e-6
_BUDGET = 54  # bytes of a code at D = 128; with the position of its row and its flags a row takes 64 at most
_FEWEST_ROWS = 1024  # with fewer, the 256 centroids of product quantisation would be rows


@dataclass(frozen=True)
class Compression:
    """How an index encodes a vector, in how many bytes: 'pq' (product quantisation), 'scalar' or 'half' (float16).

    ``errors`` are pairs (cosine, error): from this cosine up to the next one, estimates are at most so much too low.
    Codes misjudge near duplicates most, since what a code leaves out of a vector points towards the vector.

    Examples
    --------
    >>> code = Compression("pq", 32, ((-1.0, 0.1), (0.9, 0.2)))
    >>> [round(code.widening(bound), 2) for bound in (-1.0, 0.5, 0.85, 0.95)]
    [0.1, 0.1, 0.15, 0.2]
    """

    code: str
    bytes: int
    errors: tuple[tuple[float, float], ...]

    def widening(self, bound: float) -> float:
        """How far to lower a bound so that the members of the cap are found by their estimates.

        Members well inside the cap may be misjudged by more than those at its edge.
        """
        ends = [*(start for start, _ in self.errors[1:]), 1.0]
        bands = zip(self.errors, ends, strict=True)
        needed = [error - max(0.0, low - bound) for (low, error), end in bands if end >= bound]
        return max([_LEAST_WIDENING, *needed])

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any, what: str) -> "Compression":
        """From untrusted JSON values; ``what`` names their source in the error.

        Examples
        --------
        >>> Compression.from_json({"code": "half", "bytes": 64, "errors": [[-1.0, 0.001]]}, "gallery.lance")
        Compression(code='half', bytes=64, errors=((-1.0, 0.001),))
        >>> Compression.from_json({"code": "half", "bytes": 64, "errors": []}, "g.lance")
        Traceback (most recent call last):
        aureole.errors.DamagedGalleryError: g.lance is damaged: the compression of its approximate index is invalid.
        """
        valid = isinstance(values, dict) and values.keys() == {"code", "bytes", "errors"}
        if valid:
            code, size = values["code"], values["bytes"]
            valid = isinstance(code, str) and code in _CODES
            valid = valid and type(size) is int and 1 <= size <= _MOST_BYTES
            valid = valid and _valid_errors(values["errors"])
        if not valid:
            raise DamagedGalleryError(
                f"{what} is damaged: the compression of its approximate index is invalid."
            )
        errors = tuple((float(start), float(error)) for start, error in values["errors"])
        return cls(values["code"], values["bytes"], errors)

    def describe(self) -> dict[str, Any]:
        """As part of ``CredibleIndex.approximate``."""
        largest = max(error for _, error in self.errors)
        return {"compressed": self.code, "bytes": self.bytes, "error": largest}


def check_compressed(kind: str, rows: int) -> None:
    """Raise unless an index of this kind, on this many rows, can be compressed."""
    if kind != "ivf":
        raise InvalidInputError(f"only 'ivf' indexes can be compressed, but got {kind!r}.")
    if not rows:
        raise InvalidInputError("the gallery has no rows to compress. Append rows first.")


def code_of(dim: int, rows: int) -> tuple[str, int]:
    """(Code, bytes per row) for a gallery: product quantisation, one byte per 1 to 8 dimensions.

    A code has at most 54 bytes, or D / 4 if that is more. Few rows, and dimensions without a divisor that fits, get a
    scalar code, one byte per dimension.

    Examples
    --------
    >>> [code_of(dim, 100_000) for dim in (16, 64, 128, 768, 131)]
    [('pq', 16), ('pq', 32), ('pq', 32), ('pq', 192), ('scalar', 131)]
    >>> code_of(128, 50)
    ('scalar', 128)
    """
    most = max(_BUDGET, dim // 4)
    width = next(width for width in range(1, dim + 1) if dim % width == 0 and dim // width <= most)
    if width > 8 or rows < _FEWEST_ROWS:
        return "scalar", dim
    return "pq", dim // width


def _valid_errors(errors: Any) -> bool:
    """Whether untrusted values are pairs (cosine, error), with ascending cosines from -1."""
    if not isinstance(errors, list) or not 1 <= len(errors) <= _MOST_BANDS:
        return False
    for pair in errors:
        if not isinstance(pair, list) or len(pair) != 2:
            return False
        if not all(type(value) in (int, float) for value in pair):
            return False
    starts = [start for start, _ in errors]
    rising = all(low < high for low, high in pairwise(starts))
    return starts[0] == -1 and rising and starts[-1] < 1 and all(0 <= e <= 2 for _, e in errors)
