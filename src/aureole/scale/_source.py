"""Source: inputs in a fixed order, cut into chunks that can be read alone, again, and anywhere."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SMALLEST_CHUNK, _LARGEST_CHUNK, _CHUNKS = 1024, 65_536, 256
LARGEST_INPUT = 256 * 2**20  # bytes of one picture's file


@dataclass(frozen=True)
class Chunk:
    """Some inputs of a source that follow each other: the unit of work, of retry, and of what is done.

    Attributes
    ----------
    key
        Its name; the same name is the same inputs, as long as the source is the same.
    place
        Where they are, in plain values that can be sent to a worker.
    rows
        How many, where that is known.
    """

    key: str
    place: list[Any]
    rows: int | None = None


@dataclass(frozen=True)
class Broken:
    """An input that cannot even be handed over, and why."""

    reason: str


class Source(ABC):
    """Inputs with ids, chunk by chunk.

    Attributes
    ----------
    named
        Whether ids belong to the inputs (paths, keys, a column), or are but the numbers of rows, which move when the
        source changes.
    """

    named: bool = True

    @abstractmethod
    def chunks(self) -> Iterator[Chunk]:
        """All chunks in order; those that were there before keep their keys when inputs are added at the end."""

    @abstractmethod
    def read(self, chunk: Chunk) -> Iterator[tuple[str, Any]]:
        """(Id, input) of each input of a chunk: bytes, a path, a text, a vector, None, or ``Broken``."""

    def rows(self) -> int | None:
        """How many inputs there are, where that can be known without reading them."""
        return None


def chunk_size(rows: int | None) -> int:
    """How many inputs to put in a chunk: some hundred chunks, each neither tiny nor so large that losing it hurts.

    Examples
    --------
    >>> chunk_size(60_000), chunk_size(1_000_000), chunk_size(1_000_000_000)
    (1024, 4096, 65536)
    """
    size = SMALLEST_CHUNK
    while size < _LARGEST_CHUNK and (rows or 0) > size * _CHUNKS:
        size *= 2
    return size
