"""Attacks on a service in a process of its own: honest requests are answered meanwhile, and memory is bounded."""

import contextlib
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from aureole.serve import Limits
from tests.serve.attacks import (
    Honest,
    attacked,
    open_sockets,
    peak,
    post,
    reset_peak,
    send_raw,
)
from tests.serve.conftest import ask, error_of, running


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


def endless_header(place, start):
    """What the service answers to a header of up to 32 MB; empty if it closed the connection."""
    with socket.create_connection(place, timeout=30) as connection:
        try:
            connection.sendall(start)
            for _ in range(512):
                connection.sendall(b"a" * 2**16)
            return connection.recv(65536)
        except (BrokenPipeError, ConnectionResetError):
            return b""


@pytest.mark.parametrize(
    "start",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ",
        b"GET /",
        b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1;",
        b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
    ],
)
def test_endless_headers_are_cut(target, start):
    process, place = target
    before = reset_peak(process)
    with Honest(place) as honest:
        begin = time.monotonic()
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(endless_header, [place] * 3, [start] * 3))
        seconds = time.monotonic() - begin
    grown, waited = peak(process) - before, max(honest.seconds)
    print(f"\n{seconds:.2f} s, waited {waited:.2f} s, {grown:.0f} MB, {answers[0][:20]}")
    assert all(not answer or answer.startswith(b"HTTP/1.1 4") for answer in answers)
    assert waited < 5  # 13.8 s before
    assert grown < 20  # 124 MB before


def test_large_headers_get_a_431(place):
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
    fine = head + b"X: " + b"a" * 30_000 + b"\r\nConnection: close\r\n\r\n"
    assert send_raw(place, fine).startswith(b"HTTP/1.1 200")
    many = head + b"".join(b"X%d: b\r\n" % i for i in range(20_000)) + b"\r\n"
    for content in (head + b"X: " + b"a" * 200_000, many):
        found = send_raw(place, content)
        assert not found or b"431" in found.partition(b"\r\n")[0]
    found = send_raw(place, head + b"X: " + b"a" * 70_000)  # all of it is read before the response
    assert found.startswith(b"HTTP/1.1 431")
    assert json.loads(found.partition(b"\r\n\r\n")[2])["error"]["code"] == "headers_too_large"


def test_a_body_in_small_chunks_is_no_attack(place):
    body = json.dumps({"query": {"id": "item-001"}, "filter": {"label": ["x" * 50] * 900}}).encode()
    chunks = b"".join(b"10\r\n" + body[i : i + 16] + b"\r\n" for i in range(0, len(body) - 16, 16))
    rest = body[chunks.count(b"10\r\n") * 16 :]
    head = b"POST /v1/search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    content = head + chunks + b"%x\r\n" % len(rest) + rest + b"\r\n0\r\n\r\n"
    assert send_raw(place, content).startswith(b"HTTP/1.1 200")


def test_pipelined_requests_are_limited(place):
    one = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    last = one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    assert send_raw(place, one * 7 + last).count(b"HTTP/1.1 200") == 8
    assert send_raw(place, one * 2000, wait=2).count(b"HTTP/1.1 200") < 100


SLOW = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SLOW += b"Content-Length: 100\r\n\r\n{"


def test_slow_bodies_close_nothing(target):
    _, place = target
    slow = open_sockets(place, 520, SLOW)
    assert len(slow) == 520
    start = time.monotonic()
    assert ask(place, "GET", "/v1/about")[0] == 200  # 503 for 30 s before
    print(f"\nanswered after {time.monotonic() - start:.2f} s")
    slow[-1].settimeout(20)
    assert slow[-1].recv(100).startswith(b"HTTP/1.1 408")
    for each in slow:
        each.close()


def test_bodies_that_pause_or_trickle_get_a_408(service):
    with running(service, limits=Limits(body_idle=0.5, body_rate=1000)) as place:
        found = send_raw(place, SLOW)
        assert found.startswith(b"HTTP/1.1 408")
        assert b'"slow_body"' in found
        with socket.create_connection(place, timeout=10) as connection:
            connection.sendall(SLOW)
            with contextlib.suppress(OSError):
                for _ in range(40):  # never a pause of half a second
                    time.sleep(0.1)
                    connection.sendall(b" ")
            assert b"bytes per second" in connection.recv(2000)


def test_connections_that_wait_longest_make_room(service):
    with running(service, limits=Limits(connections=20)) as place:
        idle = open_sockets(place, 60, SLOW)
        assert ask(place, "GET", "/v1/about")[0] == 200
        closed = 0
        for each in idle:
            each.settimeout(0.05)
            try:
                closed += each.recv(1) == b""
            except ConnectionResetError:
                closed += 1
            except TimeoutError:
                pass
            each.close()
        assert closed >= 40


def test_large_bodies_share_a_budget(service):
    limits = Limits(buffered=3_000_000)
    head = SLOW.replace(b"Content-Length: 100", b"Content-Length: 2000000")
    with running(service, limits=limits) as place:
        slow = open_sockets(place, 1, head + b" " * 1_900_000)
        time.sleep(0.5)
        answer = ask(place, "POST", "/v1/search", b" " * 1_500_000)
        assert "large requests" in error_of(answer, 503, "unavailable")
        assert ask(place, "POST", "/v1/search", {"query": {"id": "item-001"}})[0] == 200
        slow[0].close()
        time.sleep(0.5)
        error_of(ask(place, "POST", "/v1/search", b" " * 1_500_000), 422, "invalid_input")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 421),
        ("evil.example:8765", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8765", 200),
        ("127.0.0.1:8765", 200),
    ],
)
def test_names_of_other_hosts_are_refused(target, host, status):
    answer = ask(target[1], "GET", "/v1/about", headers={"Host": host})
    assert answer[0] == status  # 200 before
    if status == 421:
        error_of(answer, 421, "misdirected")
    assert ask(target[1], "GET", "/healthz", headers={"Host": host})[0] == 200


def test_two_hosts_are_none(service):
    with running(service, hosts=frozenset({"good.example"})) as place:
        two = b"GET /v1/about HTTP/1.1\r\nHost: good.example\r\nHost: evil.example\r\n\r\n"
        assert not send_raw(place, two, wait=2).startswith(b"HTTP/1.1 200")
        assert ask(place, "GET", "/v1/about", headers={"Host": "good.example:80"})[0] == 200
        error_of(ask(place, "GET", "/v1/about"), 421, "misdirected")
