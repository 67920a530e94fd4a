"""Attacks on a service in a process of its own: honest requests are answered meanwhile, and memory is bounded."""

import json
import time

import pytest

from tests.serve.attacks import Honest, attacked, peak, post, reset_peak


@pytest.fixture(scope="module")
def target(made):
    """(Process, place) of one service for all attacks."""
    with attacked(made[0]) as found:
        yield found


def keys(count):
    return ",".join(f'"k{i}":{i}' for i in range(count))


ITEM = '"query": {"id": "item-001"}'
BODIES = {  # each is allowed by its size
    "keys": lambda: "{" + ITEM + ", " + keys(900_000) + "}",
    "wrong values": lambda: json.dumps(
        {"query": {"id": "a"}, "filter": {f"c{i}": [[]] * 1000 for i in range(64)}}
    ),
    "wrong words": lambda: '{"vectors": [' + ",".join(['["a"' + ',"a"' * 16_000 + "]"] * 60) + "]}",
    "keys of the filter": lambda: "{" + ITEM + ', "filter": {' + keys(900_000) + "}}",
    "numbers": lambda: '{"query": {"mu": [' + "0," * 7_000_000 + "0]}}",
    "objects": lambda: '{"query": {"mu": [' + "{}," * 4_000_000 + '0], "kappa": 1}}',
    "quotes": lambda: '{"query": {"text": "' + '\\",' * 5_000_000 + '"}}',
    "depth": lambda: '{"query": ' * 1_000_000,
}


@pytest.mark.parametrize("name", BODIES)
def test_a_permitted_body_costs_little(target, name):
    process, place = target
    before = reset_peak(process)
    body = BODIES[name]().encode()
    path = "/v1/embed" if name == "wrong words" else "/v1/search"
    with Honest(place) as honest:
        start = time.monotonic()
        status, answer = post(place, path, body)
        seconds = time.monotonic() - start
    grown, waited = peak(process) - before, max(honest.seconds)
    print(f"\n{name}: {status}, {seconds:.2f} s, waited {waited:.2f} s, {grown:.0f} MB")
    assert status == 422
    assert json.loads(answer)["error"]["code"] == "invalid_input"
    assert seconds < 20  # 62 s before
    assert waited < 5  # 60 s before
    assert grown < 200  # 1,077 MB before
