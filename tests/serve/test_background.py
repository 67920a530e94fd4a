"""Background work of a service ends before the process does."""

import threading
import time

import numpy as np
import pytest
import torch

from aureole import VonMisesFisher
from aureole.retrieval import CredibleIndex
from aureole.serve import Service
from aureole.serve._background import Background
from aureole.sphere import normalize

N = 8000


def test_work_that_looks_at_the_observer_ends_at_once():
    background, started, ended = Background(), threading.Event(), threading.Event()

    def work():
        try:
            while True:
                started.set()
                background.check("step", 1, 2)
                time.sleep(0.01)
        finally:
            ended.set()

    background.start("test", work)
    assert started.wait(5)
    background.close()
    assert ended.is_set()


def test_work_that_does_not_look_is_waited_for(monkeypatch):
    monkeypatch.setattr("aureole.serve._background._LONGEST", 0.2)
    background, free = Background(), threading.Event()

    def work():
        free.wait(10)

    background.start("test", work)
    before = time.monotonic()
    background.close()
    assert 0.15 < time.monotonic() - before < 5
    free.set()


def test_a_closed_service_no_longer_inspects(tmp_path):
    """Such threads still ran compiled code as the interpreter ended, and the process aborted (status -6)."""
    pytest.importorskip("lance")
    rng = np.random.default_rng(0)
    ids, labels = [f"item {i}" for i in range(N)], [f"class {i % 7}" for i in range(N)]
    mu = normalize(torch.from_numpy(rng.standard_normal((N, 16), np.float32)))
    posterior = VonMisesFisher(mu, torch.full((N,), 50.0))
    one = str(tmp_path / "one.lance")
    CredibleIndex.create(one, posterior, ids, {"label": labels}).close()
    with CredibleIndex.open(one) as index:
        service = Service(index, None, label_column="label")
        service.inspect(one)
        assert working() == {"aureole-inspect"}
        service.close()
        assert working() == set()


def working():
    """The names of the background threads that run."""
    return {thread.name for thread in threading.enumerate()} & {"aureole-inspect"}
