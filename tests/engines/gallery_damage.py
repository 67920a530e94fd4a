"""Ways to damage a gallery: bytes, files, notes, indexes and values. Used by ``tests.engines.damaged_galleries``.

``make_gallery`` creates a valid gallery; ``damage`` changes it by one randomly chosen kind of damage of its engine.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urldefrag

import numpy as np
import torch

import aureole as au
from aureole.caps import ConformalMass, CredibleIndex
from aureole.engines import Origin
from aureole.sphere import normalize

ROWS, DIM = 300, 8
KINDS = (None, "ivf", "hnsw")
SIZES: dict[str, dict[str, int]] = {
    "ivf": {"lists": 4, "probes": 4},
    "hnsw": {"links": 8, "width": 300},
}
_COLUMNS = '"columns": {"shop": "text", "stock": "integer"}'
TEXTS = (
    "", "{", "null", "[]", "7", '"text"', "[" * 200_000, '{"a":' * 50_000, "NaN", "1e999", "9" * 5000, "\ud7ff", "{}",
    '{"dim": true, "columns": {}, "typical_kappa": 1}', '{"dim": 1099511627776, "columns": {}, "typical_kappa": 1}',
    '{"dim": 8, "columns": {"shop": []}, "typical_kappa": 1}', '{"dim": 8, "columns": {"id": "text"}}',
    f'{{"dim": 8, {_COLUMNS}, "typical_kappa": -1}}', f'{{"dim": 9, {_COLUMNS}, "typical_kappa": 5}}',
    '{"dim": 8, "columns": {"other": "text"}, "typical_kappa": 5}', '{"kind": "ivf"}',
    '{"kind": [], "lists": 1, "sizes": {}}', '{"kind": "hnsw", "lists": 1, "sizes": {"width": -3}}',
    '{"kind": "ivf", "lists": 1e99, "sizes": {"probes": "all"}}',
    '{"format": "aureole-origin-1", "kappa_pos": "NaN", "weights": 3}',
    '{"format": "aureole-origin-1", "kappa_pos": -1, "weights": null}',
    '{"format": "aureole-conformal-1", "scores": [2, "x"], "kappa_pos": 1, "kappa_other": 1}',
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**70,
    1e300,
    "x",
    [],
    {},
    [[]],
    {"a": None},
    "../../etc/passwd",
    "a\0b",
)


def rows_of(seed: int = 0, n: int = ROWS) -> tuple[au.VonMisesFisher, list[str], dict[str, Any]]:
    """(Posteriors, ids, payload) of a small gallery."""
    rng = torch.Generator().manual_seed(seed)
    mu = normalize(torch.randn(n, DIM, generator=rng))
    kappa = 10 * torch.exp(torch.randn(n, generator=rng))
    payload = {"shop": [f"shop {i % 5}" for i in range(n)], "stock": list(range(n))}
    return au.VonMisesFisher(mu, kappa), [f"row {i}" for i in range(n)], payload


def make_gallery(where: str, kind: str | None) -> None:
    """A valid gallery with appended and deleted rows, notes and, unless ``kind`` is None, an approximate index."""
    posteriors, ids, payload = rows_of()
    first = {name: values[:200] for name, values in payload.items()}
    rest = {name: values[200:] for name, values in payload.items()}
    with CredibleIndex.create(where, posteriors[:200], ids[:200], first) as index:
        index.append(posteriors[200:], ids[200:], rest)
        if kind is not None:
            index.build(kind, **SIZES[kind])  # type: ignore[arg-type]
        index.delete(ids[5:9])
        index.origin = Origin(16.0, "abc")
        index.conformal = ConformalMass([i / 20 for i in range(1, 20)], 16.0, 20.0)
    if where.endswith(".lance"):
        import lance

        lance.dataset(where).cleanup_old_versions(retain_versions=1, delete_unverified=True)


def damage(engine: str, where: str, rng: Random) -> str:
    """Damage a gallery, and return what was done."""
    name, change = rng.choice(list(_DAMAGES[engine].items()))
    change(where, rng)
    return name


def _files(where: str, rng: Random) -> Path:
    """A random file of a gallery."""
    files = sorted(path for path in (Path(where), *Path(where).rglob("*")) if path.is_file())
    return rng.choice([path for path in files if path.stat().st_size] or files)


def flip_bytes(where: str, rng: Random) -> None:
    """Change one to 16 bytes of a file."""
    path = _files(where, rng)
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 4, 16))):
        if content:
            content[rng.randrange(len(content))] ^= rng.randrange(1, 256)
    path.write_bytes(content)


def truncate(where: str, rng: Random) -> None:
    """Cut a file off, or make it empty."""
    path = _files(where, rng)
    path.write_bytes(path.read_bytes()[: rng.choice((0, rng.randrange(1 + path.stat().st_size)))])


def remove(where: str, rng: Random) -> None:
    """Remove a file, or a folder of a Lance table."""
    path = _files(where, rng)
    if rng.random() < 0.3 and Path(where) not in (path, path.parent):
        shutil.rmtree(path.parent)
    else:
        path.unlink()


def extend(where: str, rng: Random) -> None:
    """Append random bytes to a file."""
    path = _files(where, rng)
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.choice((1, 100, 10_000))))


def exchange(where: str, rng: Random) -> None:
    """Replace a file by another file of the gallery, or by random bytes."""
    path, other = _files(where, rng), _files(where, rng)
    path.write_bytes(rng.choice((other.read_bytes(), rng.randbytes(path.stat().st_size))))


def _rewrite(where: str, change: Callable[[dict[str, Any], dict[str, str]], None]) -> None:
    """Change the arrays and the metadata of a FAISS gallery."""
    from safetensors import safe_open
    from safetensors.numpy import save

    with safe_open(where, "numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = dict(file.metadata())
    change(arrays, metadata)
    content = save({key: np.ascontiguousarray(array) for key, array in arrays.items()}, metadata)
    Path(where).write_bytes(content)


def faiss_description(where: str, rng: Random) -> None:
    """Replace the description, or a random value inside it."""

    def change(_: dict[str, Any], metadata: dict[str, str]) -> None:
        if rng.random() < 0.3:
            metadata["gallery"] = rng.choice(TEXTS[:-5]).replace("\ud7ff", "?")
            return
        about = json.loads(metadata["gallery"])
        place: Any = about
        key: Any = rng.choice(list(place))
        while isinstance(place[key], dict | list) and place[key] and rng.random() < 0.7:
            place = place[key]
            key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
        place[key] = rng.choice(VALUES)
        metadata["gallery"] = json.dumps(about)

    _rewrite(where, change)


def faiss_values(where: str, rng: Random) -> None:
    """Poison rows, or change the shape or type of an array."""

    def change(arrays: dict[str, Any], _: dict[str, str]) -> None:
        if rng.random() < 0.5:
            _poison(arrays, rng)
            return
        key = rng.choice(list(arrays))
        arrays[key] = rng.choice(
            (arrays[key][:-1], arrays[key].astype(np.float64), arrays[key][None])
        )

    _rewrite(where, change)


def faiss_index(where: str, rng: Random) -> None:
    """Put random numbers into the arrays of the approximate index."""

    def change(arrays: dict[str, Any], _: dict[str, str]) -> None:
        for name in [name for name in arrays if name == "centroids"]:
            array = arrays[name] = arrays[name].copy()
            for place in rng.choices(range(array.size), k=rng.choice((1, 5))):
                array.reshape(-1)[place] = rng.choice((0, 1, 7, 299, 300, 10**6, 2**31 - 1))

    _rewrite(where, change)


def _poison(arrays: dict[str, np.ndarray], rng: Random) -> None:
    """Impossible values of kappa or mu in some rows."""
    rows = rng.sample(range(len(arrays["kappa"])), rng.choice((1, 20, 200)))
    column = rng.choice(("kappa", "mu"))
    bad = (np.nan, -1.0, -np.inf) if column == "kappa" else (np.nan, 0.0, 1e30, np.inf)
    arrays[column] = arrays[column].copy()
    arrays[column][rows] = rng.choice(bad)


def lance_notes(where: str, rng: Random) -> None:
    """Replace a note in the metadata of the table."""
    import lance

    key = rng.choice(
        ("aureole.schema", "aureole.index", "aureole.note.origin", "aureole.note.conformal")
    )
    lance.dataset(where).update_schema_metadata({key: rng.choice(TEXTS)})


def lance_index(where: str, rng: Random) -> None:
    """Replace the index by one of another metric, kind or number of lists, with or without a note."""
    import lance

    table = lance.dataset(where)
    options: dict[str, Any] = {
        "metric": rng.choice(("l2", "cosine", "dot")),
        "num_partitions": rng.choice((1, 4, 7)),
    }
    table.create_index("mu", rng.choice(("IVF_FLAT", "IVF_HNSW_FLAT")), replace=True, **options)
    kind = rng.choice(("ivf", "hnsw"))
    note = {"kind": kind, "lists": rng.choice((1, 4)), "sizes": SIZES[kind]}
    table.update_schema_metadata({"aureole.index": json.dumps(note)})


def lance_values(where: str, rng: Random) -> None:
    """Write the table again with poisoned values, duplicate ids, nulls, other types or missing columns."""
    import lance
    import pyarrow as pa

    table = lance.dataset(where).to_table()
    choice = rng.choice(("values", "values", "values", "ids", "null", "type", "missing", "wide"))
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    mu = np.stack(columns["mu"].to_numpy(zero_copy_only=False))
    if choice == "values":
        arrays = {"mu": mu, "kappa": columns["kappa"].to_numpy(zero_copy_only=False).copy()}
        _poison(arrays, rng)
        columns["kappa"] = pa.array(arrays["kappa"], pa.float32())
        columns["mu"] = pa.FixedSizeListArray.from_arrays(pa.array(arrays["mu"].reshape(-1)), DIM)
    elif choice == "ids":
        columns["id"] = pa.array([f"row {i // 2}" for i in range(len(table))])
    elif choice in ("null", "type"):
        name = rng.choice(["id", "kappa", "shop", "stock"])
        values = columns[name].to_pylist()
        values[rng.randrange(len(values))] = None
        columns[name] = (
            pa.array(values, columns[name].type) if choice == "null" else pa.array(map(str, values))
        )
    elif choice == "missing":
        columns.pop(rng.choice(list(columns)))
    else:
        wide = np.concatenate([mu, mu], -1)
        columns["mu"] = pa.FixedSizeListArray.from_arrays(pa.array(wide.reshape(-1)), 2 * DIM)
    made = pa.table(columns).replace_schema_metadata(table.schema.metadata)
    shutil.rmtree(where)
    lance.write_dataset(made, where)


def _execute(where: str, *statements: str, **values: Any) -> None:
    """Run statements in which {t}, {notes}, {index} and {key} are names, and other braces are values."""
    import psycopg
    from psycopg import sql

    address, name = urldefrag(where)
    ends = {"t": "", "notes": "_notes", "index": "_mu", "key": "_pkey"}
    parts: dict[str, Any] = {part: sql.Identifier(name + end) for part, end in ends.items()}
    parts |= {part: sql.Literal(value) for part, value in values.items()}
    with psycopg.connect(address, autocommit=True) as connection:
        for statement in statements:
            connection.execute(sql.SQL(statement).format(**parts))  # type: ignore[arg-type]


def postgres_notes(where: str, rng: Random) -> None:
    """Replace or remove a note."""
    name = rng.choice(("schema", "schema", "index", "origin", "conformal"))
    statements = ["DELETE FROM {notes} WHERE name = {name}"]
    if rng.random() < 0.8:
        statements.append("INSERT INTO {notes} VALUES ({name}, {text})")
    _execute(where, *statements, name=name, text=rng.choice(TEXTS))


def postgres_tables(where: str, rng: Random) -> None:
    """Drop or change tables and columns."""
    changes = (
        "DROP TABLE {t}", "DROP TABLE {notes}", "DROP TABLE {t}, {notes}", "TRUNCATE {notes}",
        "ALTER TABLE {t} DROP COLUMN mu", "ALTER TABLE {t} DROP COLUMN kappa", "ALTER TABLE {t} DROP COLUMN id",
        "ALTER TABLE {t} DROP COLUMN shop", "ALTER TABLE {t} ALTER kappa TYPE text",
        "DROP INDEX IF EXISTS {index}; ALTER TABLE {t} ALTER mu TYPE text",
        "DROP INDEX IF EXISTS {index}; ALTER TABLE {t} ALTER mu TYPE vector",
        "ALTER TABLE {t} ALTER stock TYPE text", "ALTER TABLE {t} RENAME mu TO nu",
        "ALTER TABLE {t} ALTER id TYPE bytea USING id::bytea", "ALTER TABLE {t} ALTER kappa TYPE double precision",
        "ALTER TABLE {notes} RENAME body TO text", "ALTER TABLE {notes} ALTER body TYPE bytea USING body::bytea",
        "DROP TABLE {t}; CREATE VIEW {t} AS SELECT 1 AS id", "DROP TABLE {t}; CREATE SEQUENCE {t}",
    )  # fmt: skip
    _execute(where, *rng.choice(changes).split("; "))


def postgres_index(where: str, rng: Random) -> None:
    """Replace the index by one of another metric or kind, or drop it."""
    made = (
        "CREATE INDEX {index} ON {t} USING ivfflat (mu vector_l2_ops) WITH (lists = 4)",
        "CREATE INDEX {index} ON {t} USING hnsw (mu vector_cosine_ops)",
        "CREATE INDEX {index} ON {t} USING btree (kappa)",
        "CREATE INDEX {index} ON {t} USING hnsw (mu vector_ip_ops)",
        "CREATE INDEX {index} ON {t} USING ivfflat (mu vector_ip_ops) WITH (lists = 9)",
        "SELECT 1",
    )
    kind = rng.choice(("ivf", "hnsw"))
    _execute(
        where,
        "DROP INDEX IF EXISTS {index}",
        rng.choice(made),
        "DELETE FROM {notes} WHERE name = 'index'",
        "INSERT INTO {notes} VALUES ('index', {note})",
        note=json.dumps({"kind": kind, "lists": 4, "sizes": SIZES[kind]}),
    )


def postgres_values(where: str, rng: Random) -> None:
    """Poison rows: values that are impossible, nulls, and duplicate ids."""
    free = (
        "ALTER TABLE {t} DROP CONSTRAINT {key}, ALTER kappa DROP NOT NULL, ALTER mu DROP NOT NULL, "
        "ALTER shop DROP NOT NULL, ALTER id DROP NOT NULL"
    )
    changes = (
        "UPDATE {t} SET kappa = 'NaN' WHERE stock < {n}", "UPDATE {t} SET kappa = -1 WHERE stock < {n}",
        "UPDATE {t} SET kappa = '-Infinity' WHERE stock < {n}", "UPDATE {t} SET mu = {zeros} WHERE stock < {n}",
        "UPDATE {t} SET mu = {large} WHERE stock < {n}", "UPDATE {t} SET kappa = NULL WHERE stock < {n}",
        "UPDATE {t} SET mu = NULL WHERE stock < {n}", "UPDATE {t} SET shop = NULL WHERE stock < {n}",
        "INSERT INTO {t} SELECT * FROM {t} WHERE stock < {n}", "UPDATE {t} SET id = NULL WHERE stock < {n}",
    )  # fmt: skip
    number, zeros, large = rng.choice((1, 20, 200)), str([0] * DIM), str([1e30] * DIM)
    _execute(where, free, rng.choice(changes), n=number, zeros=zeros, large=large)


_BYTES = {
    "bytes flipped": flip_bytes,
    "truncated": truncate,
    "removed": remove,
    "extended": extend,
    "exchanged": exchange,
}
_DAMAGES: dict[str, dict[str, Callable[[str, Random], None]]] = {
    "faiss": {
        **_BYTES,
        "description": faiss_description, "index changed": faiss_index, "values poisoned": faiss_values,
    },
    "lance": {
        **_BYTES,
        "notes": lance_notes, "index of another kind": lance_index, "values poisoned": lance_values,
    },
    "postgres": {
        "notes": postgres_notes, "tables changed": postgres_tables, "index of another kind": postgres_index,
        "values poisoned": postgres_values,
    },
}  # fmt: skip
