"""Tables of Lance: written, read and searched through Arrow. The one file that imports Lance."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import Any

import numpy as np

from aureole.errors import MissingPackageError
from aureole.retrieval._address import is_local
from aureole.retrieval._filters import Condition
from aureole.retrieval._rows import Rows, Schema, strings

SCHEMA_KEY = "aureole.schema"  # in a table's metadata: it is a gallery


def lance_package() -> Any:
    """The package, imported when it is used; an error says how to get it."""
    os.environ.setdefault("LANCE_LOG", "error")  # it warns of every table that it creates
    try:
        import lance
    except ImportError as error:
        raise MissingPackageError(
            "Lance tables need pylance: pip install 'aureole[retrieval]'."
        ) from error
    return lance


def table_exists(where: str) -> bool:
    """Whether there is a Lance table at an address."""
    if is_local(where):
        return (Path(where) / "_versions").is_dir()
    lance = lance_package()
    try:
        lance.dataset(where)
    except ValueError:
        return False
    return True


@contextmanager
def locked(where: str) -> Iterator[None]:
    """The turn of a writer on this machine; nothing on an object store."""
    if not is_local(where):
        yield
        return
    Path(where).parent.mkdir(parents=True, exist_ok=True)
    with open(f"{where.removesuffix('/')}.lock", "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def table_metadata(table: Any) -> dict[str, str]:
    """The small texts that a table's schema keeps."""
    found = table.schema.metadata or {}
    return {key.decode(): value.decode() for key, value in found.items()}


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


def from_arrow(parts: Sequence[Any], columns: Sequence[str], schema: Schema) -> Rows:
    """Rows from the Arrow tables that were found, or no rows."""
    import pyarrow as pa

    if not parts:
        empty = {name: np.zeros(0, object) for name in columns}
        return Rows(
            strings([]), np.zeros((0, schema.dim), np.float32), np.zeros(0, np.float32), empty
        )
    table = pa.concat_tables(parts)
    mu = table["mu"].combine_chunks()
    flat = mu.flatten() if table.num_rows else mu.values[:0]
    wide = flat.to_numpy(zero_copy_only=False).reshape(table.num_rows, schema.dim)
    return replace(without_mu(table, columns), mu=wide)


def without_mu(found: Any, columns: Sequence[str]) -> Rows:
    """Rows from an Arrow table or batch, but for their directions."""
    payload = {}
    for name in columns:
        column = np.empty(found.num_rows, dtype=object)
        column[:] = found[name].to_pylist()
        payload[name] = column
    nothing = np.zeros((0, 0), np.float32)
    return Rows(strings(found["id"].to_pylist()), nothing, found["kappa"].to_numpy(), payload)


def known_ids(table: Any, ids: list[str]) -> list[str]:
    """Those of the ids that are in a Lance table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pa.array(ids, pa.string())
    known: list[str] = []
    for batch in table.scanner(columns=["id"]).to_batches():
        column = batch.column("id")
        found = pc.call_function("is_in", [column], pc.SetLookupOptions(wanted))
        known += column.filter(found).to_pylist()
    return known


def with_ids(ids: Sequence[str]) -> Any:
    """The expression that is true of rows with one of the ids."""
    import pyarrow.compute as pc

    return pc.field("id").isin(ids)


def expression(conditions: Sequence[Condition]) -> Any:
    """The conditions as an expression tree: values stay values, and no text is parsed."""
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
