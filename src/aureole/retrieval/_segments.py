"""Durable rows in a folder: segments of numbers and one manifest that names those that count.

A change writes its segment, then a new manifest, and renames it over the old: after a crash the folder holds the old
state or the new, and nothing between. Writers take turns by a lock on a file. Segments are safetensors: no code is
stored, and none is run.
"""

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from aureole.errors import InvalidInputError, MissingInputError
from aureole.retrieval._rows import Rows, Schema, fits, strings, text_of

_FORMAT = "aureole-segments-1"
_MANIFEST, _LOCK = "manifest.json", "lock"


class Folder:
    """A folder with segments, whose state is the manifest: ``{"format", "schema", "log", "notes", "index"}``.

    The log lists, in order, what was done: ``{"rows": file}`` or ``{"deleted": file}``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(
        cls, path: Path, schema: Schema, rows: Rows
    ) -> tuple["Folder", list[dict[str, str]]]:
        """(A new folder with its first rows, its log), by one publish; refused where one holds a manifest."""
        folder = cls(path)
        path.mkdir(parents=True, exist_ok=True)
        with folder.locked():
            if (path / _MANIFEST).exists():
                raise InvalidInputError(
                    f"{path} holds a gallery already. Open it, or delete the folder first."
                )
            log = [folder.add("rows", pack_rows(rows))] if len(rows) else []
            state = {"schema": schema.to_json(), "log": log, "notes": {}, "index": None}
            folder.publish({"format": _FORMAT, **state})
        return folder, log

    def manifest(self) -> dict[str, Any]:
        """The present state; an error says why there is none."""
        path = self.path / _MANIFEST
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise self._missing() from error
        except ValueError as error:
            raise InvalidInputError(f"{path} is not JSON: {error}.") from error
        if not isinstance(values, dict) or values.get("format") != _FORMAT:
            raise InvalidInputError(f"{path} does not have the format {_FORMAT!r}.")
        return values

    def stamp(self) -> tuple[int, int]:
        """What changes whenever a manifest is published."""
        try:
            status = (self.path / _MANIFEST).stat()
        except FileNotFoundError as error:
            raise self._missing() from error
        return status.st_ino, status.st_mtime_ns

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the writers' lock; a dead writer's lock is free."""
        if not self.path.is_dir():
            raise self._missing()
        with open(self.path / _LOCK, "a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(handle, fcntl.LOCK_UN)

    def add(self, kind: str, arrays: dict[str, np.ndarray]) -> dict[str, str]:
        """Write a segment, durably, and return its entry for the log."""
        from safetensors.numpy import save

        name = f"{kind}-{secrets.token_hex(8)}.safetensors"
        self._write(name, save(arrays))
        return {kind: name}

    def read(self, name: str) -> dict[str, np.ndarray]:
        """The arrays of a segment."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        if Path(name).name != name:
            raise InvalidInputError(f"{self.path} names {name!r}, which is outside it.")
        try:
            return load_file(self.path / name)
        except (OSError, SafetensorError) as error:
            raise InvalidInputError(f"{self.path / name} cannot be read: {error}.") from error

    def publish(self, manifest: dict[str, Any]) -> None:
        """Make a manifest the present state, durably."""
        self._write(_MANIFEST, json.dumps(manifest, allow_nan=False).encode())

    def _write(self, name: str, content: bytes) -> None:
        part = self.path / f"{name}.{secrets.token_hex(8)}.part"
        try:
            with open(part, "wb") as handle:
                handle.write(content)
                handle.flush()
                os.fsync(handle.fileno())
            part.replace(self.path / name)
        except BaseException:
            part.unlink(missing_ok=True)  # a full disk is not filled further
            raise
        self.sync()

    def _missing(self) -> MissingInputError:
        return MissingInputError(
            f"{self.path} holds no gallery: no {_MANIFEST}. `aureole index build` makes one."
        )

    def sync(self) -> None:
        """Make the folder's names durable."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def pack_rows(rows: Rows) -> dict[str, np.ndarray]:
    """Rows as plain arrays."""
    arrays = {"mu": np.ascontiguousarray(rows.mu), "kappa": np.ascontiguousarray(rows.kappa)}
    arrays["id.text"], arrays["id.ends"] = text_of(rows.ids.tolist())
    for name, column in rows.payload.items():
        if column.dtype == object:
            arrays[f"payload.{name}.text"], arrays[f"payload.{name}.ends"] = text_of(
                column.tolist()
            )
        else:
            arrays[f"payload.{name}"] = column
    return arrays


def unpack_rows(arrays: dict[str, np.ndarray], schema: Schema) -> Rows:
    """Rows from plain arrays that may come from anywhere."""
    try:
        ids = _strings(arrays["id.text"], arrays["id.ends"])
        payload = {}
        for name, kind in schema.columns.items():
            if kind == "text":
                column = np.empty(len(ids), dtype=object)
                pair = (arrays[f"payload.{name}.text"], arrays[f"payload.{name}.ends"])
                column[:] = _strings(*pair)
            else:
                column = arrays[f"payload.{name}"]
            payload[name] = column
        rows = Rows(strings(ids), arrays["mu"], arrays["kappa"], payload)
        shapes = {rows.kappa.shape, *(column.shape for column in payload.values())}
        if not fits(rows, schema) or shapes != {(len(ids),)}:
            raise ValueError("shapes or types that do not agree")
        mu, kappa = rows.mu, rows.kappa
        if mu.dtype != np.float32 or kappa.dtype != np.float32 or not np.isfinite(mu).all():
            raise ValueError("mu or kappa that is no float32 direction")
    except (KeyError, ValueError) as error:
        raise InvalidInputError(f"a segment is damaged: {error!r}.") from error
    return rows


def _strings(text: np.ndarray, ends: np.ndarray) -> list[str]:
    whole = text.tobytes()
    return [whole[a:b].decode() for a, b in pairwise([0, *ends.tolist()])]
