"""The items of a gallery as lists: pages by kappa, and the table of all items with its columns and row numbers."""

import asyncio
import base64
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import Header, Path, Query, Response

from aureole.caps import CredibleIndex
from aureole.errors import DamagedGalleryError, InvalidInputError
from aureole.explorer._gallery_table import MAX_HITS, GalleryTable, table_version
from aureole.explorer._neighbourhood_map import MASSES, map_caps
from aureole.serve import _request_models as requests, _response_models as responses
from aureole.serve._batching import Engine
from aureole.serve._errors import ApiError, item_not_found
from aureole.serve._response_models import ItemFormatter, cap_entries

ItemId = Annotated[str, Path(max_length=1024, description="Id of an item.")]
Offset = Annotated[int, Query(ge=0, le=2**40)]
Count = Annotated[int, Query(ge=1, le=500)]
Label = Annotated[str | None, Query(max_length=1000, description="Only items with this label.")]
IfNoneMatch = Annotated[str | None, Header()]
_LOOK = 10.0  # seconds between looks for changed rows


class Listing:
    """Answers with lists of items. The table of all items is in memory; the items themselves come from the engine.

    The table is read again when rows have changed, at most every ten seconds. ``on_change`` is called after each read.
    Texts are searched in ``pool``, since a pass over them is slow.
    """

    def __init__(self, engine: Engine, pool: Executor, items: ItemFormatter) -> None:
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
    ) -> responses.ItemsAnswer:
        """A page of items, least or most certain first."""
        await self._refresh()
        ids, total = self.table.page(order, offset, limit, label=label)
        return responses.ItemsAnswer(items=await self.fetch(ids), total=total, offset=offset)

    async def item(self, id: ItemId) -> responses.ItemAnswer:
        """An item with its posterior and credible caps."""

        def work(index: CredibleIndex) -> Any:
            try:
                return index.fetch([id], columns=list(self.columns))
            except DamagedGalleryError:
                raise
            except InvalidInputError as error:
                raise item_not_found(id) from error

        posterior, payload = await self._engine.call(work)
        (row,) = self._format.rows([id], posterior.kappa, payload)
        (caps,) = map_caps(posterior.kappa.double().numpy(), MASSES, self._dim).tolist()
        rank = self.table.rank(row["kappa"])
        mu = posterior.mu[0].tolist()
        return responses.ItemAnswer(**row, mu=mu, kappa_rank=rank, caps=cap_entries(caps))

    async def describe(self) -> responses.TableAnswer:
        """The columns of the table of all items, whose rows are numbered by kappa."""
        await self._refresh()
        return responses.TableAnswer.model_validate(self.table.describe())

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

    async def rows(self, request: requests.TableRowsRequest) -> responses.TableRowsAnswer:
        """Items by their row numbers."""
        table = self.table
        ids = _ids(table, request.rows)
        items = {item.id: item for item in await self.fetch(list(dict.fromkeys(ids)))}
        found = [items.get(name) for name in ids]
        return responses.TableRowsAnswer(version=table.version, items=found)

    async def numbers(self, request: requests.TableNumbersRequest) -> responses.TableNumbersAnswer:
        """The row numbers of ids."""
        table, loop = self.table, asyncio.get_running_loop()
        rows = await loop.run_in_executor(self._pool, table.numbers, request.ids)
        return responses.TableNumbersAnswer(version=table.version, rows=rows)

    async def ids(self, request: requests.TableIdsRequest) -> responses.TableIdsAnswer:
        """The ids of row numbers."""
        if request.version not in (None, self.table.version):
            raise ApiError("conflict", "the gallery has changed. Reload the page.")
        ids = _ids(self.table, request.rows)
        return responses.TableIdsAnswer(version=self.table.version, ids=ids)

    async def find(
        self,
        text: Annotated[str, Query(min_length=1, max_length=200, description="In any case.")],
        column: Annotated[
            str | None, Query(max_length=100, description="id, or a column of texts; default: all.")
        ] = None,
    ) -> responses.TableFindAnswer:
        """The rows whose id or text contains a text; at most 200,000."""
        table, loop = self.table, asyncio.get_running_loop()
        try:
            rows, truncated = await loop.run_in_executor(self._pool, table.find, text, column)
        except InvalidInputError as error:
            raise ApiError("invalid_input", str(error)) from error
        return _packed(table, rows, truncated=truncated)

    async def numbers_of(self, ids: Sequence[str]) -> responses.TableFindAnswer:
        """The row numbers of the ids that exist, ascending, as ``find`` returns them."""
        table, loop = self.table, asyncio.get_running_loop()
        rows = await loop.run_in_executor(self._pool, table.numbers, ids[: MAX_HITS + 1])
        found = np.unique(np.array([row for row in rows if row is not None], np.uint32))
        return _packed(table, found[:MAX_HITS], truncated=len(ids) > MAX_HITS)

    async def fetch(self, ids: list[str]) -> list[responses.Item]:
        """Items by id, without those that do not exist."""
        return await self._engine.call(lambda index: self._fetch(index, ids)) if ids else []

    def _fetch(self, index: CredibleIndex, ids: list[str]) -> list[responses.Item]:
        try:
            posterior, payload = index.fetch(ids, columns=list(self.columns))
        except DamagedGalleryError:
            raise
        except InvalidInputError:  # one of them was deleted since the table was read
            if len(ids) == 1:
                return []
            return [item for name in ids for item in self._fetch(index, [name])]
        rows = self._format.rows(ids, posterior.kappa, payload)
        return [responses.Item(**row) for row in rows]

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


def _packed(table: GalleryTable, rows: Any, *, truncated: bool) -> responses.TableFindAnswer:
    packed = base64.b64encode(rows.astype("<u4").tobytes()).decode()
    return responses.TableFindAnswer(
        version=table.version, rows=packed, count=len(rows), truncated=truncated
    )
