"""Indexes that exist already: the sets of brute force in five engines, hostile names, and what is refused."""

import itertools
import uuid

import numpy as np
import pytest
import torch

import aureole as au
from aureole.caps import ConformalMass, CredibleIndex, SearchOptions
from aureole.engines._schema import stored_direction
from aureole.errors import AureoleError, InvalidInputError, MissingInputError
from benchmarks import wrapped
from tests.engines.conftest import assert_exact, brute_force, posteriors

sql = pytest.importorskip("psycopg.sql")
DIM, ROWS = 8, 1000
HOSTILE = 'x"; DROP TABLE items; --'
_names = itertools.count()


@pytest.fixture(scope="module")
def gallery():
    return posteriors(ROWS, DIM, ties=40)


@pytest.fixture(scope="module")
def vectors(gallery):
    """The directions with other lengths."""
    lengths = 0.5 + torch.rand(ROWS, 1, generator=torch.Generator().manual_seed(1))
    return (gallery.mu * lengths).numpy()


def engine(name, request, tmp_path):
    """The function of the benchmark that fills an engine."""
    if name == "FAISS":
        pytest.importorskip("faiss")
        return wrapped.faiss_index
    if name == "PostgreSQL":
        address = request.getfixturevalue("server").get_uri()
        return lambda v, k: wrapped.pgvector_table(v, k, address)
    if name == "LanceDB":
        pytest.importorskip("lancedb")
        return lambda v, k: wrapped.lancedb_table(v, k, tmp_path)
    if name == "Qdrant":
        pytest.importorskip("qdrant_client")
        return wrapped.qdrant_collection
    pytest.importorskip("milvus_lite")
    return lambda v, k: wrapped.milvus_collection(v, k, tmp_path)


@pytest.mark.parametrize("name", ["FAISS", "PostgreSQL", "LanceDB", "Qdrant", "Milvus"])
def test_sets_are_those_of_brute_force(name, request, tmp_path, vectors, gallery):
    kappa = gallery.kappa.numpy()
    with engine(name, request, tmp_path)(vectors, kappa) as (index, held):
        queries = wrapped.queries_of(vectors, 10)
        tally = wrapped.compare(index, held, queries, masses=(0.8, 1.0))
        assert tally["disagreements"] == 0
        assert tally["results"] > 1000
        assert tally["everything"] > 0
        assert index.approximate is None
        assert index.count() == ROWS
        assert index.schema.typical_kappa == pytest.approx(float(np.median(kappa)))
        # rows by id, in order, as directions
        some = [7 * i + 3 for i in (5, 0, 999)]
        fetched, _ = index.fetch(some)
        np.testing.assert_allclose(fetched.mu.numpy(), gallery.mu[[5, 0, 999]].numpy(), atol=1e-6)
        np.testing.assert_allclose(fetched.kappa.numpy(), kappa[[5, 0, 999]], rtol=1e-6)
        with pytest.raises(InvalidInputError, match="does not exist"):
            index.fetch([3, 4])
        scanned = {i: k for ids, ks, _ in index.scan() for i, k in zip(ids, ks, strict=True)}
        assert len(scanned) == ROWS
        assert scanned[7 * 8 + 3] == pytest.approx(float(kappa[8]))
        # a limit, a mixture, and positivity by the items' own kappa
        query = au.VonMisesFisher(gallery.mu[0], 60.0)
        every = index.search(query, 0.9)
        assert index.search(query, 0.9, limit=5).ids == every.ids[:5]
        ranked = index.search(query, 0.9, options=SearchOptions(kappa_pos=20.0, rank="positivity"))
        assert sorted(ranked.ids) == sorted(every.ids)
        assert ranked.ids != every.ids
        mixture = au.MixtureVMF(
            torch.tensor([0.6, 0.4]), gallery.mu[:2], torch.tensor([60.0, 90.0])
        )
        assert set(index.search(mixture, 0.9).ids) >= {3, 10}
        for change in (
            lambda: index.append(gallery, [str(i) for i in range(ROWS)]),
            lambda: index.delete(["3"]),
            lambda: index.build("ivf"),
        ):
            with pytest.raises(InvalidInputError, match="read-only"):
                change()
        assert index.count() == ROWS


def test_ties_are_ordered_by_id(gallery):
    faiss = pytest.importorskip("faiss")
    flat = faiss.IndexFlatIP(DIM)
    flat.add(stored_direction(gallery.mu))
    index = CredibleIndex.wrap(flat, kappa=gallery.kappa)
    query = au.VonMisesFisher(gallery.mu[0], 20.0)
    assert_exact(index.search(query, 0.9), brute_force(gallery, list(range(ROWS)), query, 0.9))


def test_a_conformal_calibration_stays_in_memory(gallery):
    faiss = pytest.importorskip("faiss")
    flat = faiss.IndexFlatIP(DIM)
    flat.add(stored_direction(gallery.mu))
    index = CredibleIndex.wrap(flat, kappa_pos=30.0)
    query = au.VonMisesFisher(gallery.mu[:40], 50.0)
    index.conformal = ConformalMass.fit(query, au.VonMisesFisher(gallery.mu[40:80], 50.0), 30.0)
    hits = index.search(query, 0.9, options=SearchOptions(guarantee="conformal"))
    assert all(len(one) for one in hits)
    assert flat.ntotal == ROWS
    assert index.search(query, 0.9)[0].kappa.isinf().all()  # items without a kappa are points


@pytest.mark.parametrize("metric", ["INNER_PRODUCT", "L2"])
@pytest.mark.parametrize("layout", ["Flat", "IVF8,Flat", "HNSW16", "IDMap,Flat", "IDMap2,HNSW16"])
def test_kinds_of_faiss_indexes(layout, metric, gallery):
    faiss = pytest.importorskip("faiss")
    stored = stored_direction(gallery.mu)
    index = faiss.index_factory(DIM, layout, getattr(faiss, f"METRIC_{metric}"))
    index.train(stored)
    ids = np.random.default_rng(0).permutation(10 * ROWS)[:ROWS] - 5
    if layout.startswith(("IDMap", "IVF")):
        index.add_with_ids(stored, ids)
    else:
        index.add(stored)
        ids = np.arange(ROWS)
    opened = CredibleIndex.wrap(index)
    queries = au.VonMisesFisher(gallery.mu[:30], torch.linspace(2.0, 400.0, 30))
    exact = opened.search(queries, 0.9, exact=True)
    for i, hits in enumerate(exact):
        own = au.VonMisesFisher(queries.mu[i], queries.kappa[i])
        assert_exact(hits, brute_force(gallery, ids.tolist(), own, 0.9))
    recall = opened.check_recall(queries, 0.9, least=0.0)
    if "IVF" not in layout:
        assert recall.share > 0.98
    else:
        assert opened.approximate == {"kind": "ivf", "lists": 8, "probes": 1}
        index.nprobe = 8
        assert opened.check_recall(queries, 0.9).share == 1.0
    limited = opened.search(queries, 0.9, limit=3, exact=True)
    assert [hits.ids for hits in limited] == [hits.ids[:3] for hits in exact]
    # rows that are added later are found
    if not layout.startswith(("IDMap", "IVF")):
        index.add(stored[:1])
        assert opened.count() == ROWS + 1
        assert ROWS in opened.search(au.VonMisesFisher(gallery.mu[0], 1e6), 0.9, exact=True).ids


@pytest.mark.parametrize("layout", ["IDMap,Flat", "IDMap2,Flat", "IVF1,Flat", "IVF8,Flat"])
def test_a_faiss_index_of_the_same_size_with_other_rows(layout, gallery):
    """Rows are replaced one by one: at each step the ids and vectors are those of brute force."""
    faiss = pytest.importorskip("faiss")
    stored = stored_direction(gallery.mu)
    count = 60
    index = faiss.index_factory(DIM, layout, faiss.METRIC_INNER_PRODUCT)
    index.train(stored[:count])
    index.add_with_ids(stored[:count], np.arange(count))
    opened = CredibleIndex.wrap(index)
    row_of = {number: number for number in range(count)}
    query = au.VonMisesFisher(gallery.mu[0], 3.0)
    for step in range(40):
        # every other new row has the id of the old one, which may be in another list of an IVF
        removed = list(row_of)[step % count]
        added = removed if step % 2 else 1000 + step
        index.remove_ids(np.array([removed]))
        del row_of[removed]
        index.add_with_ids(stored[count + step][None], np.array([added]))
        row_of[added] = count + step
        names, rows = list(row_of), list(row_of.values())
        held = au.VonMisesFisher(gallery.mu[rows], gallery.kappa[rows])
        assert_exact(opened.search(query, 0.9, exact=True), brute_force(held, names, query, 0.9))
        fetched, _ = opened.fetch(names)
        torch.testing.assert_close(fetched.mu, held.mu, atol=1e-6, rtol=0)
        with pytest.raises(InvalidInputError, match="does not exist"):
            opened.fetch([removed if added != removed else 999])


def test_faiss_indexes_that_are_refused(gallery):
    faiss = pytest.importorskip("faiss")
    stored = stored_direction(gallery.mu)

    def made(layout, vectors=stored, metric=faiss.METRIC_INNER_PRODUCT):
        index = faiss.index_factory(DIM, layout, metric)
        index.train(vectors)
        index.add(vectors)
        return index

    twice = faiss.IndexIDMap(faiss.IndexFlatIP(DIM))
    twice.add_with_ids(stored[:2], np.array([4, 4]))
    missing = stored.copy()
    missing[7] = np.nan
    for source, options, message in [
        (made("PQ4x4"), {}, "Flat, IVFFlat or HNSWFlat"),
        (made("Flat", metric=faiss.METRIC_L1), {}, "metric"),
        (made("Flat", stored * 2), {}, "length 2.*Normalise"),
        (made("Flat", missing), {}, "id 7 has a vector of length nan"),
        (twice, {}, "id 4 twice"),
        (made("Flat"), {"kappa": "kappa"}, "has no columns"),
        (made("Flat"), {"vector": "v"}, "has no vector"),
        (made("Flat"), {"kappa": [[1.0]]}, "kappa must be"),
        (made("Flat"), {"kappa": -1.0}, "at least 0"),
        (made("Flat"), {"kappa": np.ones(10)}, "no entry for id 10"),
        (made("Flat"), {"kappa": [1.0, float("nan")]}, "at least 0"),
        (made("Flat"), {"kappa": object()}, "kappa must be"),
        (made("Flat"), {"kappa": dict.fromkeys(range(ROWS), "x")}, "given kappa holds other"),
        (object(), {}, "faiss.Index"),
        ("items.csv", {}, "postgresql://"),
        ("postgresql://ann:secret@nowhere.invalid/x", {}, "name the table"),
    ]:
        with pytest.raises(InvalidInputError, match=message) as raised:
            CredibleIndex.wrap(source, **options)
        assert "\n" not in str(raised.value)
        assert "secret" not in str(raised.value)
    empty = CredibleIndex.wrap(faiss.IndexFlatIP(DIM))
    assert empty.search(au.VonMisesFisher(gallery.mu[0], 0.0), 1.0).ids == []
    assert empty.search(au.VonMisesFisher(gallery.mu[0], 0.0), 1.0, limit=3).ids == []


@pytest.fixture
def database(server):
    psycopg = pytest.importorskip("psycopg")
    import pgvector.psycopg

    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        pgvector.psycopg.register_vector(connection)
        yield connection, server.get_uri()


def fill(connection, table, columns, rows):
    """A table with quoted names."""
    name = sql.Identifier(*([table] if isinstance(table, str) else table))
    parts = [sql.SQL("{} {}").format(sql.Identifier(c), sql.SQL(t)) for c, t in columns.items()]
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(name))
    connection.execute(sql.SQL("CREATE TABLE {} ({})").format(name, sql.SQL(", ").join(parts)))
    marks = sql.SQL(", ").join([sql.Placeholder()] * len(columns))
    with connection.cursor() as cursor:
        cursor.executemany(sql.SQL("INSERT INTO {} VALUES ({})").format(name, marks), rows)


def test_a_table_with_hostile_names(database, gallery, vectors):
    connection, address = database
    keys = [uuid.UUID(int=i) for i in range(ROWS)]
    columns = {
        f"id {HOSTILE}": "uuid PRIMARY KEY",
        f"v {HOSTILE}": f"vector({DIM})",
        "kappa%s": "double precision",
        "Title {0}": "text",
        "select": "integer",
    }
    rows = [
        (keys[i], v if i else None, float(k), f"t{i % 3}" if i % 2 else None, i)
        for i, (v, k) in enumerate(zip(vectors, gallery.kappa, strict=True))
    ]
    fill(connection, HOSTILE, columns, rows)
    connection.execute("CREATE SCHEMA IF NOT EXISTS other")
    fill(connection, ("other", "items"), {"id": "text PRIMARY KEY", "v": f"halfvec({DIM})"}, [])
    with CredibleIndex.wrap(
        address, HOSTILE, kappa="kappa%s", columns=["Title {0}", "select"], kappa_pos=20.0
    ) as index:
        assert index.schema.columns == {"Title {0}": "text", "select": "integer"}
        assert index.count() == ROWS - 1  # one has no vector
        query = au.VonMisesFisher(gallery.mu[4], 50.0)
        hits = index.search(query, 0.9, columns=["select", "Title {0}"])
        expected = brute_force(
            gallery,
            keys,
            query,
            0.9,
            kind="predictive",
            kappa_pos=20.0,
            kappa_other=index.schema.typical_kappa,
        )
        assert set(hits.ids) == {i for i, _ in expected} - {keys[0]}
        assert [keys[n] for n in hits.payload["select"]] == hits.ids
        some = index.search(query, 0.9, filter={"Title {0}": "t1", "select": (100, 900)})
        wanted = [i for i in hits.ids if i.int % 2 and i.int % 3 == 1 and 100 <= i.int <= 900]
        assert some.ids == wanted
        assert (
            index.search(query, 0.9, filter={"Title {0}": "t1"}, limit=2).ids
            == index.search(query, 0.9, filter={"Title {0}": "t1"}).ids[:2]
        )
        with pytest.raises(InvalidInputError, match="no payload column"):
            index.search(query, 0.9, filter={"id": "x"})
        assert index.fetch([keys[9]])[0].kappa.item() == pytest.approx(float(gallery.kappa[9]))
    count = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(HOSTILE))
    assert connection.execute(count).fetchone()[0] == ROWS
    with CredibleIndex.wrap(address, ("other", "items")) as index:
        assert index.search(query, 1.0).ids == []
    with pytest.raises(MissingInputError, match="no table"):
        CredibleIndex.wrap(address, "nothing")
    with pytest.raises(MissingInputError, match="no table"):
        CredibleIndex.wrap(f"{address}#a%22b")
    for options, message in [
        ({"id": "nothing"}, "no id column 'nothing'"),
        ({"vector": "select"}, "no vector column 'select'"),
        ({"columns": ["nothing"]}, "no column 'nothing'"),
        ({"kappa": "nothing"}, "no column 'nothing'"),
        ({"kappa": "Title {0}"}, "kappa"),
        ({"columns": [f"id {HOSTILE}"]}, "UUID"),
    ]:
        with pytest.raises(InvalidInputError, match=message) as raised:
            CredibleIndex.wrap(address, HOSTILE, **options).search(query)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
@pytest.mark.parametrize("method", ["hnsw", "ivfflat"])
def test_indexes_of_a_table(database, gallery, metric, method):
    connection, address = database
    table = f"indexed_{next(_names)}"
    stored = stored_direction(gallery.mu)
    fill(
        connection,
        table,
        {"id": "integer PRIMARY KEY", "v": f"vector({DIM})"},
        list(enumerate(stored)),
    )
    connection.execute(f"CREATE INDEX ON {table} USING {method} (v vector_{metric}_ops)")
    with CredibleIndex.wrap(address, table) as index:
        assert index.approximate["metric"] == metric
        queries = au.VonMisesFisher(gallery.mu[:10], torch.linspace(5.0, 200.0, 10))
        for i, hits in enumerate(index.search(queries, 0.9, exact=True)):
            own = au.VonMisesFisher(queries.mu[i], queries.kappa[i])
            assert_exact(hits, brute_force(gallery, list(range(ROWS)), own, 0.9))
        assert index.check_recall(queries, 0.9, least=0.0).share > (
            0.95 if method == "hnsw" else 0.1
        )
        assert len(index.search(queries, 0.9, limit=4)[0]) == 4
    if metric == "cosine":
        return
    stretch = sql.SQL("UPDATE {} SET v = v * v WHERE id < 3").format(sql.Identifier(table))
    connection.execute(stretch)
    with pytest.raises(InvalidInputError, match=r"length .* Normalise"):
        CredibleIndex.wrap(address, table)


def test_a_column_without_a_dimension_is_refused(database):
    connection, address = database
    fill(connection, "mixed", {"id": "integer PRIMARY KEY", "v": "vector"}, [(0, np.ones(3))])
    with pytest.raises(InvalidInputError, match="has no dimension"):
        CredibleIndex.wrap(f"{address}#mixed")


def test_a_lance_table(tmp_path, gallery, vectors):
    lancedb = pytest.importorskip("lancedb")
    import pyarrow as pa

    flat = pa.array(
        np.concatenate([vectors, np.zeros((1, DIM), np.float32)]).reshape(-1).astype(np.float64)
    )
    data = pa.table({
        HOSTILE: [*range(ROWS), -1],
        "my vector": pa.FixedSizeListArray.from_arrays(flat, DIM),
        "Name 'x'": [f"n{i}" if i % 2 else None for i in range(ROWS + 1)],
        "a`b": [1.0] * (ROWS + 1),
    })  # fmt: skip
    database = lancedb.connect(tmp_path)
    table = database.create_table("items", data)
    path = tmp_path / "items.lance"
    query = au.VonMisesFisher(gallery.mu[0], 12.0)
    expected = {i for i, _ in brute_force(gallery, list(range(ROWS)), query, 0.9)}
    for source in (table, path, str(path), table.to_lance()):
        index = CredibleIndex.wrap(source, id=HOSTILE, columns=["Name 'x'"])
        hits = index.search(query, 0.9, columns=["Name 'x'"])
        assert set(hits.ids) == expected  # without the vector of zeros
        odd = index.search(query, 0.9, filter={"Name 'x'": ("n", None)})
        assert odd.ids == [i for i in hits.ids if i % 2]
        assert len(index.search(query, 0.9, limit=3)) == 3
    table.delete("`Name 'x'` = 'n1'")
    assert CredibleIndex.wrap(table, id=HOSTILE).count() == ROWS
    for options, message in [
        ({}, "id column"),
        ({"id": "nothing"}, "no id column 'nothing'"),
        ({"id": HOSTILE, "vector": "Name 'x'"}, "no column of vectors"),
        ({"id": HOSTILE, "columns": ["nothing"]}, "no column 'nothing'"),
        ({"id": HOSTILE, "kappa": "a`b"}, "no column 'a`b'"),
        ({"id": HOSTILE, "kappa": "Name 'x'"}, "kappa"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            CredibleIndex.wrap(table, **options).search(query)
    with pytest.raises(MissingInputError, match="does not exist"):
        CredibleIndex.wrap(tmp_path / "nothing.lance")


@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_a_lance_table_with_an_index(tmp_path, gallery, metric):
    lance = pytest.importorskip("lance")
    import pyarrow as pa

    flat = pa.array(stored_direction(gallery.mu).reshape(-1))
    data = {"id": list(range(ROWS)), "vector": pa.FixedSizeListArray.from_arrays(flat, DIM)}
    table = lance.write_dataset(pa.table(data), tmp_path / "items.lance")
    table.create_index("vector", "IVF_PQ", metric=metric, num_partitions=2, num_sub_vectors=4)
    index = CredibleIndex.wrap(tmp_path / "items.lance")
    assert index.approximate == {"kind": "ivf_pq"}
    queries = au.VonMisesFisher(gallery.mu[:10], torch.linspace(5.0, 200.0, 10))
    for i, hits in enumerate(index.search(queries, 0.9, exact=True)):
        own = au.VonMisesFisher(queries.mu[i], queries.kappa[i])
        assert_exact(hits, brute_force(gallery, list(range(ROWS)), own, 0.9))
    assert index.check_recall(queries, 0.9, least=0.0).share > 0.3


def test_a_qdrant_collection(gallery, vectors):
    qdrant = pytest.importorskip("qdrant_client")
    models = qdrant.models
    client = qdrant.QdrantClient(":memory:")
    kinds = {"photo": "COSINE", "title": "DOT", "far": "EUCLID", "city": "MANHATTAN"}
    config = {
        n: models.VectorParams(size=DIM, distance=getattr(models.Distance, d))
        for n, d in kinds.items()
    }
    client.create_collection("items", vectors_config=config)
    stored = stored_direction(gallery.mu)
    ids = [i if i % 2 else str(uuid.UUID(int=i)) for i in range(ROWS)]  # both kinds of ids
    client.upload_collection(
        "items",
        vectors=[{"photo": v, "title": u, "far": u} for v, u in zip(vectors, stored, strict=True)],
        ids=ids,
        payload=[{"a.b[0]": i, "name": f"n{i % 4}"} if i % 3 else {} for i in range(ROWS)],
    )
    query = au.VonMisesFisher(gallery.mu[0], 12.0)
    expected = {i for i, _ in brute_force(gallery, ids, query, 0.9)}
    for vector in ("photo", "title", "far"):
        index = CredibleIndex.wrap(client, "items", vector=vector, columns=["name", "a.b[0]"])
        hits = index.search(query, 0.9, columns=["a.b[0]"])
        assert set(hits.ids) == expected
        assert all(
            n is None or ids[n] == i for n, i in zip(hits.payload["a.b[0]"], hits.ids, strict=True)
        )
        some = index.search(query, 0.9, filter={"name": ["n1", "n2"]})
        assert set(some.ids) == {
            ids[i] for i in range(ROWS) if ids[i] in expected and i % 3 and i % 4 in (1, 2)
        }
        assert index.fetch([ids[4], 7])[0].kappa.isinf().all()
    for arguments, message in [
        (("items",), "name of its vector"),
        (("items", "city"), "Manhattan"),
        (("items", "nothing"), "no vector 'nothing'"),
        ((None,), "name the collection"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            CredibleIndex.wrap(client, arguments[0], vector=dict(enumerate(arguments)).get(1))
    with pytest.raises(InvalidInputError, match="omit id"):
        CredibleIndex.wrap(client, "items", vector="photo", id="id")
    with pytest.raises(MissingInputError, match="no collection"):
        CredibleIndex.wrap(client, "nothing")
    client.upsert(
        "items", [models.PointStruct(id=10**6, vector={"title": [2.0] * DIM}, payload={"name": 3})]
    )
    with pytest.raises(InvalidInputError, match=r"length 5\.657"):
        CredibleIndex.wrap(client, "items", vector="title").search(query, 1.0)
    with pytest.raises(InvalidInputError, match="synchronous"):
        CredibleIndex.wrap(qdrant.AsyncQdrantClient(":memory:"), "items")
    client.close()


def test_an_engine_that_is_gone():
    qdrant = pytest.importorskip("qdrant_client")
    client = qdrant.QdrantClient(url="http://127.0.0.1:9", timeout=1, check_compatibility=False)
    with pytest.raises(AureoleError, match="Qdrant could not answer") as raised:
        CredibleIndex.wrap(client, "items")
    assert "\n" not in str(raised.value)


def test_a_milvus_collection(tmp_path, gallery, vectors):
    pytest.importorskip("milvus_lite")
    from pymilvus import DataType, MilvusClient

    client = MilvusClient(str(tmp_path / "m.db"))
    schema = client.create_schema(auto_id=False, enable_dynamic_field=True)
    schema.add_field("key", DataType.VARCHAR, is_primary=True, max_length=60)
    schema.add_field("v", DataType.FLOAT_VECTOR, dim=DIM)
    for metric in ("COSINE", "L2"):
        index = client.prepare_index_params()
        index.add_index(
            "v", index_type="HNSW" if metric == "COSINE" else "FLAT", metric_type=metric
        )
        client.create_collection(metric, schema=schema, index_params=index)
        held = vectors if metric == "COSINE" else stored_direction(gallery.mu)
        names = [f'it\'s "{i}" or 1==1' for i in range(ROWS)]
        client.insert(
            metric,
            [
                {"key": k, "v": v.tolist(), "shop": f"s{i % 3}"}
                for i, (k, v) in enumerate(zip(names, held, strict=True))
            ],
        )
        query = au.VonMisesFisher(gallery.mu[0], 12.0)
        expected = {i for i, _ in brute_force(gallery, names, query, 0.9)}
        opened = CredibleIndex.wrap(
            client, metric, kappa=dict.fromkeys(names, 30.0), columns=["shop"]
        )
        assert (opened.approximate is None) == (metric == "L2")
        assert set(opened.search(query, 0.9, exact=True).ids) == expected
        assert len(expected - set(opened.search(query, 0.9).ids)) <= 0.05 * len(expected)
        some = opened.search(query, 0.9, exact=True, filter={"shop": "s1"})
        assert set(some.ids) == {n for i, n in enumerate(names) if n in expected and i % 3 == 1}
        assert len(opened.search(query, 0.9, limit=3, exact=True)) == 3
        assert opened.fetch(names[5:7])[0].kappa.tolist() == [30.0, 30.0]
        with pytest.raises(InvalidInputError, match="no primary key 'nothing'"):
            CredibleIndex.wrap(client, metric, id="nothing")
    client.insert("L2", [{"key": "long", "v": [3.0] * DIM, "shop": "s"}])
    with pytest.raises(InvalidInputError, match=r"'long' has a vector of length 8\.485"):
        CredibleIndex.wrap(client, "L2")
    with pytest.raises(MissingInputError, match="no collection"):
        CredibleIndex.wrap(client, "nothing")
    client.close()
