"""``aureole index`` and ``aureole search`` on every engine that keeps rows, against a look at every row."""

import json

import numpy as np
import pytest
import torch

import aureole as au
from aureole.caps import CredibleIndex
from aureole.data import write_columns
from aureole.models._saving import MINILM_CAPTIONS
from tests.cli.conftest import run
from tests.engines.conftest import brute_force, posteriors

HOSTILE = [
    "'; DROP TABLE gallery; --",
    '"); DELETE',
    "%s",
    "a\\b\n[red]",
    "<script>alert(1)</script>",
    "ü" * 512,
]

BAD_FILTERS = [
    "price=1; DROP TABLE x",
    "price=nan",
    "price=1_0",
    "price=1e999",
    "stock=1.5",
    "stock=" + "9" * 5000,
    "new=yes",
    "new=false..true",
    "id=x",
    "1=1",
    "price",
    "price=1..2..3",
    "price=..",
    'label="a',
]


@pytest.fixture
def scored(tmp_path):
    """(A table of mu and kappa as score writes it, its posteriors, its ids)."""
    gallery = posteriors(300, 8)
    ids = HOSTILE + [f"row {i}" for i in range(len(HOSTILE), 300)]
    table = {
        "id": np.array(ids, dtype=object),
        "kappa": gallery.kappa.numpy(),
        "mu": gallery.mu.numpy(),
        "price": np.arange(300) / 4,
        "stock": np.arange(300),
        "new": np.arange(300) % 3 == 0,
        "note": np.array(
            ["<img src=x onerror=alert(1)>", "[bold]\x1b[31m", "a,b"] * 100, dtype=object
        ),
    }
    columns = ["--payload-column", "price", "--payload-column", "stock", "--payload-column", "new"]
    return (
        write_columns(tmp_path / "scored.parquet", table),
        gallery,
        ids,
        [*columns, "--payload-column", "label=note"],
    )


def said(*command):
    done = run(*command, "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def test_a_table_becomes_the_gallery_that_search_finds_all_of(durable, scored, monkeypatch):
    monkeypatch.setattr("aureole.cli._index.CHUNK", 128)
    path, gallery, ids, columns = scored
    where = durable()
    built = said(
        "index", "build", path, "--id-column", "id", *columns, "--kappa-pos", "16", "--out", where
    )
    assert (built["rows"], built["dim"], built["approximate"], built["conformal"]) == (
        300,
        8,
        None,
        None,
    )
    assert built["typical_kappa"] == pytest.approx(float(np.median(gallery.kappa)))
    assert built["columns"] == {
        "price": "number",
        "stock": "integer",
        "new": "boolean",
        "label": "text",
    }
    info = said("index", "info", where)
    assert info == {name: value for name, value in built.items() if name != "seconds"}
    sizes = []
    for place in (*range(len(HOSTILE)), 50, 299):
        query = au.VonMisesFisher(gallery.mu[place], gallery.kappa[place])
        search = ("search", where, "--id", ids[place], "--mass", "0.9", "--kind", "credible")
        found = said(*search)
        expected = [hit for hit in brute_force(gallery, ids, query, 0.9) if hit[0] != ids[place]]
        assert [(hit["id"], hit["cosine"]) for hit in found["hits"]] == expected
        assert said(*search, "--limit", "3")["hits"] == found["hits"][:3]
        sizes.append(len(found["hits"]))
        for hit in found["hits"]:
            row = ids.index(hit["id"])
            label = ["<img src=x onerror=alert(1)>", "[bold]\x1b[31m", "a,b"][row % 3]
            values = {"price": row / 4, "stock": row, "new": row % 3 == 0, "label": label}
            assert hit["payload"] == values
    assert max(sizes) > 3


def test_filters_are_values(durable, scored):
    path, _, ids, columns = scored
    where = durable()
    said("index", "build", path, "--id-column", "id", *columns, "--out", where)

    def rows(*filters):
        given = [part for text in filters for part in ("--filter", text)]
        found = said("search", where, "--id", "row 50", "--mass", "1", *given)
        return {ids.index(hit["id"]) for hit in found["hits"]}

    assert rows("price=10..20") == {i for i in range(40, 81) if i != 50}
    assert rows("price=..2.5", "new=true") == {0, 3, 6, 9}
    assert rows("stock=7,9") == {7, 9}
    assert rows('label="a,b"', "stock=..8") == {2, 5, 8}
    assert rows("label=<img src=x onerror=alert(1)>", "stock=..5") == {0, 3}
    assert rows("label='; DROP TABLE x") == set()
    for bad in BAD_FILTERS:
        done = run("search", where, "--id", "row 50", "--filter", bad, "--json")
        assert done.exit_code == 1, bad
        assert isinstance(done.exception, au.errors.InvalidInputError)
        assert len(str(done.exception)) < 400
    done = run("search", where, "--id", "row 50", "--filter", "price=1", "--filter", "price=2")
    assert "two filters" in str(done.exception)
    assert said("index", "info", where)["rows"] == 300


def test_appending_is_refused_or_whole(durable, scored, tmp_path):
    path, _, _, columns = scored
    where = durable()
    said("index", "build", path, "--id-column", "id", *columns, "--out", where)
    again = run("index", "append", path, "--to", where, "--id-column", "id", *columns)
    assert again.exit_code == 1
    assert "in the gallery already" in str(again.exception)
    more = posteriors(5, 8, seed=1)
    table = {"id": np.array([f"new {i}" for i in range(5)], dtype=object), "price": np.zeros(5), "mu": more.mu.numpy(),
             "kappa": more.kappa.numpy(), "stock": np.zeros(5, int), "new": np.ones(5, bool),
             "note": np.array(5 * [""], dtype=object)}  # fmt: skip
    new = write_columns(tmp_path / "new.parquet", table)
    assert run("index", "append", new, "--to", where, "--id-column", "id").exit_code == 1
    found = said("index", "append", new, "--to", where, "--id-column", "id", *columns)
    assert (found["appended"], found["rows"]) == (5, 305)
    with CredibleIndex.open(where) as index:
        stored, _ = index.fetch(["new 3", "new 1"])
        torch.testing.assert_close(stored.mu, more.mu[[3, 1]])
        assert stored.kappa.tolist() == more.kappa[[3, 1]].tolist()


@pytest.mark.parametrize("sizes", [("ivf", "--probes", 1), ("hnsw", "--width", 64)])
def test_an_approximate_index_is_built_and_checked(durable, scored, sizes):
    path, _, _, _ = scored
    kind, option, size = sizes
    where = durable()
    said("index", "build", path, "--id-column", "id", "--out", where)
    found = said("index", "approximate", where, "--kind", kind, option, size)
    assert found["approximate"]["kind"] == kind
    assert found["approximate"][option.removeprefix("--")] == size
    assert found["recall"] < 0.5 if kind == "ivf" else found["recall"] > 0.9
    assert said("index", "info", where)["approximate"] == found["approximate"]
    query = ("search", where, "--id", "row 50", "--mass", "0.99")
    exact = {hit["id"] for hit in said(*query, "--exact")["hits"]}
    loose = {hit["id"] for hit in said(*query)["hits"]}
    assert loose <= exact
    assert loose != exact or kind == "hnsw"


def test_passwords_are_never_shown(server, scored):
    address = server.get_uri()
    scheme, rest = address.split("://")
    user, at, host = rest.rpartition("@")
    secret = f"{scheme}://{user.partition(':')[0] or 'postgres'}:hunter2{at or '@'}{host}"
    done = run("index", "info", f"{secret}#nothing_here", "--json")
    assert done.exit_code == 1
    assert "hunter2" not in done.output + str(done.exception)
    mu = np.eye(3, dtype=np.float32)
    for place in (f"{secret}#passworded", f"{secret}&password=hunter2#passworded_too"):
        if "?" not in place and "&" in place:
            place = place.replace("&", "?")
        with CredibleIndex.create(
            place, au.VonMisesFisher(torch.from_numpy(mu), 9.0), ["a", "b", "c"]
        ):
            pass
        for command in (("index", "info", place), ("search", place, "--id", "a", "--mass", "1")):
            for flags in ((), ("--json",)):
                done = run(*command, *flags)
                assert done.exit_code == 0, done.exception
                assert "passworded" in done.output or "search" in command
                assert "hunter2" not in done.output
    with CredibleIndex.open(f"{secret}#passworded") as index:
        index.delete(["a", "b", "c"])
    empty = run("index", "approximate", f"{secret}#passworded")
    assert "has no rows" in str(empty.exception)
    out = run("embed", scored[0], "--encoder", MINILM_CAPTIONS, "--out", f"{secret}#passworded")
    source = run("embed", secret, "--encoder", MINILM_CAPTIONS, "--out", "e.lance")
    page = run("report", f"{secret}#passworded")
    for done in (empty, out, source, page):
        assert done.exit_code
        assert "hunter2" not in done.output + str(done.exception)
