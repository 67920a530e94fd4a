"""The files of a FAISS gallery: its manifest, and rows as safetensors. Everything that is read is validated."""

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from aureole._io import atomic_file
from aureole.errors import DamagedGalleryError, InvalidInputError, MissingInputError
from aureole.records import file_hash
from aureole.retrieval._compression import Compression
from aureole.retrieval._integrity import (
    has_unit_length,
    read_json_file,
    reading,
    valid_kappa,
)
from aureole.retrieval._schema import (
    Rows,
    Schema,
    matches_schema,
    object_array,
    pack_strings,
    unpack_strings,
)
from aureole.retrieval._store import check_build

FORMAT = "aureole-segments-1"
MANIFEST = "manifest.json"
FAILURES = (KeyError, TypeError, ValueError, IndexError, MemoryError, OverflowError)


@contextmanager
def durable_file(path: Path) -> Iterator[Any]:
    """A file that replaces ``path`` atomically, after its content has reached the disk."""
    with atomic_file(path) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_arrays(folder: Path, kind: str, arrays: dict[str, np.ndarray]) -> tuple[str, str]:
    """Write arrays to a new file, and return its name and SHA-256."""
    from safetensors.numpy import save

    name, content = f"{kind}-{secrets.token_hex(8)}.safetensors", save(arrays)
    with durable_file(folder / name) as file:
        file.write(content)
    return name, hashlib.sha256(content).hexdigest()


def read_arrays(folder: Path, name: str, digest: str | None = None) -> dict[str, np.ndarray]:
    """The arrays in a file, whose SHA-256 must be ``digest`` if it is known."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    check_digest(folder / name, digest)
    with reading(str(folder / name), OSError, SafetensorError, *FAILURES):
        return load_file(folder / name)


def check_digest(path: Path, digest: str | None) -> None:
    """Raise if the SHA-256 of a file is known and differs."""
    if digest is None:  # written by a version that did not save it
        return
    with reading(str(path), OSError):
        found = file_hash(path)
    if found != digest:
        raise DamagedGalleryError(
            f"{path} is damaged: it cannot be read as it was written (another SHA-256). Restore it from a copy."
        )


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a gallery; its structure is validated, the schema is not."""
    path = folder / MANIFEST
    try:
        manifest = read_json_file(path, FORMAT)
    except FileNotFoundError as error:
        raise missing(folder) from error
    problem = _manifest_problem(manifest)
    if problem is not None:
        raise DamagedGalleryError(f"{path} is damaged: {problem}.")
    return manifest


def _manifest_problem(manifest: dict[str, Any]) -> str | None:
    """What is wrong with the structure of an untrusted manifest, or None."""
    log, notes, index = (manifest.get(name) for name in ("log", "notes", "index"))
    digests = manifest.get("sha256", {})
    if not isinstance(log, list) or not all(_is_entry(entry) for entry in log):
        return "its log is invalid"
    for name, texts in (("notes", notes), ("sha256", digests)):
        if not isinstance(texts, dict) or not all(isinstance(v, str) for v in texts.values()):
            return f"{name} must be texts by name"
    files = [name for entry in log for name in entry.values()]
    if index is not None:
        if not isinstance(index, dict) or index.keys() - {"compression"} != {
            "file",
            "kind",
            "sizes",
        }:
            return "its approximate index is invalid"
        if not isinstance(index["kind"], str) or not isinstance(index["sizes"], dict):
            return "its approximate index has an invalid kind or sizes"
        try:
            check_build(index["kind"], index["sizes"])
            if "compression" in index:
                Compression.from_json(index["compression"], "its index")
        except InvalidInputError as error:
            return str(error).removesuffix(".")
        files.append(index["file"])
    for name in files:
        if not isinstance(name, str) or Path(name).name != name or "\0" in name:
            return f"it names {repr(name)[:60]}, which is outside its folder"
    return None


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and len(entry) == 1 and entry.keys() <= {"rows", "deleted"}


def missing(folder: Path) -> MissingInputError:
    """The error for a folder without a manifest."""
    return MissingInputError(
        f"{folder} holds no gallery: {MANIFEST} is missing. `aureole index build` creates one."
    )


def pack_rows(rows: Rows) -> dict[str, np.ndarray]:
    """Rows as arrays of numbers."""
    arrays = {"mu": np.ascontiguousarray(rows.mu), "kappa": np.ascontiguousarray(rows.kappa)}
    texts = {"id": rows.ids}
    for name, column in rows.payload.items():
        (texts if column.dtype == object else arrays)[f"payload.{name}"] = column
    for name, column in texts.items():
        arrays[f"{name}.text"], arrays[f"{name}.ends"] = pack_strings(column.tolist())
    return arrays


def unpack_rows(arrays: dict[str, np.ndarray], schema: Schema) -> Rows:
    """Rows from untrusted arrays; raises KeyError or ValueError for invalid ones."""

    def text(name: str) -> np.ndarray:
        return object_array(unpack_strings(arrays[f"{name}.text"], arrays[f"{name}.ends"]))

    payload = {
        name: text(f"payload.{name}") if kind == "text" else arrays[f"payload.{name}"]
        for name, kind in schema.columns.items()
    }
    mu, kappa = arrays["mu"], arrays["kappa"]
    rows = Rows(text("id"), mu, kappa, payload)
    shapes = {kappa.shape, *(column.shape for column in payload.values())}
    if not matches_schema(rows, schema) or shapes != {(len(rows),)}:
        raise ValueError("shapes or types differ from the schema")
    if mu.dtype != np.float32 or kappa.dtype != np.float32:
        raise ValueError("mu or kappa is not a float32 array")
    if not (has_unit_length(mu).all() and valid_kappa(kappa).all()):
        raise ValueError("a mu has another length than 1, or a kappa is negative or NaN")
    return rows


def deleted_places(arrays: dict[str, np.ndarray], count: int) -> list[int]:
    """The positions of deleted rows, of a gallery of ``count`` rows, from untrusted arrays."""
    places = arrays["places"]
    if places.ndim != 1 or places.dtype != np.int64 or len(np.unique(places)) != len(places):
        raise ValueError("the deleted positions are not distinct integers")
    if len(places) and not 0 <= places.min() <= places.max() < count:
        raise ValueError("a deleted position does not exist")
    return places.tolist()
