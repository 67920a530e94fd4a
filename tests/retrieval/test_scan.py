"""Scans of all rows, and searches with a limit that need one call of the engine."""

import numpy as np
import pytest
import torch

import aureole as au
from aureole.errors import InvalidInputError
from aureole.retrieval import CredibleIndex
from tests.retrieval.conftest import posteriors


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
