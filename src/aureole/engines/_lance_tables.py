"""Lance tables: at an address, as rows of a gallery, and by id. The only module that imports lance."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import Any

import numpy as np

from aureole._io import check_local, reporting_writes
from aureole.data._addresses import check_bucket, lance_options
from aureole.engines._addresses import is_local
from aureole.engines._filters import Condition
from aureole.engines._schema import Rows, Schema
from aureole.engines._store import file_lock
from aureole.errors import InvalidInputError, MissingPackageError

BATCH = 1000  # ids per expression
ID_INDEX = "aureole_id"
_MERGED = 8192  # rows of a batch to be merged: Lance cuts larger ones
_MEMORY = str(
    16 << 30
)  # bytes that a merge may take; Lance's own limit is exceeded by 100,000 rows of 768 dimensions
_PRIMARY_KEY = {"lance-schema:unenforced-primary-key": "true"}


def lance_package() -> Any:
    """The package, imported when it is used."""
    os.environ.setdefault("LANCE_LOG", "error")  # it warns about every table that it creates
    os.environ.setdefault("LANCE_MEM_POOL_SIZE", _MEMORY)
    try:
        import lance
    except ImportError as error:
        raise MissingPackageError(
            "Lance tables need pylance: pip install 'aureole[search]'."
        ) from error
    return lance


def table_exists(where: str) -> bool:
    """Whether a Lance table exists at an address."""
    if is_local(where):
        return (Path(where) / "_versions").is_dir()
    check_bucket(where)
    try:
        open_table(where)
    except ValueError as error:
        if "was not found" in str(error):
            return False
        raise InvalidInputError(
            f"{where} cannot be opened: {str(error).splitlines()[0][:200]}"
        ) from error
    return True


def open_table(where: str) -> Any:
    """The Lance table at an address; one on S3 with the endpoint of ``AWS_ENDPOINT_URL``."""
    return lance_package().dataset(where, storage_options=lance_options(where))


@contextmanager
def locked(where: str) -> Iterator[None]:
    """Hold the lock for writers on this machine; does nothing on an object store."""
    if not is_local(where):
        yield
        return
    check_local(where)
    with reporting_writes(where):
        Path(where).parent.mkdir(parents=True, exist_ok=True)
    with file_lock(Path(f"{where.removesuffix('/')}.lock")):
        yield


@contextmanager
def writing(where: str) -> Iterator[None]:
    """Raise errors of the disk as ``WriteError``; Lance has the number of a system error in its messages only."""
    with reporting_writes(where):
        try:
            yield
        except OSError as error:
            number = re.search(r"\bos error (\d{1,3})\b", str(error))
            if error.errno is None and number is not None:
                raise OSError(int(number[1]), str(error)) from error
            raise


def table_metadata(table: Any) -> dict[str, str]:
    """The metadata of a table's schema."""
    metadata = table.schema.metadata or {}
    return {key.decode(): value.decode() for key, value in metadata.items()}


def to_arrow(rows: Rows, schema: Schema) -> Any:
    """Rows as the Arrow table that is stored."""
    import pyarrow as pa

    types = {
        "text": pa.string(),
        "integer": pa.int64(),
        "number": pa.float64(),
        "boolean": pa.bool_(),
    }
    flat = pa.array(np.ascontiguousarray(rows.mu).reshape(-1), pa.float32())
    columns = {
        "id": pa.array(rows.ids.tolist(), pa.string()),
        "mu": pa.FixedSizeListArray.from_arrays(flat, schema.dim),
        "kappa": pa.array(rows.kappa, pa.float32()),
    }
    for name, kind in schema.columns.items():
        columns[name] = pa.array(rows.payload[name].tolist(), types[kind])
    return pa.table(columns)


def in_batches(table: Any) -> Any:
    """A reader of batches that share no memory: Lance counts all memory behind a slice, for each slice."""
    import pyarrow as pa

    def copies() -> Iterator[Any]:
        for start in range(0, table.num_rows, _MERGED):
            part = table.slice(start, _MERGED)
            yield from part.take(pa.array(np.arange(part.num_rows))).combine_chunks().to_batches()

    return pa.RecordBatchReader.from_batches(table.schema, copies())


def known_ids(table: Any, ids: list[str]) -> list[str]:
    """Those of the ids that exist in a table: by the index of ids if there is one, else by a scan."""
    import pyarrow as pa
    import pyarrow.compute as pc

    known: list[str] = []
    if indexed_ids(table) is not None:
        for start in range(0, len(ids), BATCH):
            chosen = table.scanner(columns=["id"], filter=with_ids(ids[start : start + BATCH]))
            known += chosen.to_table()["id"].to_pylist()
        return known
    wanted = pa.array(ids, pa.string())
    for batch in table.scanner(columns=["id"]).to_batches():
        column = batch.column("id")
        is_known = pc.call_function("is_in", [column], pc.SetLookupOptions(wanted))
        known += column.filter(is_known).to_pylist()
    return known


def indexed_ids(table: Any) -> int | None:
    """How many rows are in the index of ids; None without one."""
    found = [each for each in table.describe_indices() if each.name == ID_INDEX]
    return found[0].num_rows_indexed if found else None


def keyed(data: Any) -> Any:
    """An Arrow table of rows whose ids are declared as the primary key."""
    import pyarrow as pa

    key = pa.field("id", pa.string(), nullable=False, metadata=_PRIMARY_KEY)
    return data.cast(data.schema.set(data.schema.get_field_index("id"), key))


def with_ids(ids: Sequence[Any], column: str = "id") -> Any:
    """An expression that selects the rows with some ids."""
    import pyarrow.compute as pc

    return pc.field(column).isin(ids)


def expression(conditions: Sequence[Condition]) -> Any:
    """The conditions as an expression tree; no text is parsed."""
    import pyarrow.compute as pc

    parts = []
    for condition in conditions:
        field = pc.field(condition.column)
        if condition.kind == "any":
            equal = [field == value for value in condition.values]
            parts.append(reduce(or_, equal, pc.scalar(False)))
            continue
        low, high = condition.values
        if low is not None:
            parts.append(field >= low)
        if high is not None:
            parts.append(field <= high)
    return reduce(and_, parts) if parts else None
