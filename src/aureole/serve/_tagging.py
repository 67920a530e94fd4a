"""Tags over HTTP: what the routes of ``/v1/tags`` answer, and who may write."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from aureole.errors import MissingPackageError, WriteError
from aureole.retrieval import (
    TagFormat,
    TagKind,
    Tags,
    encode_tag_table,
    order_queue,
    queue_rows,
    tag_table,
)
from aureole.serve._errors import LOG, ApiError, map_failures
from aureole.serve._service import Service

T = TypeVar("T")
MAX_TAGGED = 10_000  # items of a request
_MAX_IDS = 200_000  # of a tag
_MAX_ENTRIES = 10_000  # of an answer
_BATCH = 64  # items that are searched together
_QUEUE_SECONDS = 15.0
MEDIA_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/jsonl",
    "parquet": "application/vnd.apache.parquet",
}


def check_same_site(headers: list[tuple[bytes, bytes]]) -> None:
    """Raise a 403 if a browser sent the request for a page of another site.

    Browsers state the relation of the page to the service in Sec-Fetch-Site, and older ones its address in Origin;
    neither can be changed by a page. Programs send neither, and no page can make a browser omit both. A key alone is no
    protection, since browsers repeat a password that was typed for Basic authentication.
    """
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        found.setdefault(name, []).append(value)
    sites, origins = found.get(b"sec-fetch-site", []), found.get(b"origin", [])
    if sites:
        allowed = all(site in (b"same-origin", b"none") for site in sites)
    else:
        hosts = [host.decode("latin-1").lower() for host in found.get(b"host", [])]
        allowed = all([_host_of(origin)] == hosts for origin in origins)
    if not allowed:
        raise ApiError("forbidden", "a page of another site cannot change anything here.")


def _host_of(origin: bytes) -> str | None:
    try:
        return urlsplit(origin.decode("latin-1").lower()).netloc
    except ValueError:
        return None


class TagService:
    """The tags of a gallery for the routes of ``/v1/tags``; ``close`` stops its threads.

    Parameters
    ----------
    tags
        The tags, or None if the gallery has none.
    refusal
        Reason why changes are refused; None if they are allowed.
    """

    def __init__(self, tags: Tags | None, *, refusal: str | None = None) -> None:
        if tags is None:
            refusal = "this service has no tags: start it with --tags FILE."
        elif tags.read_only and refusal is None:
            refusal = "the tags are read-only."
        self._tags, self._refusal = tags, refusal
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="aureole-tags")

    def close(self) -> None:
        """Finish the changes in progress, then stop the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def about(self) -> dict[str, Any]:
        """Whether there are tags, who may write, the last change, and all tags with their counts."""
        answer = {"available": self._tags is not None, "writable": self._refusal is None}
        answer |= {"reason": self._refusal, "change": 0, "counts": []}
        if self._tags is None:
            return answer
        tags = self._tags
        change, counts = await self._run(lambda: (tags.last_change(), tags.counts()))
        listed = [{"kind": kind, "value": value, "count": n} for kind, value, n in counts]
        return answer | {"change": change, "counts": listed}

    async def entries(
        self, ids: list[str] | None, kind: TagKind | None, value: str | None
    ) -> dict[str, Any]:
        """The entries of some items, or of a kind and value."""
        tags = self._readable()

        def work() -> list[dict[str, Any]]:
            found = []
            for entry in tags.entries(ids=ids, kind=kind, value=value):
                found.append(asdict(entry))
                if len(found) > _MAX_ENTRIES:
                    break
            return found

        found = await self._run(work)
        return {"entries": found[:_MAX_ENTRIES], "truncated": len(found) > _MAX_ENTRIES}

    async def ids(self, kind: TagKind, value: str | None) -> dict[str, Any]:
        """The ids of the items that have a tag."""
        tags = self._readable()
        found = await self._run(lambda: tags.ids(kind, value))
        return {"ids": found[:_MAX_IDS], "truncated": len(found) > _MAX_IDS}

    async def add(
        self, service: Service, ids: list[str], kind: TagKind, value: str, author: str
    ) -> dict[str, Any]:
        """Add an entry to items of the gallery: to all or none."""
        tags = self._writable()
        await check_items(service, [*ids, value] if kind == "duplicate" else ids)
        return asdict(await self._run(lambda: tags.add(ids, kind, value, author=author)))

    async def remove(
        self, ids: list[str], kind: TagKind, value: str | None, author: str
    ) -> dict[str, Any]:
        """Remove entries of items."""
        tags = self._writable()
        return asdict(await self._run(lambda: tags.remove(ids, kind, value, author=author)))

    async def undo(self, number: int, author: str) -> dict[str, Any]:
        """Revert a change."""
        tags = self._writable()
        return asdict(await self._run(lambda: tags.undo(number, author=author)))

    async def export(
        self, service: Service, what: Literal["entries", "queue"], format: TagFormat
    ) -> bytes:
        """The content of a file with all entries, or with the queue of items to relabel."""
        tags = self._readable()
        if what == "entries":
            return await self._run(lambda: encode_tag_table(tag_table(tags.entries()), format))
        entries, notes = await self._run(
            lambda: (
                {entry.id: entry for entry in tags.entries(kind="relabel")},
                list(tags.entries(kind="note")),
            )
        )
        texts: dict[str, list[str]] = {}
        for note in notes:
            texts.setdefault(note.id, []).append(note.value)
        rows, missing = await _queue(service, list(entries))
        return await self._run(
            lambda: encode_tag_table(order_queue(rows, entries, texts, missing).columns, format)
        )

    def _readable(self) -> Tags:
        if self._tags is None:
            raise ApiError("invalid_input", str(self._refusal))
        return self._tags

    def _writable(self) -> Tags:
        if self._refusal is not None:
            raise ApiError("forbidden", self._refusal)
        return self._readable()

    async def _run(self, work: Callable[[], T]) -> T:
        """The result of blocking work; a change that has begun is finished even if the client is gone."""
        loop = asyncio.get_running_loop()
        with map_failures("file of tags"):
            try:
                return await loop.run_in_executor(self._pool, work)
            except WriteError as error:
                LOG.error("%s", error)
                message = "the tags cannot be stored now; see the service's log. Try again."
                raise ApiError("unavailable", message, retry_after=1) from error
            except MissingPackageError as error:
                raise ApiError("invalid_input", str(error)) from error


async def check_items(service: Service, ids: list[str]) -> None:
    """Raise a 422 that names an id which the gallery does not have."""
    names = list(dict.fromkeys(ids))
    await service.engine.call(lambda index: index.fetch(names))


async def _queue(service: Service, ids: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """(The rows of the queue, ids that the gallery no longer has), searched in batches between other requests."""
    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    columns = (service.label_column, service.text_column)
    start = time.monotonic()
    for i in range(0, len(ids), _BATCH):
        if time.monotonic() - start > _QUEUE_SECONDS:
            message = (
                f"{len(ids):,} items take too long to search: run `aureole tags export --queue`."
            )
            raise ApiError("invalid_input", message)
        part = ids[i : i + _BATCH]
        found, lost = await service.engine.call(
            lambda index, p=part: queue_rows(index, p, *columns)
        )
        rows += found
        missing += lost
    return rows, missing
