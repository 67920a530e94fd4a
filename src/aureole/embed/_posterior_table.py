"""PosteriorTable: a Lance gallery that a job fills, and the table of inputs without a posterior beside it.

What is written is the only record of progress: an input is done if one of the two tables has its id. So a job that is
killed between two commits, or in one, resumes with the inputs that are in neither.
"""

import fcntl
import json
import shutil
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from aureole.data._addresses import lance_options
from aureole.embed._embedder import Embedder
from aureole.engines._addresses import is_local, shown_address
from aureole.engines._lance import (
    SCHEMA_KEY,
    LanceStore,
    lance_package,
    locked,
    open_table,
    table_exists,
)
from aureole.engines._schema import Origin, Rows, Schema
from aureole.errors import InvalidInputError

COLUMNS = {"source": "text", "model": "text"}
_JOB = "embed"  # name of the note that describes the job
_ROWS = 65_536  # rows in memory before they are written
_COMMIT_SECONDS = 2.0  # a crash loses the rows since the last commit


class Known:
    """The texts that were stored before, as sorted 64-bit hashes: 8 bytes per row."""

    def __init__(self, hashes: Iterable[int] = ()) -> None:
        self._sorted = np.unique(np.fromiter(hashes, np.uint64))

    def has(self, texts: list[str]) -> np.ndarray:
        """Return for each text whether it is known."""
        found = hashes_of(texts)
        places = np.searchsorted(self._sorted, found)
        known = np.zeros(len(found), bool)
        inside = places < len(self._sorted)
        known[inside] = self._sorted[places[inside]] == found[inside]
        return known


def hashes_of(texts: list[str]) -> np.ndarray:
    """Return a 64-bit hash of each text, which is the same in every process."""
    digests = b"".join(blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, np.uint64)


class PosteriorTable:
    """The posteriors of one source by one model: a gallery with the columns ``source`` and ``model``.

    ``source`` is the SHA-256 of the input's bytes, truncated to 128 bits; ``model`` the first 12 hex digits of the
    SHA-256 of the weights, which the origin of the gallery has in full. Only one job may fill a table at a time.
    """

    def __init__(self, out: str, embedder: Embedder, job: dict[str, Any]) -> None:
        self.where = table_address(out, embedder.weights)
        self.errors = f"{self.where.removesuffix('/').removesuffix('.lance')}.errors.lance"
        self._model, self._is_new = embedder.weights[:12], False
        self._schema = Schema(embedder.dim, COLUMNS)
        self._waiting: list[Any] = []
        self._last = time.monotonic()
        if not table_exists(self.where):
            self._create(embedder)
        store = LanceStore.open(self.where)
        self._schema, held = store.schema, store.read_note(_JOB)
        if held is None:  # new, or the process that created it died at once
            origin = Origin(embedder.kappa_pos, embedder.weights, embedder.fingerprint)
            store.write_note("origin", origin.to_json())
            store.write_note(_JOB, json.dumps(job))
        elif (before := json.loads(held)) != job:
            name = next(name for name in {**before, **job} if before.get(name) != job.get(name))
            raise InvalidInputError(
                f"{self.where} was written with {name} {before.get(name)!r}, not {job.get(name)!r}. Repeat the "
                "original command to resume it, or choose another --out."
            )
        self._lock: Any = None
        self.done, self.contents, self._new = Known(), Known(), set[int]()

    def __enter__(self) -> "PosteriorTable":
        self._lock = self._locked()
        self.done, self.contents = Known(self._hashes()), Known(self._hashes(contents=True))
        return self

    def __exit__(self, *error: object) -> None:
        """Write what waits, also after an error; remove a new local table that has no row."""
        try:
            self._commit()
        finally:
            if self._lock is not None:
                self._lock.close()
            if self._is_new and error[0] and is_local(self.where) and not any(self.counts()):
                shutil.rmtree(self.where, ignore_errors=True)
                Path(f"{self.where.removesuffix('/')}.lock").unlink(missing_ok=True)

    def add(self, rows: Any) -> tuple[int, int]:
        """Add a worker's rows, which are committed every few seconds; return the numbers of posteriors and faults."""
        import pyarrow as pa

        reasons = rows["reason"].to_pylist()
        for i, key in enumerate(hashes_of(rows["id"].to_pylist()).tolist()):
            if key in self._new:
                reasons[i] = reasons[i] or "another input has the same id."
            self._new.add(key)
        place = rows.column_names.index("reason")
        self._waiting.append(rows.set_column(place, "reason", pa.array(reasons, pa.string())))
        if (
            time.monotonic() - self._last >= _COMMIT_SECONDS
            or sum(map(len, self._waiting)) >= _ROWS
        ):
            self._commit()
        faults = sum(reason is not None for reason in reasons)
        return len(reasons) - faults, faults

    def counts(self) -> tuple[int, int]:
        """Return the numbers of committed posteriors and faults."""
        faults = open_table(self.errors).count_rows() if table_exists(self.errors) else 0
        return open_table(self.where).count_rows(), faults

    def finish(self) -> None:
        """Store the median kappa of all rows as the typical kappa, and remove versions older than an hour."""
        self._commit()
        with locked(self.where):
            table = open_table(self.where)
            kappa = table.to_table(columns=["kappa"])["kappa"].to_numpy()
            if len(kappa):
                middle = (len(kappa) - 1) // 2
                typical = min(float(np.partition(kappa, middle)[middle]), 1e30)
                schema = json.dumps(replace(self._schema, typical_kappa=typical).to_json())
                table.update_schema_metadata({SCHEMA_KEY: schema})
            table.cleanup_old_versions(older_than=timedelta(hours=1))

    def _create(self, embedder: Embedder) -> None:
        texts = np.zeros(0, object)
        mu, kappa = np.zeros((0, embedder.dim), np.float32), np.zeros(0, np.float32)
        payload = dict.fromkeys(COLUMNS, texts)
        LanceStore.create(self.where, self._schema, Rows(texts, mu, kappa, payload))
        self._is_new = True

    def _locked(self) -> Any:
        """Return a file that no other job holds; on an object store there is none."""
        if not is_local(self.where):
            return None
        handle = open(Path(self.where) / "embed.lock", "a")  # noqa: SIM115 - closed at the end of the job
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.close()
            raise InvalidInputError(
                f"another aureole embed is writing to {self.where}. Wait until it ends, or stop it."
            ) from error
        return handle

    def _hashes(self, *, contents: bool = False) -> Iterable[int]:
        """Yield the hashes of all ids, or of ids together with the hash of what was read."""
        for where in (self.where, self.errors):
            if table_exists(where):
                columns = ["id", "source"] if contents else ["id"]
                for batch in open_table(where).scanner(columns=columns).to_batches():
                    texts = batch["id"].to_pylist()
                    if contents:
                        sources = batch["source"].to_pylist()
                        texts = [content_key(*pair) for pair in zip(texts, sources, strict=True)]
                    yield from hashes_of(texts).tolist()

    def _commit(self) -> None:
        import pyarrow as pa

        waiting, self._waiting, self._last = self._waiting, [], time.monotonic()
        if not waiting:
            return
        rows = pa.concat_tables(waiting)
        rows = rows.append_column("model", pa.array([self._model] * len(rows), pa.string()))
        good = rows["reason"].is_null()
        bad = rows["reason"].is_valid()
        self._write(self.errors, rows.filter(bad), ["id", "reason", "source"])
        self._write(self.where, rows.filter(good), ["id", "mu", "kappa", "source"])

    def _write(self, where: str, rows: Any, columns: list[str]) -> None:
        if not len(rows):
            return
        with locked(where):
            lance_package().write_dataset(
                rows.select([*columns, "model"]).combine_chunks(),
                where,
                mode="append" if table_exists(where) else "create",
                storage_options=lance_options(where),
            )


def content_key(name: str, source: str) -> str:
    """Return a key that identifies an id together with the hash of its input."""
    return f"{name}\0{source}"


def table_address(out: str, weights: str) -> str:
    """Return the address of a model's rows: ``out`` for the first model, ``out-HASH`` for any other."""
    if not out.removesuffix("/").endswith(".lance") or out.endswith(".errors.lance"):
        raise InvalidInputError(
            f"the name of the output table must end in .lance, but is {shown_address(out)}."
        )
    if not table_exists(out):
        return out
    store = LanceStore.open(out)
    written, origin = store.read_note(_JOB), store.read_note("origin")
    if written is None and store.count():
        raise InvalidInputError(
            f"{out} holds a gallery that aureole embed did not write. Choose another --out."
        )
    if written is None or (origin and Origin.from_json(origin).weights == weights):
        return out
    return f"{out.removesuffix('/').removesuffix('.lance')}-{weights[:12]}.lance"
