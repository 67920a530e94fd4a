"""A folder of pictures as a source: one input for each file, whose id is its path below the folder."""

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from aureole.data import ENDINGS
from aureole.scale._source import Chunk, Source, chunk_size


class FolderSource(Source):
    """The pictures of a folder and of those below it, in the order of their names; hidden files are left out.

    Only the names of one chunk, and of the folders on the way to it, are in memory.
    """

    def __init__(self, path: Path, rows_per_chunk: int | None = None) -> None:
        self._path = path
        self.rows_per_chunk = rows_per_chunk or chunk_size(self.rows())

    def chunks(self) -> Iterator[Chunk]:
        """So many files each; the key tells the names, so that other names are other chunks."""
        names: list[str] = []
        number = 0
        for name in walk(self._path, ENDINGS):
            names.append(name)
            if len(names) == self.rows_per_chunk:
                yield _chunk(number, names)
                number, names = number + 1, []
        if names:
            yield _chunk(number, names)

    def read(self, chunk: Chunk) -> Iterator[tuple[str, Path]]:
        """(Path below the folder, path); the file is read where it is decoded."""
        for name in chunk.place:
            yield name.encode("utf-8", "backslashreplace").decode(), self._path / name

    def rows(self) -> int:
        """The number of files, counted by a walk through the folders."""
        return sum(1 for _ in walk(self._path, ENDINGS))


def walk(folder: Path, endings: tuple[str, ...]) -> Iterator[str]:
    """The files below a folder whose names end so, as sorted paths below it; links to folders are not followed."""

    def below(place: str, prefix: str) -> Iterator[str]:
        with os.scandir(place) as found:
            entries = sorted(
                (entry.name, entry.is_dir(follow_symlinks=False))
                for entry in found
                if not entry.name.startswith(".")
            )
        for name, is_folder in entries:
            if is_folder:
                yield from below(f"{place}/{name}", f"{prefix}{name}/")
            elif name.lower().endswith(endings):
                yield prefix + name

    yield from below(str(folder), "")


def _chunk(number: int, names: list[str]) -> Chunk:
    digest = sha256("\0".join(names).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return Chunk(f"{number:08d}-{digest}", list(names), len(names))
