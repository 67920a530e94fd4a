"""Compressed indexes propose candidates; what is returned is compared with a look at every row."""

import json

import numpy as np
import pytest
import torch

import aureole as au
from aureole.errors import DamagedGalleryError, InvalidInputError
from aureole.retrieval import CredibleIndex, SearchOptions
from aureole.retrieval._compression import Compression
from aureole.retrieval._integrity import parse_index_note
from aureole.retrieval._quantisation import (
    NearPairs,
    error_bands,
    measure_index,
    nearest_exactly,
    sample_places,
)
from aureole.retrieval._schema import Rows, object_array
from tests.cli.conftest import run
from tests.retrieval.conftest import address, brute_force, names, posteriors

ENGINES = ["lance", "faiss", "postgres"]


@pytest.fixture(params=ENGINES)
def compressible(request, tmp_path):
    """A function that gives a new address of each engine with compressed indexes."""
    return lambda: address(request.param, request, tmp_path)


def queries_of(gallery, count, kappa, seed=3):
    """Queries near rows of a gallery, and one of the rows."""
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(gallery.kappa), (count,), generator=rng)
    mu = gallery.mu[rows] + 0.1 * torch.randn(count, gallery.dim, generator=rng) / gallery.dim**0.5
    mu[0] = gallery.mu[rows[0]]
    return au.VonMisesFisher(au.sphere.normalize(mu), torch.full((count,), kappa))


def share_found(index, gallery, ids, queries, mass=0.9, **options):
    """The share of the members, by brute force, that a search returns; others, or wrong cosines, fail the test."""
    members = found = 0
    for row, hits in enumerate(index.search(queries, mass, **options)):
        query = au.VonMisesFisher(queries.mu[row], queries.kappa[row])
        exact = dict(brute_force(gallery, ids, query, mass))
        for name, cosine in zip(hits.ids, hits.cosine.tolist(), strict=True):
            assert exact[name] == cosine
        assert hits.cosine.diff().le(0).all()
        members += len(exact)
        found += len(hits)
    return found / members, members


@pytest.mark.parametrize("dim", [64, 128])
def test_members_have_exact_cosines_and_few_are_lost(compressible, dim):
    gallery, ids = posteriors(2000, dim, ties=200), names(2000)
    with CredibleIndex.create(compressible(), gallery, ids) as index:
        index.build("ivf", compressed=True)
        about = index.approximate
        assert about is not None
        assert about["kind"] == "ivf"
        assert about["compressed"] in ("pq", "scalar", "half")
        assert 0 <= about["error"] < 0.2
        for kappa in (10.0, 300.0, 1e4):  # from a thousand members to none but a twin
            share, members = share_found(index, gallery, ids, queries_of(gallery, 12, kappa))
            assert members >= 1
            assert share >= 0.98
        assert index.check() == []
        index.build("ivf")  # and back
        assert "compressed" not in index.approximate


@pytest.mark.parametrize(("rows", "dim"), [(1, 8), (2, 16), (40, 8), (300, 5), (300, 3), (500, 24)])
def test_small_galleries_can_be_compressed(compressible, rows, dim):
    gallery, ids = posteriors(rows, dim, ties=rows // 4), names(rows)
    with CredibleIndex.create(compressible(), gallery, ids) as index:
        index.build("ivf", compressed=True)
        share, _ = share_found(index, gallery, ids, queries_of(gallery, 20, 5.0))
        assert share >= 0.98
        everyone = au.VonMisesFisher(gallery.mu[0], 0.0)
        assert (
            len(index.search(everyone, 1.0, options=SearchOptions(kind="credible"))) >= 0.9 * rows
        )


def test_limits_filters_and_mixtures(compressible):
    gallery, ids = posteriors(1500, 32, ties=100), names(1500)
    payload = {"stock": list(range(1500))}
    with CredibleIndex.create(compressible(), gallery, ids, payload) as index:
        index.build("ivf", compressed=True, lists=20, probes=20)
        assert index.approximate["probes"] == 20
        queries = queries_of(gallery, 20, 30.0)
        same = 0
        for limit in (1, 7, 100):
            exact = index.search(queries, 0.9, limit=limit, exact=True)
            for left, right in zip(index.search(queries, 0.9, limit=limit), exact, strict=True):
                same += left.ids == right.ids
        assert same >= 58  # of 60
        few = index.search(queries, 0.9, filter={"stock": (None, 700)}, columns=["stock"])
        exact = index.search(queries, 0.9, filter={"stock": (None, 700)}, exact=True)
        assert sum(map(len, few)) >= 0.99 * sum(map(len, exact)) > 20
        for left, right in zip(few, exact, strict=True):
            assert set(left.ids) <= set(right.ids)
            assert all(
                ids[i] == name for i, name in zip(left.payload["stock"], left.ids, strict=True)
            )
        mixture = au.MixtureVMF(
            torch.tensor([0.5, 0.5]), gallery.mu[:2], torch.tensor([60.0, 20.0])
        )
        left, right = (index.search(mixture, 0.9, exact=exact) for exact in (False, True))
        assert set(left.ids) <= set(right.ids)
        assert len(left) >= 0.98 * len(right)
        recall = index.check_recall(queries, 0.9, least=0.9)
        assert recall.share >= 0.98
        assert sum(part.members for part in recall.by_size.values()) == recall.members
        assert all(part.share >= 0.95 for part in recall.by_size.values())


def test_rows_come_and_go_in_a_compressed_gallery(compressible):
    gallery, where, ids = posteriors(1700, 16), compressible(), names(1700)
    first = au.VonMisesFisher(gallery.mu[:1200], gallery.kappa[:1200])
    payload = {"shop": [f"s{i % 3} ü" for i in range(1700)]}
    some = {"shop": payload["shop"][:1200]}
    with CredibleIndex.create(where, first, ids[:1200], some) as index:
        index.build("ivf", compressed=True)
        other = CredibleIndex.open(where)
        late = au.VonMisesFisher(gallery.mu[1200:], gallery.kappa[1200:])
        index.append(late, ids[1200:], {"shop": payload["shop"][1200:]})
        with pytest.raises(InvalidInputError, match="row 7"):
            index.append(first[:1], ["row 7"], {"shop": ["x"]})
        assert other.count() == 1700
        queries = queries_of(gallery, 15, 20.0)
        for reader in (index, other):
            assert share_found(reader, gallery, ids, queries)[0] >= 0.98
        assert index.delete([*ids[:500], "never there"]) == 500
        rest = au.VonMisesFisher(gallery.mu[500:], gallery.kappa[500:])
        for reader in (index, other):
            assert reader.count() == 1200
            assert share_found(reader, rest, ids[500:], queries)[0] >= 0.98
        turned = au.VonMisesFisher(-gallery.mu[600:610], 70.0)
        assert other.upsert(turned, ids[600:610], {"shop": ["south"] * 10}) == 10
        point = au.VonMisesFisher(-gallery.mu[605], 1e6)
        assert index.search(point, columns=["shop"]).payload == {"shop": ["south"]}
        posterior, values = index.fetch(["row 605", "row 1600"], columns=["shop"])
        assert values == {"shop": ["south", payload["shop"][1600]]}
        torch.testing.assert_close(posterior.mu, torch.stack([-gallery.mu[605], gallery.mu[1600]]))
        seen = [name for part, _, _ in index.scan() for name in part]
        assert sorted(seen) == sorted(ids[500:])
        other.close()
    with CredibleIndex.open(where) as index:
        assert index.check() == []
        index.build("ivf", compressed=True)
        everyone = au.VonMisesFisher(gallery.mu[0], 0.0)
        assert sorted(index.search(everyone, 1.0, exact=True).ids) == sorted(ids[500:])
        assert index.check() == []


def test_what_cannot_be_compressed(compressible):
    gallery = posteriors(30, 8)
    with CredibleIndex.create(compressible(), gallery, names(30)) as index:
        with pytest.raises(InvalidInputError, match="only 'ivf'"):
            index.build("hnsw", compressed=True)
        with pytest.raises(InvalidInputError, match="build takes"):
            index.build("ivf", compressed=True, width=3)
        assert index.approximate is None
    none = au.VonMisesFisher(torch.zeros(0, 8), torch.zeros(0))
    with CredibleIndex.create(compressible(), none, []) as index:
        with pytest.raises(InvalidInputError, match="no rows"):
            index.build("ivf", compressed=True)
        assert index.approximate is None


@pytest.mark.parametrize(
    "change",
    [
        {"code": "zip"}, {"code": 3}, {"bytes": 0}, {"bytes": 2.0}, {"bytes": True}, {"bytes": 10**9}, {"more": 1},
        {"errors": []}, {"errors": None}, {"errors": [[-1, -0.1]]}, {"errors": [[-1, 3]]}, {"errors": [[-1, "0"]]},
        {"errors": [[0, 0.1]]}, {"errors": [[-1, 0.1], [-1, 0.1]]}, {"errors": [[-1, 0.1], [1, 0.1]]},
        {"errors": [[-1, True]]}, {"errors": [[-1]]}, {"errors": [[-1, 0.1]] * 10**4}, {"errors": {"-1": 0.1}},
    ],
)  # fmt: skip
def test_a_damaged_note_is_noticed(change):
    note = {"kind": "ivf", "lists": 4, "sizes": {"probes": 2}}
    valid = {"code": "pq", "bytes": 2, "errors": [[-1, 0.1]]}
    parsed = parse_index_note(note | {"compression": dict(valid)}, "x")
    assert parsed["compression"] == Compression("pq", 2, ((-1.0, 0.1),))
    with pytest.raises(DamagedGalleryError, match="compression of its approximate index"):
        parse_index_note(note | {"compression": valid | change}, "x")
    with pytest.raises(DamagedGalleryError, match="compression of its approximate index"):
        parse_index_note(note | {"compression": 7}, "x")


def test_a_lance_index_with_other_codes_than_its_note_is_noticed(tmp_path):
    lance = pytest.importorskip("lance")
    gallery, where = posteriors(1100, 16), str(tmp_path / "g.lance")
    with CredibleIndex.create(where, gallery, names(1100)) as index:
        index.build("ivf", compressed=True)
    table = lance.dataset(where)
    note = json.loads(table.schema.metadata[b"aureole.index"])
    for change in ({"bytes": 8}, {"code": "scalar"}, {"code": "half"}):
        wrong = note | {"compression": note["compression"] | change}
        table.update_schema_metadata({"aureole.index": json.dumps(wrong)})
        with pytest.raises(DamagedGalleryError, match="Build it again"):
            CredibleIndex.open(where)
    table.update_schema_metadata({"aureole.index": json.dumps(note)})
    CredibleIndex.open(where).close()


def test_the_error_is_the_quantile_of_the_estimates():
    rng = np.random.default_rng(0)
    mu = rng.standard_normal((500, 12)).astype(np.float32)
    mu /= np.linalg.norm(mu, axis=1, keepdims=True)
    ids = object_array(names(500))
    place = {name: i for i, name in enumerate(ids)}

    def estimate(query, wanted, probes):
        rows = np.array([place[name] for name in wanted])
        visited = np.flatnonzero(rows % 8 < probes)  # list i holds the rows with remainder i
        noise = 0.1 * (rows[visited] % 2)  # every other row is underestimated by 0.1
        return visited, mu[rows[visited]].astype(np.float64) @ query.astype(np.float64) - noise

    sample = Rows(ids, mu, np.ones(500, np.float32))
    errors, sizes = measure_index(sample, 500, estimate, 8, {})
    assert [error for _, error in errors] == pytest.approx([0.1] * len(errors), abs=1e-5)
    assert sizes == {"probes": 8}  # with 4, half of the pairs would be lost
    assert measure_index(sample, 500, estimate, 8, {"probes": 3})[1] == {"probes": 3}
    perfect = measure_index(
        sample, 500, lambda q, w, p: (np.arange(len(w)), np.full(len(w), 2.0)), 8, {}
    )
    assert {error for _, error in perfect[0]} == {0.0}
    assert perfect[1] == {"probes": 1}


def test_bounds_are_lowered_by_what_members_need():
    rng = np.random.default_rng(2)
    cosines = rng.uniform(-0.5, 1, 200_000)
    errors = rng.uniform(
        0, 0.05 + 0.2 * np.maximum(cosines, 0)
    )  # near duplicates are misjudged most
    code = Compression("pq", 8, error_bands(cosines, errors))
    for bound in (-1.0, -0.3, 0.1, 0.5, 0.75, 0.93, 0.99):
        members = cosines >= bound
        found = (cosines - errors)[members] >= bound - code.widening(bound)
        assert found.mean() >= 0.998
    assert code.widening(0.1) < 0.12 < code.widening(0.97)
    assert Compression("pq", 8, ((-1.0, 0.0),)).widening(0.5) > 0


def test_pairs_are_near_and_the_sample_is_fixed():
    mu = posteriors(3000, 16).mu.numpy()
    pairs = NearPairs.of(mu, 3000)
    for query, places, cosines in zip(pairs.queries, pairs.places, pairs.cosines, strict=True):
        every = np.sort(mu @ query)[::-1]
        assert cosines[0] == pytest.approx(1)  # the query itself
        assert cosines.min() >= every[999] - 1e-6
        assert len(set(places.tolist())) == len(places)
    few = NearPairs.of(mu, 3000, 250)  # a shard has a part of the members
    assert few.ranks[-1] == 249
    many = NearPairs.of(mu, 10**9)
    assert max(map(len, many.places)) <= 96
    assert np.array_equal(sample_places(7, 16), np.arange(7))
    drawn = sample_places(10**9, 16)
    assert np.array_equal(drawn, sample_places(10**9, 16))
    assert (np.diff(drawn) > 0).all()
    assert len(drawn) > 2**18
    assert 2**15 < len(sample_places(10**9, 4096)) <= 2**16


def test_nearest_rows_are_exact_although_estimates_are_not():
    rng = np.random.default_rng(1)
    mu = rng.standard_normal((400, 6)).astype(np.float32)
    mu /= np.linalg.norm(mu, axis=1, keepdims=True)
    query, exact = mu[3], mu @ mu[3]
    estimates = exact + rng.uniform(-0.1, 0.1, 400)

    def rows(places):
        return Rows(
            object_array([str(i) for i in places]), mu[places], np.ones(len(places), np.float32)
        )

    def near(_, k):
        return rows(np.argsort(-estimates)[:k])

    def within(_, bound):
        return rows(np.flatnonzero(estimates >= bound - 0.1 - 1e-6))

    for k in (1, 5, 60, 400, 500):
        found = nearest_exactly(query, k, near, within)
        assert set(found.ids) == {str(i) for i in np.argsort(-exact)[:k]}
    assert len(nearest_exactly(query, 0, near, within)) == 0


def test_the_commands_compress(compressible, tmp_path):
    from aureole.data import write_columns

    gallery = posteriors(400, 16)
    table = {
        "id": np.array(names(400), dtype=object),
        "mu": gallery.mu.numpy(),
        "kappa": gallery.kappa.numpy(),
    }
    write_columns(tmp_path / "scored.parquet", table)
    where = compressible()
    build = ["index", "build", tmp_path / "scored.parquet", "--id-column", "id", "--out", where]
    assert run(*build, "--approximate", "hnsw", "--compress").exit_code == 2
    result = run(*build, "--compress", "--lists", "10", "--json")
    assert result.exit_code == 0, result.output
    built = json.loads(result.stdout)
    assert built["approximate"]["compressed"] in ("pq", "scalar", "half")
    assert built["recall"] >= 0.95
    result = run("index", "info", where)
    assert result.exit_code == 0, result.output
    assert "compressed" in result.stdout
    result = run("index", "approximate", where)
    assert result.exit_code == 0, result.output
    assert "compressed" not in result.stdout
    assert run("index", "approximate", where, "--kind", "hnsw", "--compress").exit_code == 2
    assert run("index", "approximate", where, "--workers", "2", "--compress").exit_code == 2
    result = run("index", "approximate", where, "--compress", "--probes", "9")
    assert result.exit_code == 0, result.output
    assert "probes 9" in result.stdout
    assert run("index", "check", where).exit_code == 0
