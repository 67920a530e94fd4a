"""Lance: sizes that it refuses, and indexes that were not finished."""

import numpy as np
import pytest
import torch

import aureole as au
from aureole import sphere
from aureole.errors import InvalidInputError
from aureole.retrieval import CredibleIndex, LanceStore, exact_cosines, stored_direction
from aureole.retrieval._store import Selection
from tests.retrieval.conftest import names, posteriors

NOBODY = au.VonMisesFisher(torch.zeros(0, 4), torch.zeros(0))


@pytest.mark.parametrize("rows", [0, 30])
def test_what_lance_cannot_take_is_refused_before(tmp_path, rows):
    pytest.importorskip("lance")
    gallery = posteriors(rows, 4) if rows else NOBODY
    with CredibleIndex.create(tmp_path / "gallery.lance", gallery, names(rows)) as index:
        with pytest.raises(InvalidInputError, match="Lance takes 4 links or more, but got 2"):
            index.build("hnsw", links=2)
        assert index.approximate is None


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
    for query, rows in zip(queries, store.nearest(queries, 50, Selection()), strict=True):
        best = np.argsort(-exact_cosines(query, every))[:50]
        assert set(rows.ids) == {f"row {i}" for i in best}
