"""The items of a gallery as lists: pages by kappa, the table of all items with its columns, and their pictures."""

import asyncio
import base64
import hashlib
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal
from urllib.parse import quote

import numpy as np
from fastapi import Header, Path, Query, Response

from aureole.caps import CredibleIndex
from aureole.data._image_files import find_picture, read_thumbnail
from aureole.errors import InvalidInputError, MissingInputError
from aureole.explorer._gallery_table import MAX_HITS, GalleryTable, table_version
from aureole.explorer._neighbourhood_map import MASSES, map_caps
from aureole.serve import _models as models
from aureole.serve._batching import Engine, fetch_items
from aureole.serve._errors import LOG, ApiError

ItemId = Annotated[str, Path(max_length=1024, description="Id of an item.")]
Offset = Annotated[int, Query(ge=0, le=2**40)]
Count = Annotated[int, Query(ge=1, le=500)]
Label = Annotated[str | None, Query(max_length=1000, description="Only items with this label.")]
IfNoneMatch = Annotated[str | None, Header()]
_LOOK = 10.0  # seconds between looks for changed rows


class Items:
    """Makes the fields of items, with their picture, label and text; ``folder`` holds pictures named after the ids.

    Thumbnails are decoded and re-encoded, so a file that is not a picture is never sent, whatever its name.
    """

    def __init__(
        self, folder: FilePath | None, label_column: str | None, text_column: str | None
    ) -> None:
        if folder is not None and not folder.is_dir():
            raise MissingInputError(
                f"the folder of pictures {folder} does not exist. Check the path."
            )
        self._folder = None if folder is None else folder.resolve()
        self.label_column, self.text_column = label_column, text_column
        self._has_picture = lru_cache(100_000)(lambda name: self._find(name) is not None)
        self._thumbnail = lru_cache(1000)(lambda path, side, _: read_thumbnail(path, side))

    def rows(
        self, ids: Sequence[str], kappa: Any, payload: dict[str, list[Any]]
    ) -> list[dict[str, Any]]:
        """The fields of items."""
        return [
            self._fields(name, value, {column: values[i] for column, values in payload.items()})
            for i, (name, value) in enumerate(zip(ids, kappa.tolist(), strict=True))
        ]

    def thumbnail(self, name: str, side: int, known: str) -> tuple[bytes | None, str]:
        """(A JPEG of at most ``side`` pixels in width and height, its ETag); None instead if ``known`` is its ETag."""
        path = self._find(name)
        if path is None:
            raise ApiError("not_found", f"item {name[:60]!r} has no picture.")
        status = path.stat()
        text = f"{path}\0{status.st_mtime_ns}\0{status.st_size}\0{side}"
        tag = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]
        try:
            return None if known == tag else self._thumbnail(path, side, tag), tag
        except InvalidInputError as error:
            LOG.warning("%s", error)
            message = f"the picture of {name[:60]!r} cannot be read; see the service's log."
            raise ApiError("not_found", message) from error

    def _find(self, name: str) -> FilePath | None:
        return None if self._folder is None else find_picture(self._folder, name)

    def _fields(self, name: str, kappa: float, payload: dict[str, Any]) -> dict[str, Any]:
        text = payload.get(self.text_column) if self.text_column else None
        return {
            "id": name,
            "kappa": kappa,
            "label": payload.get(self.label_column) if self.label_column else None,
            "text": None if text is None else str(text),
            "picture": f"/v1/pictures/{quote(name, safe='')}" if self._has_picture(name) else None,
            "payload": payload,
        }


class Listing:
    """Answers with lists of items. The table of all items is in memory; the items themselves come from the engine.

    The table is read again when rows have changed, at most every ten seconds. ``on_change`` is called after each read.
    Texts are searched in ``pool``, since a pass over them is slow.
    """

    def __init__(self, engine: Engine, pool: Executor, items: Items) -> None:
        index = engine.index
        self._engine, self._pool, self._format = engine, pool, items
        self._dim, self.columns = index.schema.dim, dict(index.schema.columns)
        self.on_change: Any = lambda: None
        self._read(index)

    async def items(
        self,
        order: Literal["ambiguous", "certain"] = "ambiguous",
        label: Label = None,
        offset: Offset = 0,
        limit: Count = 60,
    ) -> models.ItemsAnswer:
        """A page of items, least or most certain first."""
        await self._refresh()
        ids, total = self.table.page(order, offset, limit, label=label)
        return models.ItemsAnswer(items=await self.fetch(ids), total=total, offset=offset)

    async def item(self, id: ItemId) -> models.ItemAnswer:
        """An item with its posterior and credible caps."""
        columns = tuple(self.columns)
        posterior, payload = await self._engine.call(
            lambda index: fetch_items(index, [id], columns)
        )
        (row,) = self._format.rows([id], posterior.kappa, payload)
        (caps,) = map_caps(posterior.kappa.double().numpy(), MASSES, self._dim).tolist()
        rank = self.table.rank(row["kappa"])
        mu = posterior.mu[0].tolist()
        return models.ItemAnswer(**row, mu=mu, kappa_rank=rank, caps=cap_entries(caps))

    async def describe(self) -> dict[str, Any]:
        """The columns of the table of all items, whose rows are numbered by kappa."""
        await self._refresh()
        return self.table.describe()

    async def column(
        self,
        name: Annotated[str, Path(max_length=100, description="Name of a column.")],
        if_none_match: IfNoneMatch = None,
    ) -> Response:
        """All values of a column of numbers or categories, in row order."""
        table = self.table
        if name not in table.columns:
            raise ApiError("not_found", f"column {name[:60]!r} does not exist.")
        column = table.columns[name]
        if column.data is None:
            message = f"column {name[:60]!r} holds texts, which are searched by /v1/table/find."
            raise ApiError("invalid_input", message)
        headers = {"ETag": f'"{table.version}"', "Cache-Control": "private, no-cache"}
        if known_tag(if_none_match) == table.version:
            return Response(status_code=304, headers=headers)
        headers["X-Aureole-Type"] = column.type
        return Response(column.content(), media_type="application/octet-stream", headers=headers)

    async def rows(self, request: models.TableRowsRequest) -> dict[str, Any]:
        """Items by their row numbers."""
        table = self.table
        ids = _ids(table, request.rows)
        items = {item.id: item for item in await self.fetch(list(dict.fromkeys(ids)))}
        found = [items.get(name) for name in ids]
        return {"items": found}

    async def ids(self, request: models.TableIdsRequest) -> dict[str, Any]:
        """The ids of row numbers."""
        if request.version not in (None, self.table.version):
            raise ApiError("conflict", "the gallery has changed. Reload the page.")
        ids = _ids(self.table, request.rows)
        return {"ids": ids}

    async def find(
        self,
        text: Annotated[str, Query(min_length=1, max_length=200, description="In any case.")],
        column: Annotated[
            str | None, Query(max_length=100, description="id, or a column of texts; default: all.")
        ] = None,
    ) -> dict[str, Any]:
        """The rows whose id or text contains a text; at most 200,000."""
        table, loop = self.table, asyncio.get_running_loop()
        try:
            rows, truncated = await loop.run_in_executor(self._pool, table.find, text, column)
        except InvalidInputError as error:
            raise ApiError("invalid_input", str(error)) from error
        return _packed(table, rows, truncated=truncated)

    async def picture(
        self,
        id: ItemId,
        side: Annotated[
            int, Query(ge=64, le=1024, description="Maximum width and height in pixels.")
        ] = 256,
        if_none_match: IfNoneMatch = None,
    ) -> Response:
        """A thumbnail of an item's picture."""
        loop = asyncio.get_running_loop()
        jpeg, tag = await loop.run_in_executor(
            self._pool, self._format.thumbnail, id, side, known_tag(if_none_match)
        )
        headers = {"ETag": f'"{tag}"', "Cache-Control": "private, max-age=86400"}
        if jpeg is None:
            return Response(status_code=304, headers=headers)
        return Response(jpeg, media_type="image/jpeg", headers=headers)

    async def numbers_of(self, ids: Sequence[str]) -> dict[str, Any]:
        """The row numbers of the ids that exist, ascending, as ``find`` returns them."""
        table, loop = self.table, asyncio.get_running_loop()
        rows = await loop.run_in_executor(self._pool, table.numbers, ids[: MAX_HITS + 1])
        found = np.unique(np.array([row for row in rows if row is not None], np.uint32))
        return _packed(table, found[:MAX_HITS], truncated=len(ids) > MAX_HITS)

    async def fetch(self, ids: list[str]) -> list[models.Item]:
        """Items by id, without those that do not exist."""
        return await self._engine.call(lambda index: self._fetch(index, ids)) if ids else []

    def _fetch(self, index: CredibleIndex, ids: list[str]) -> list[models.Item]:
        try:
            posterior, payload = fetch_items(index, ids, tuple(self.columns))
        except ApiError:  # one of them was deleted since the table was read
            if len(ids) == 1:
                return []
            return [item for name in ids for item in self._fetch(index, [name])]
        rows = self._format.rows(ids, posterior.kappa, payload)
        return [models.Item(**row) for row in rows]

    async def _refresh(self) -> None:
        """Read the table again if rows have changed since the last look."""
        if time.monotonic() - self._looked > _LOOK:
            self._looked = time.monotonic()
            await self._engine.call(self._read_if_changed)

    def _read_if_changed(self, index: CredibleIndex) -> None:
        if table_version(index) != self.version:
            self._read(index)

    def _read(self, index: CredibleIndex) -> None:
        # the version is read first, so that a later change is not missed
        self.version, self._looked = table_version(index), time.monotonic()
        self.table = GalleryTable.read(index, self._format.label_column, self._format.text_column)
        self.on_change()


def known_tag(header: str | None) -> str:
    """The ETag in an If-None-Match header."""
    return (header or "").removeprefix("W/").strip('"')


def _ids(table: GalleryTable, rows: list[int]) -> list[str]:
    """The ids of rows that a client sent."""
    try:
        return table.ids(rows)
    except InvalidInputError as error:
        raise ApiError("invalid_input", str(error), field="rows") from error


def _packed(table: GalleryTable, rows: Any, *, truncated: bool) -> dict[str, Any]:
    packed = base64.b64encode(rows.astype("<u4").tobytes()).decode()
    return {
        "version": table.version,
        "rows": packed,
        "count": len(rows),
        "truncated": truncated,
    }


def cap_entries(cosines: list[float]) -> list[models.Cap]:
    """The caps of the explorer's masses, from their smallest cosines."""
    return [models.Cap(mass=m, cosine=c) for m, c in zip(MASSES, cosines, strict=True)]
