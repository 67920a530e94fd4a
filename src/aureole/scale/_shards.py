"""A WebDataset as a source: tar files of samples, each a few files of one name with different endings."""

import io
import tarfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from aureole.data import ENDINGS
from aureole.scale._folder import walk
from aureole.scale._source import LARGEST_INPUT, Broken, Chunk, Source

SHARDS = (".tar", ".tar.gz", ".tgz")
_ENDINGS = {"image": ENDINGS, "text": (".txt", ".text"), "vector": (".npy",)}


class ShardSource(Source):
    """The samples of tar files, a chunk for each file; ids are ``shard/key``, the shard without its ending.

    A sample's input is its first file with an ending that fits, or with the one that ``column`` names. A shard is read
    from its beginning to its end, so that compressed ones and pipes will do; nothing is ever unpickled.
    """

    def __init__(self, path: Path, kind: str, column: str | None = None) -> None:
        self._path = path
        self._endings = _ENDINGS[kind] if column is None else (f".{column.lstrip('.').lower()}",)
        self._kind = kind
        self._files = [path.name] if path.is_file() else list(walk(path, SHARDS))
        self._root = path.parent if path.is_file() else path

    def chunks(self) -> Iterator[Chunk]:
        """One for each tar file; the key tells its name and size."""
        for name in self._files:
            size = (self._root / name).stat().st_size
            digest = sha256(f"{name}\0{size}".encode("utf-8", "surrogateescape")).hexdigest()
            yield Chunk(digest[:24], [name])

    def read(self, chunk: Chunk) -> Iterator[tuple[str, Any]]:
        """(Shard/key, input) of each sample; what a damaged shard no longer gives is one ``Broken`` of its name."""
        (name,) = chunk.place
        shown = name.encode("utf-8", "backslashreplace").decode()
        stem = next(shown[: -len(end)] for end in SHARDS if shown.lower().endswith(end))
        key, found = None, None
        try:
            with tarfile.open(self._root / name, "r|*") as shard:
                for member in shard:
                    if not member.isfile() or member.name.split("/")[-1].startswith("."):
                        continue
                    this, ending = _split(member.name)
                    if this != key:
                        if key is not None:
                            yield f"{stem}/{key}", self._lacks() if found is None else found
                        key, found = this, None
                    if found is None and ending.endswith(self._endings):
                        found = self._input(shard, member)
            if key is not None:
                yield f"{stem}/{key}", self._lacks() if found is None else found
        except (tarfile.TarError, OSError, EOFError) as error:
            if key is not None and found is not None:
                yield f"{stem}/{key}", found
            yield shown, Broken(f"the shard cannot be read to its end: {error}.")

    def _input(self, shard: tarfile.TarFile, member: tarfile.TarInfo) -> Any:
        if member.size > LARGEST_INPUT:
            return Broken(f"it has {member.size:,} bytes; at most {LARGEST_INPUT:,} are read.")
        handle = shard.extractfile(member)
        assert handle is not None  # it is a file
        data = handle.read()
        if len(data) < member.size:
            raise EOFError(f"{member.name} ends early")
        if self._kind == "image":
            return data or Broken("it is empty.")
        try:
            if self._kind == "text":
                return data.decode()
            return np.load(io.BytesIO(data), allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            return Broken(f"{member.name.split('/')[-1]} cannot be read: {error}.")

    def _lacks(self) -> Broken:
        return Broken(f"the sample has no file that ends in {', '.join(self._endings)}.")


def _split(name: str) -> tuple[str, str]:
    """(Key, ending): a name up to the first point of its last part, and the rest in small letters."""
    folder, _, last = name.rpartition("/")
    stem, _, ending = last.partition(".")
    key = f"{folder}/{stem}" if folder else stem
    return key.removeprefix("./").encode("utf-8", "backslashreplace").decode(), f".{ending.lower()}"
