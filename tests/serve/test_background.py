"""Background work of a service ends before the process does."""

import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from aureole import VonMisesFisher
from aureole.retrieval import CredibleIndex, Origin
from aureole.serve._background import Background
from aureole.sphere import normalize


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


@pytest.mark.slow
def test_a_service_that_is_stopped_while_it_inspects_ends_well(tmp_path):
    """It aborted (status -6) when a thread still ran compiled code as the interpreter ended."""
    pytest.importorskip("lance")
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        mu = normalize(torch.from_numpy(rng.standard_normal((3000, 16), np.float32)))
        ids, labels = [f"item {i}" for i in range(3000)], [f"class {i % 7}" for i in range(3000)]
        posterior = VonMisesFisher(mu, torch.full((3000,), 50.0))
        payload = {"label": labels}
        with CredibleIndex.create(tmp_path / f"{name}.lance", posterior, ids, payload) as index:
            index.origin = Origin(32.0)
    command = [
        sys.executable, "-m", "aureole", "serve", "--index", str(tmp_path / "one.lance"), "--label-column", "label",
        "--compare-with", str(tmp_path / "two.lance"), "--port", "0",
    ]  # fmt: skip
    for pause in (0.0, 0.3):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
        assert process.stdout is not None
        assert "aureole serves 3,000 items" in process.stdout.readline()
        time.sleep(pause)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
        assert process.returncode == 0, said
