"""Wrapped indexes compared with a brute-force scan: the same sets, without copying vectors.

``python -m benchmarks.wrapped [--rows 10000] [--queries 20] [--out results/benchmarks]`` writes wrapped.json.

The same vectors are put into a FAISS index, a pgvector table, a LanceDB table, a Qdrant collection (local mode) and a
Milvus collection (milvus-lite) with each engine's own client, as a user has them, and wrapped. Vectors have length 1
where the engine compares inner products, and any length where it compares cosines. Queries have masses from 0.5 to
1, credible and predictive caps; some are stored directions as points, some caps hold everything.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import aureole as au
from aureole.caps import CredibleIndex, Hits, SearchOptions, cap_cosine
from aureole.engines._schema import exact_cosines, stored_direction
from aureole.records import Record, write_record
from benchmarks.engines import clustered, postgres_server

MASSES = (0.5, 0.8, 0.95, 0.99, 1.0)
KAPPA_POS = 20.0
Wrapped = tuple[CredibleIndex, np.ndarray]  # with the vectors that the engine holds


@contextmanager
def faiss_index(vectors: np.ndarray, kappa: np.ndarray) -> Iterator[Wrapped]:
    """A flat index with ids that are not row numbers; kappa by id."""
    import faiss

    ids = 7 * np.arange(len(vectors)) + 3
    index = faiss.IndexIDMap(faiss.IndexFlatIP(vectors.shape[1]))
    index.add_with_ids(unit(vectors), ids)
    by_id = dict(zip(ids.tolist(), kappa.tolist(), strict=True))
    yield CredibleIndex.wrap(index, kappa=by_id, kappa_pos=KAPPA_POS), unit(vectors)


@contextmanager
def pgvector_table(vectors: np.ndarray, kappa: np.ndarray, address: str) -> Iterator[Wrapped]:
    """A table whose names need quotes, without an approximate index."""
    import pgvector.psycopg
    import psycopg
    from psycopg import sql

    table, column = 'Items "2024"; --', "the embedding"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        pgvector.psycopg.register_vector(connection)
        names = [sql.Identifier(name) for name in (table, column)]
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(names[0]))
        size = sql.Literal(vectors.shape[1])
        create = "CREATE TABLE {} (item bigint PRIMARY KEY, {} vector({}), kappa real)"
        connection.execute(sql.SQL(create).format(*names, size))
        copy = sql.SQL("COPY {} (item, {}, kappa) FROM STDIN WITH (FORMAT BINARY)").format(*names)
        with connection.cursor() as cursor, cursor.copy(copy) as rows:
            rows.set_types(["int8", "vector", "float4"])
            for i, (vector, k) in enumerate(zip(vectors, kappa.tolist(), strict=True)):
                rows.write_row((7 * i + 3, vector, k))
    with CredibleIndex.wrap(address, table, kappa="kappa", kappa_pos=KAPPA_POS) as index:
        yield index, vectors


@contextmanager
def lancedb_table(vectors: np.ndarray, kappa: np.ndarray, folder: Path) -> Iterator[Wrapped]:
    """A table that LanceDB wrote."""
    import lancedb
    import pyarrow as pa

    flat = pa.array(vectors.reshape(-1))
    columns = {
        "item": 7 * np.arange(len(vectors)) + 3,
        "vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
        "kappa": kappa,
    }
    table = lancedb.connect(folder).create_table("items", pa.table(columns))
    yield CredibleIndex.wrap(table, id="item", kappa="kappa", kappa_pos=KAPPA_POS), vectors


@contextmanager
def qdrant_collection(vectors: np.ndarray, kappa: np.ndarray) -> Iterator[Wrapped]:
    """A collection with cosine distance, which Qdrant normalises."""
    from qdrant_client import QdrantClient, models

    client = QdrantClient(":memory:")
    size = vectors.shape[1]
    parameters = models.VectorParams(size=size, distance=models.Distance.COSINE)
    client.create_collection("items", vectors_config=parameters)
    ids = range(3, 7 * len(vectors) + 3, 7)
    payload = [{"kappa": k} for k in kappa.tolist()]
    client.upload_collection("items", vectors=vectors, ids=ids, payload=payload)
    points, _ = client.scroll("items", limit=len(vectors), with_vectors=True)
    held = {point.id: point.vector for point in points}
    index = CredibleIndex.wrap(client, "items", kappa="kappa", kappa_pos=KAPPA_POS)
    yield index, np.array([held[i] for i in ids], np.float32)
    client.close()


@contextmanager
def milvus_collection(vectors: np.ndarray, kappa: np.ndarray, folder: Path) -> Iterator[Wrapped]:
    """A collection in a file of milvus-lite, with a FLAT index for inner products."""
    from pymilvus import DataType, MilvusClient

    client = MilvusClient(str(folder / "milvus.db"))
    schema = client.create_schema(auto_id=False)
    schema.add_field("item", DataType.INT64, is_primary=True)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=vectors.shape[1])
    schema.add_field("kappa", DataType.FLOAT)
    index = client.prepare_index_params()
    index.add_index("vector", index_type="FLAT", metric_type="IP")
    client.create_collection("items", schema=schema, index_params=index)
    rows = zip(unit(vectors).tolist(), kappa.tolist(), strict=True)
    rows = [{"item": 7 * i + 3, "vector": v, "kappa": k} for i, (v, k) in enumerate(rows)]
    for start in range(0, len(rows), 2000):
        client.insert("items", rows[start : start + 2000])
    wrapped = CredibleIndex.wrap(client, "items", kappa="kappa", kappa_pos=KAPPA_POS)
    yield wrapped, unit(vectors)
    client.close()


def unit(vectors: np.ndarray) -> np.ndarray:
    """The directions of vectors, as float32."""
    return stored_direction(torch.from_numpy(vectors))


def engines(stack: ExitStack) -> dict[str, Callable[..., Any]]:
    """Per engine, a function that fills it with vectors and kappas and yields the wrapped index."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    server: list[Any] = []

    def postgres(vectors: np.ndarray, kappa: np.ndarray) -> Any:
        if not server:
            server.append(stack.enter_context(postgres_server()))
        return pgvector_table(vectors, kappa, server[0].get_uri())

    return {
        "FAISS": faiss_index,
        "PostgreSQL": postgres,
        "LanceDB": lambda vectors, kappa: lancedb_table(vectors, kappa, folder / "lancedb"),
        "Qdrant": qdrant_collection,
        "Milvus": lambda vectors, kappa: milvus_collection(vectors, kappa, folder),
    }


def queries_of(vectors: np.ndarray, n: int) -> au.VonMisesFisher:
    """Half stored directions, of which some are points, and half near the clusters, of which some are uniform."""
    dim = vectors.shape[1]
    near = clustered(n - n // 2, dim, clusters=20, noise=1.0, seed=2)
    mu = torch.cat([torch.from_numpy(unit(vectors[: n // 2])), near.mu])
    rng = torch.Generator().manual_seed(3)
    kappa = 2 * dim * torch.exp(1.2 * torch.randn(n, generator=rng))
    kappa[: n // 10] = torch.inf
    kappa[-(n // 10) :] = 0.0
    return au.VonMisesFisher(mu, kappa)


def compare(
    index: CredibleIndex,
    held: np.ndarray,
    queries: au.VonMisesFisher,
    *,
    masses: tuple[float, ...] = MASSES,
) -> dict[str, float]:
    """Queries, results, empty sets, sets of all items, disagreements with brute force, and milliseconds per query."""
    ids = 7 * np.arange(len(held)) + 3
    own = stored_direction(queries.mu)
    tally = dict.fromkeys(("queries", "results", "empty", "everything", "disagreements"), 0)
    seconds = 0.0
    for kind in ("credible", "predictive"):
        options = SearchOptions(kind=kind)
        for mass in masses:
            cap = {"kind": kind, "kappa_pos": KAPPA_POS, "kappa_other": index.schema.typical_kappa}
            thresholds = cap_cosine(queries, mass, **cap).tolist()
            start = time.perf_counter()
            found = index.search(queries, mass, options=options)
            seconds += time.perf_counter() - start
            assert isinstance(found, list)
            for mu, t, hits in zip(own, thresholds, found, strict=True):
                assert isinstance(hits, Hits)
                inside = exact_cosines(mu, held) >= t
                tally["queries"] += 1
                tally["results"] += len(hits)
                tally["empty"] += not inside.any()
                tally["everything"] += bool(inside.all())
                tally["disagreements"] += set(hits.ids) != set(ids[inside].tolist())
    return {**tally, "ms a query": 1000 * seconds / tally["queries"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    options = parser.parse_args()
    gallery = clustered(options.rows, options.dim, clusters=20, noise=1.0, seed=1)
    lengths = 0.5 + 2 * torch.rand(options.rows, 1, generator=torch.Generator().manual_seed(4))
    vectors, kappa = (gallery.mu * lengths).numpy(), gallery.kappa.numpy()
    queries, metrics = queries_of(vectors, options.queries), {}
    with ExitStack() as stack:
        for name, wrapped in engines(stack).items():
            with wrapped(vectors, kappa) as (index, held):
                metrics[name] = compare(index, held, queries)
            print(f"{name}: {json.dumps(metrics[name])}", flush=True)
    settings = {"rows": options.rows, "dim": options.dim, "masses": list(MASSES)}
    settings["kappa_pos"] = KAPPA_POS
    command = f"python -m benchmarks.wrapped --rows {options.rows} --queries {options.queries}"
    record = Record("wrapped", metrics, command, 1, settings)
    write_record(record, options.out / "wrapped.json")


if __name__ == "__main__":
    main()
