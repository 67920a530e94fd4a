"""The simulation of a service with shards, against values that queueing theory knows."""

import numpy as np
import pytest

from benchmarks.serve_plan import Cluster, simulate

NOTHING = np.array([0.0])


def test_one_client_waits_for_the_slowest_shard():
    cluster = Cluster([np.array([0.01]), np.array([0.03]), np.array([0.02])], np.array([0.005]))
    found = simulate(cluster, 100, clients=1)
    assert found["ms p50"] == pytest.approx(35)
    assert found["per second"] == pytest.approx(1 / 0.035)
    assert found["partial"] == 0


def test_cores_are_shared_equally():
    # three shards of 20 ms on two cores: 60 ms of work at two per second
    found = simulate(Cluster([np.array([0.02])] * 3, NOTHING, cores=2), 50, clients=1)
    assert found["ms p50"] == pytest.approx(30)
    # four clients: the cores are never idle
    found = simulate(Cluster([np.array([0.02])] * 3, NOTHING, cores=2), 400, clients=4)
    assert found["per second"] == pytest.approx(2 / 0.06, rel=0.02)


def test_the_front_is_one_process():
    found = simulate(Cluster([np.array([0.001])], np.array([0.01])), 200, clients=8)
    assert found["per second"] == pytest.approx(100, rel=0.02)


def test_waiting_times_are_those_of_a_queue_with_random_arrivals():
    # M/D/1: the mean wait is rho / (2 (1 - rho)) services
    service, load = 0.01, 0.6
    seconds = []
    for seed in range(6):
        cluster = Cluster([np.array([service])], NOTHING)
        seconds.append(simulate(cluster, 4000, rate=load / service, seed=seed)["ms mean"] / 1000)
    expected = service * (1 + load / (2 * (1 - load)))
    assert np.mean(seconds) == pytest.approx(expected, rel=0.05)


def test_a_dead_shard_makes_results_partial_after_the_timeout():
    cluster = Cluster([np.array([0.01])] * 4, NOTHING, timeout=0.5, dead=0.1)
    found = simulate(cluster, 2000, clients=1)
    assert found["partial"] == pytest.approx(1 - 0.9**4, abs=0.03)
    assert found["ms p99"] == pytest.approx(500)
    with_two = simulate(Cluster([np.array([0.01])] * 4, NOTHING, replicas=2, dead=0.1), 2000)
    assert with_two["partial"] == pytest.approx(1 - 0.99**4, abs=0.015)


def test_stragglers_hit_more_searches_with_more_shards():
    one, many = (
        simulate(Cluster([np.array([0.01])] * n, NOTHING, straggling=0.01, slower=10.0), 3000)
        for n in (1, 64)
    )
    assert one["ms p50"] == pytest.approx(10)
    slow = 1 - 0.99**64  # of searches: nearly half
    assert 1000 / many["per second"] == pytest.approx(10 + 90 * slow, rel=0.05)
