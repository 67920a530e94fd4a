"""The items of a gallery as lists: pages by kappa, and the table of all items with its columns and row numbers."""

import asyncio
import base64
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.explorer import (
    MASSES,
    MAX_HITS,
    Column,
    GalleryTable,
    Order,
    map_caps,
    table_version,
)
from aureole.retrieval import CredibleIndex
from aureole.serve._batching import Engine, item_not_found
from aureole.serve._errors import ApiError
from aureole.serve._response_models import ItemFormatter, cap_entries

_BATCH = 500  # items whose texts are fetched together


def read_table(index: CredibleIndex, items: ItemFormatter) -> tuple[str, GalleryTable]:
    """(Version, table) of all items; the version is read first, so that a later change is not missed."""
    version = table_version(index)
    return version, GalleryTable.read(index, items.label_column, items.text_column)


class Listing:
    """Answers with lists of items. The table of all items is in memory; the items themselves come from the engine.

    ``read`` is the result of ``read_table``. Texts are searched in ``pool``, since a pass over them is slow.
    """

    def __init__(
        self,
        index: CredibleIndex,
        read: tuple[str, GalleryTable],
        engine: Engine,
        pool: Executor,
        items: ItemFormatter,
    ) -> None:
        self.version, self.table = read
        self._engine, self._pool, self._format = engine, pool, items
        self._engine_name = index.engine
        self._dim, self.columns = index.schema.dim, dict(index.schema.columns)

    async def page(
        self, order: Order, offset: int, limit: int, label: str | None = None
    ) -> dict[str, Any]:
        """A page of items ordered by kappa."""
        ids, total = self.table.page(order, offset, limit, label=label)
        return {"items": await self.items(ids), "total": total, "offset": offset}

    async def items(self, ids: list[str]) -> list[dict[str, Any]]:
        """Items by id, without those that do not exist."""
        if not ids:
            return []
        return await self._engine.call(lambda index: self._fetch(index, ids))

    async def item(self, name: str) -> dict[str, Any]:
        """An item with its posterior."""

        def work(index: CredibleIndex) -> tuple[VonMisesFisher, dict[str, list[Any]]]:
            try:
                return index.fetch([name], columns=list(self.columns))
            except InvalidInputError as error:
                raise item_not_found(name) from error

        posterior, payload = await self._engine.call(work)
        values = {column: entries[0] for column, entries in payload.items()}
        kappa = float(posterior.kappa[0])
        (caps,) = map_caps(posterior.kappa.double().numpy(), MASSES, self._dim).tolist()
        return {
            **self._format.item(name, kappa, values),
            "mu": posterior.mu[0].tolist(),
            "kappa_rank": self.table.rank(kappa),
            "caps": cap_entries(caps),
        }

    def column(self, name: str, known: str | None) -> tuple[str, Column | None]:
        """The ETag and a column of the table of all items, or None for a column whose ETag is ``known``."""
        table = self.table
        if name not in table.columns:
            raise ApiError("not_found", f"column {name[:60]!r} does not exist.")
        column = table.columns[name]
        if column.data is None:
            message = f"column {name[:60]!r} holds texts, which are searched by /v1/table/find."
            raise ApiError("invalid_input", message)
        return table.version, None if known == table.version else column

    async def rows(self, rows: list[int]) -> dict[str, Any]:
        """Items by their row numbers; None for one that was deleted since the table was read."""
        table = self.table
        ids = _ids(table, rows)
        items = {item["id"]: item for item in await self.items(list(dict.fromkeys(ids)))}
        return {"version": table.version, "items": [items.get(name) for name in ids]}

    def ids(self, rows: list[int], version: str | None) -> dict[str, Any]:
        """The ids of rows; raise if the client has another ``version`` of the table."""
        self._check_version(version)
        return {"version": self.table.version, "ids": _ids(self.table, rows)}

    async def numbers_of(self, ids: Sequence[str]) -> dict[str, Any]:
        """The row numbers of the ids that exist, ascending, as ``find`` returns them."""
        table, loop = self.table, asyncio.get_running_loop()
        rows = await loop.run_in_executor(self._pool, table.numbers, ids[: MAX_HITS + 1])
        found = np.unique(np.array([row for row in rows if row is not None], np.uint32))
        return _packed(table, found[:MAX_HITS], truncated=len(ids) > MAX_HITS)

    async def find(self, text: str, column: str | None) -> dict[str, Any]:
        """The numbers of rows whose id or text contains a text."""
        table, loop = self.table, asyncio.get_running_loop()
        try:
            rows, truncated = await loop.run_in_executor(self._pool, table.find, text, column)
        except InvalidInputError as error:
            raise ApiError("invalid_input", str(error)) from error
        return _packed(table, rows, truncated=truncated)

    def refresh(self, where: str) -> bool:
        """Read the table again if rows of the gallery at an address have changed, and return whether they have.

        Another handle reads it, since a pass over all rows would delay searches. FAISS holds all rows in memory, so
        there the pass is short, and another handle would double them.
        """

        def read(index: CredibleIndex) -> tuple[str, GalleryTable] | None:
            return None if table_version(index) == self.version else read_table(index, self._format)

        if self._engine_name == "FAISS":
            changed = asyncio.run(self._engine.call(read))
        else:
            with CredibleIndex.open(where) as index:
                changed = read(index)
        if changed is not None:
            self.version, self.table = changed
        return changed is not None

    def _check_version(self, version: str | None) -> None:
        if version is not None and version != self.table.version:
            raise ApiError("conflict", "the gallery has changed. Reload the page.")

    def _fetch(self, index: CredibleIndex, ids: list[str]) -> list[dict[str, Any]]:
        """Items by id, without those deleted since the service started."""
        try:
            posterior, payload = index.fetch(ids, columns=list(self.columns))
        except InvalidInputError:
            if len(ids) == 1:
                return []
            return [item for name in ids for item in self._fetch(index, [name])]
        kappa = posterior.kappa.tolist()
        return [
            self._format.item(name, kappa[i], {c: values[i] for c, values in payload.items()})
            for i, name in enumerate(ids)
        ]


def _ids(table: GalleryTable, rows: list[int]) -> list[str]:
    """The ids of rows that a client sent."""
    try:
        return table.ids(rows)
    except InvalidInputError as error:
        raise ApiError("invalid_input", str(error), field="rows") from error


def _packed(table: GalleryTable, rows: np.ndarray, *, truncated: bool) -> dict[str, Any]:
    """Row numbers as base64 of little-endian uint32."""
    packed = base64.b64encode(rows.astype("<u4").tobytes()).decode()
    found = {"rows": packed, "count": len(rows), "truncated": truncated}
    return {"version": table.version, **found}
