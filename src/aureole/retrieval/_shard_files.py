"""The files of a sharded gallery: its manifest, and the journal of a change that several shards take part in."""

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from aureole._io import reporting_writes
from aureole.errors import DamagedGalleryError, InvalidInputError, MissingInputError
from aureole.retrieval._faiss_files import (
    FAILURES,
    durable_file,
    pack_rows,
    read_arrays,
    unpack_rows,
)
from aureole.retrieval._integrity import read_json_file, reading
from aureole.retrieval._schema import Rows, Schema, pack_strings, unpack_strings

SUFFIX = ".shards"
MANIFEST = "manifest.json"
_FORMAT = "aureole-shards-1"
_JOURNAL = "journal.safetensors"
_MAX_SHARDS = 1024
_LOCAL = (".lance", ".faiss")


@dataclass(frozen=True)
class Manifest:
    """What a sharded gallery consists of.

    Attributes
    ----------
    schema
        The schema of every shard.
    shards
        Addresses of the shards; a relative one is a path in the folder of the manifest.
    generation
        How often the rows were redistributed; part of the shards' names.
    """

    schema: Schema
    shards: tuple[str, ...]
    generation: int = 0

    def place(self, ids: Sequence[str]) -> np.ndarray:
        """The shard of each id: a hash of the id, the same on every machine and in every version."""
        return np.array([zlib.crc32(name.encode()) % len(self.shards) for name in ids], np.int64)

    def next_generation(self, count: int) -> "Manifest":
        """The manifest after the rows were distributed to ``count`` new Lance tables in the folder."""
        if not 1 <= count <= _MAX_SHARDS:
            raise InvalidInputError(f"a gallery has 1 to {_MAX_SHARDS} shards, but got {count}.")
        generation = self.generation + 1
        shards = tuple(f"{generation}-{i}.lance" for i in range(count))
        return replace(self, shards=shards, generation=generation)


def read_manifest(folder: Path) -> Manifest:
    """The manifest in a folder, which is validated."""
    path = folder / MANIFEST
    try:
        found = read_json_file(path, _FORMAT)
    except FileNotFoundError as error:
        raise MissingInputError(
            f"{folder} holds no gallery: {MANIFEST} does not exist. `aureole index copy` creates one."
        ) from error
    shards: list[Any] = found["shards"] if isinstance(found.get("shards"), list) else []
    generation: Any = found.get("generation")
    valid = 1 <= len(shards) <= _MAX_SHARDS and all(_is_shard(shard) for shard in shards)
    if not valid or len(set(shards)) != len(shards) or type(generation) is not int:
        raise DamagedGalleryError(f"{path} is damaged: its shards or its generation are invalid.")
    return Manifest(Schema.from_json(found.get("schema"), str(path)), tuple(shards), generation)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest in a folder, atomically and durably."""
    values = {
        "format": _FORMAT,
        "schema": manifest.schema.to_json(),
        "shards": list(manifest.shards),
        "generation": manifest.generation,
    }
    with durable_file(folder / MANIFEST) as file:
        file.write(json.dumps(values, indent=1).encode())


def write_journal(folder: Path, rows: Rows, removed: Sequence[str]) -> None:
    """Save a change before any shard is written: the rows to add or replace, and the ids to remove."""
    from safetensors.numpy import save

    text, ends = pack_strings(list(removed))
    with durable_file(folder / _JOURNAL) as file:
        file.write(save({**pack_rows(rows), "removed.text": text, "removed.ends": ends}))


def read_journal(folder: Path, schema: Schema) -> tuple[Rows, list[str]] | None:
    """(Rows added or replaced, ids removed) of an interrupted change, or None."""
    if not (folder / _JOURNAL).exists():
        return None
    arrays = read_arrays(folder, _JOURNAL)
    with reading(str(folder / _JOURNAL), *FAILURES):
        removed = unpack_strings(arrays["removed.text"], arrays["removed.ends"])
        return unpack_rows(arrays, schema), removed


def remove_journal(folder: Path) -> None:
    """Remove the journal of a change that all shards have."""
    with reporting_writes(folder / _JOURNAL):
        (folder / _JOURNAL).unlink(missing_ok=True)


def _is_shard(shard: Any) -> bool:
    """Whether the address of a shard is a name in the folder or an address elsewhere, not a path that leads out."""
    if not isinstance(shard, str) or not shard or "\0" in shard or len(shard) > 4096:
        return False
    if "://" in shard:
        return True
    return Path(shard).name == shard and shard.endswith(_LOCAL)
