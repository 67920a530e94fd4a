"""The benchmark of sharded, compressed galleries on 20,000 rows, and its brute force against a slow one."""

import numpy as np
import pytest
import torch

from aureole.records import read_record
from aureole.retrieval._caps import exact_cosines
from benchmarks import large_mixture
from benchmarks.large_mixture import Mixture, exact_caps, nearest_rows
from benchmarks.sharded_caps import STAGES, Settings, measure

ROWS, DIM = 20_000, 16


@pytest.mark.slow
def test_a_small_run_finds_the_members_of_caps_and_resumes(tmp_path):
    settings = Settings(ROWS, DIM, 2, 60, 8, 1, tmp_path / "work")
    ran = []

    def run(stage, settings):
        ran.append(stage.__name__)
        return stage(settings)

    metrics = measure(settings, tmp_path, "python -m benchmarks.sharded_caps", run=run)
    assert ran == list(STAGES)
    for size, facts in metrics["search"]["caps"].items():
        assert facts["queries"] == 8
        assert facts["recall"] >= 0.98, size
        assert facts["wrong"] == 0
        assert facts["cpu_ms"] > 0
        assert facts["bare_cpu_ms"] > 0
    assert metrics["index"]["codes_bytes_per_row"] < 64
    assert max(metrics["index"]["probes"]) < 60
    assert read_record(tmp_path / "sharded_caps.json").metrics == metrics
    (settings.work / "searched").unlink()
    ran.clear()
    measure(settings, tmp_path, "python -m benchmarks.sharded_caps", run=run)
    assert ran == ["search"]


def test_brute_force_is_that_of_a_slow_loop(tmp_path, monkeypatch):
    monkeypatch.setattr(large_mixture, "BLOCK", 700)
    monkeypatch.setattr(large_mixture, "_KEPT", 300)
    mixture = Mixture(3000, DIM)
    mu = mixture.vectors(tmp_path / "vectors.npy")
    assert np.array_equal(mu[-60:], mu[:60])  # duplicates
    assert np.abs(np.linalg.norm(mu, axis=1) - 1).max() < 1e-6
    directions = mixture.directions(24, mu)
    assert directions.shape == (24, DIM)
    places, cosines = nearest_rows(mu, directions, 101)
    for query, place, cosine in zip(directions, places, cosines, strict=True):
        every = exact_cosines(query, np.asarray(mu))
        assert np.array_equal(np.sort(every)[::-1][:101], cosine)
        assert np.array_equal(every[place], cosine)
        assert len(set(place.tolist())) == 101


def test_caps_have_exactly_so_many_members(tmp_path):
    mixture = Mixture(3000, DIM)
    mu = mixture.vectors(tmp_path / "vectors.npy")
    caps = exact_caps(mu, mixture.directions(40, mu), 6)
    assert [cap.size for cap in caps] == [1, 10, 100, 1000]
    for cap in caps:
        assert 1 <= len(cap.kappa) <= 6
        for row, members in enumerate(cap.members):
            query = cap.query(row)
            threshold = float(large_mixture.cap_cosine(query, 0.9))
            inside = exact_cosines(query.mu.numpy(), np.asarray(mu)) >= threshold
            assert set(np.flatnonzero(inside).tolist()) == set(members.tolist())
            assert torch.isfinite(query.kappa)
