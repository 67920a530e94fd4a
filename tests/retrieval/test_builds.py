"""Approximate indexes of odd sizes, on every engine: none too small to be built, none that an engine cannot take."""

import numpy as np
import pytest
import torch

import aureole as au
from aureole import sphere
from aureole.errors import InvalidInputError
from aureole.retrieval import (
    CredibleIndex,
    LanceStore,
    check_build,
    default_lists,
    exact_cosines,
    stored_direction,
)
from aureole.retrieval._store import probes_of
from tests.retrieval.conftest import names, posteriors

EVERYONE = au.VonMisesFisher(torch.eye(4)[0], 0.0)
NOBODY = au.VonMisesFisher(torch.zeros(0, 4), torch.zeros(0))


@pytest.mark.parametrize("rows", [1, 2, 14, 15, 40])
def test_lists_that_nobody_asked_for_are_never_too_many(place, rows):
    with CredibleIndex.create(place(), posteriors(rows, 4), names(rows)) as index:
        index.build("ivf")
        assert index.approximate == {"kind": "ivf", "lists": default_lists(rows)}
        index.build("ivf", probes=10**6)  # all of them
        assert sorted(index.search(EVERYONE, 1.0).ids) == sorted(names(rows))


@pytest.mark.parametrize("sizes", [{}, {"width": 1}, {"links": 4}, {"links": 33}, {"links": 100}])
@pytest.mark.parametrize("rows", [0, 1, 30])
def test_graphs_of_any_size(place, sizes, rows):
    gallery = posteriors(rows, 4) if rows else NOBODY
    with CredibleIndex.create(place(), gallery, names(rows)) as index:
        index.build("hnsw", **sizes)
        assert index.approximate == {"kind": "hnsw", **sizes}
        query = au.VonMisesFisher(torch.eye(4)[:2], 3.0)
        for hits, exact in zip(index.search(query), index.search(query, exact=True), strict=True):
            assert set(hits.ids) <= set(exact.ids)
        assert len(index.search(query, limit=2)) == 2
        index.append(au.VonMisesFisher(torch.eye(4)[:1], 3.0), ["new"])
        assert "new" in index.search(au.VonMisesFisher(torch.eye(4)[0], 1e6)).ids


def test_what_pgvector_cannot_take_is_refused_before(server):
    where = f"{server.get_uri()}#large_sizes"
    with CredibleIndex.create(where, posteriors(3, 4), names(3)) as index:
        with pytest.raises(InvalidInputError, match="up to 100 links, but got 101"):
            index.build("hnsw", links=101)
        with pytest.raises(InvalidInputError, match="up to 32,768 lists, but got 32,769"):
            index.build("ivf", lists=32_769)
        assert index.approximate is None


@pytest.mark.parametrize("rows", [0, 30])
def test_what_lance_cannot_take_is_refused_before(tmp_path, rows):
    pytest.importorskip("lance")
    gallery = posteriors(rows, 4) if rows else NOBODY
    with CredibleIndex.create(tmp_path / "gallery.lance", gallery, names(rows)) as index:
        with pytest.raises(InvalidInputError, match="Lance takes 4 links or more, but got 2"):
            index.build("hnsw", links=2)
        assert index.approximate is None


def test_a_graph_of_two_links(tmp_path):
    pytest.importorskip("faiss")
    with CredibleIndex.create(tmp_path / "gallery.faiss", posteriors(30, 4), names(30)) as index:
        index.build("hnsw", links=2)
        assert index.search(au.VonMisesFisher(torch.eye(4)[0], 3.0), limit=2).ids


def test_lists_without_rows_are_refused_by_faiss():
    pytest.importorskip("faiss")
    with CredibleIndex.create("faiss://", NOBODY, []) as index:
        for sizes in ({}, {"lists": 3}):
            with pytest.raises(InvalidInputError, match="lists are learned from rows"):
                index.build("ivf", **sizes)


def test_a_default_for_any_number_of_rows():
    assert [default_lists(rows) for rows in (0, 1, 15, 16, 17, 10_000)] == [1, 1, 15, 16, 16, 400]
    assert default_lists(67_500_000) > 32_768  # more than pgvector takes
    assert [probes_of({}, lists) for lists in (1, 15, 16, 400)] == [1, 1, 1, 25]
    assert probes_of({"probes": 7}, 5) == 5


@pytest.mark.parametrize(
    ("kind", "sizes", "message"),
    [
        ("hnsw", {"links": 1}, "links must be a whole number of at least 2"),
        ("hnsw", {"width": 0}, "width must be a whole number of at least 1"),
        ("ivf", {"lists": 0}, "lists must be"),
        ("ivf", {"probes": True}, "probes must be"),
        ("ivf", {"links": 4}, "build takes"),
        ("flat", {}, "build takes"),
    ],
)
def test_sizes_that_are_none(kind, sizes, message):
    with pytest.raises(InvalidInputError, match=message):
        check_build(kind, sizes)


def test_an_index_without_its_note_is_not_used(tmp_path):
    pytest.importorskip("lance")
    where = str(tmp_path / "gallery.lance")
    rng = torch.Generator().manual_seed(0)
    gallery = au.VonMisesFisher(sphere.normalize(torch.randn(2000, 32, generator=rng)), 10.0)
    CredibleIndex.create(where, gallery, names(2000))
    store = LanceStore.open(where)
    store._table.create_index("mu", "IVF_FLAT", metric="dot", num_partitions=500)  # and dies here
    store = LanceStore.open(where)
    assert store.approximate() is None
    queries = stored_direction(posteriors(5, 32, seed=1).mu)
    every = stored_direction(gallery.mu)
    for query, rows in zip(queries, store.nearest(queries, 50, [], [], exact=False), strict=True):
        best = np.argsort(-exact_cosines(query, every))[:50]
        assert set(rows.ids) == {f"row {i}" for i in best}
