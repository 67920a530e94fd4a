"""Attacks on a service while honest clients use it: what the honest clients notice.

Honest clients and attackers are separate processes. The attackers send a fixed number of requests per second and hold
themselves to a third of one core: after each request they sleep until their CPU time is at most a third of the time
that has passed. On a machine with few cores they would otherwise slow the service down by competing for the processor.
Against a service with a key, every other attack has the key. The requests of schemathesis are generated beforehand.
"""

import base64
import http.client
import json
import multiprocessing
import random
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the processes of clients start faster without torch
    from tests.serve.served import Served

__all__ = ["Generated", "Load", "attack_costs", "honest_load", "siege"]

_CPU_SHARE = 1 / 3
_ITEMS = 500  # that honest clients search for
_KINDS = ("generated", "keys", "numbers", "vector", "headers", "slow body", "picture", "mutated")
Generated = list[tuple[str, str, bytes]]  # method, path, body


@dataclass(frozen=True)
class Load:
    """Honest clients: how many there are, and the seconds that each pauses between its requests.

    32 clients that pause for a second use about a third of one core: faster ones would be slowed down by each other.
    """

    clients: int = 32
    pause: float = 1.0


def honest_load(
    served: "Served", load: Load, stop: Any, key: str | None, pipes: tuple[Any, Any] | None = None
) -> list[tuple[int, float]]:
    """(Status, seconds) of searches by id until the event ``stop`` is set; status 0 is a lost connection."""
    found: list[tuple[int, float]] = []

    def run(number: int) -> None:
        rng = random.Random(number)
        time.sleep(load.pause * number / load.clients)
        while not stop.is_set():
            query = {"query": {"id": f"item {rng.randrange(_ITEMS)}"}, "limit": 5}
            body = json.dumps(query).encode()
            start = time.perf_counter()
            status, _ = _post(served, "/v1/search", body, key)
            found.append((status, time.perf_counter() - start))
            time.sleep(load.pause)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(load.clients)]
    for thread in threads:
        thread.start()
    if pipes is not None:
        pipes[0].set()
    for thread in threads:
        thread.join()
    if pipes is not None:
        pipes[1].put(found)
    return found


def siege(
    served: "Served",
    requests: int,
    *,
    rate: float = 50.0,
    key: str | None = None,
    load: Load | None = None,
    generated: Generated | None = None,
) -> dict[str, Any]:
    """Metrics of honest clients before and during ``requests`` attacks, and the memory of the service."""
    load = load or Load()
    quiet = _with_honest_clients(
        served, load, key, lambda: time.sleep(max(3.0, requests / rate / 5))
    )
    before = served.memory()
    statuses: dict[str, int] = {}
    took: list[float] = []

    def run() -> None:
        start = time.perf_counter()
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        where = (served.host, served.port)
        plan = _Plan(requests, rate, key, generated or [("GET", "/v1/info", b"")])
        attackers = context.Process(target=_attack, args=(where, plan, results))
        attackers.start()
        statuses.update(results.get())
        attackers.join()
        took.append(time.perf_counter() - start)

    disturbed = _with_honest_clients(served, load, key, run)
    ready = _seconds_until_ready(served)
    p99, p99_before = _percentile(disturbed, 0.99), _percentile(quiet, 0.99)
    return {
        "attacks": sum(statuses.values()),
        "statuses of attacks": dict(sorted(statuses.items())),
        "attacks per second": requests / took[0],
        "honest requests": len(disturbed),
        "honest failures": sum(status != 200 for status, _ in disturbed),
        "ms p99 undisturbed": 1000 * p99_before,
        "ms p99 attacked": 1000 * p99,
        "ratio of p99": p99 / p99_before,
        "memory growth": served.memory() / before - 1,
        "seconds until ready": ready,
    }


def attack_costs(served: "Served", attacks: int = 50) -> dict[str, dict[str, float]]:
    """The CPU time of the service per attack, and its memory growth, for each kind of attack sent alone."""
    contents, kept = _contents(), list[socket.socket]()
    found: dict[str, dict[str, float]] = {}
    for kind in _KINDS[1:]:
        before, start = served.memory(), served.seconds()
        for _ in range(attacks):
            _send_attack(served, kind, contents, None, kept)
        time.sleep(1.0)  # the last ones may still be in progress
        found[kind] = {
            "ms of CPU": 1000 * (served.seconds() - start) / attacks,
            "MB": (served.memory() - before) / 2**20,
        }
    for each in kept:
        each.close()
    return found


def _with_honest_clients(
    served: "Served", load: Load, key: str | None, work: Any
) -> list[tuple[int, float]]:
    """The honest clients' results during a piece of work; they run in a separate process."""
    context = multiprocessing.get_context("spawn")
    stop, started, results = context.Event(), context.Event(), context.Queue()
    place = _Place(served.host, served.port)
    clients = context.Process(target=honest_load, args=(place, load, stop, key, (started, results)))
    clients.start()
    started.wait(300)
    try:
        work()
    finally:
        stop.set()
    found = results.get()
    clients.join()
    return found


@dataclass(frozen=True)
class _Place:
    """The address of a service, for other processes."""

    host: str
    port: int


@dataclass(frozen=True)
class _Plan:
    """The number of attacks, their rate, the key of half of them, and the requests of schemathesis."""

    requests: int
    rate: float
    key: str | None
    generated: Generated


def _attack(where: tuple[str, int], plan: _Plan, results: Any) -> None:
    """Send the attacks at a rate, within a share of one core; put the counts of statuses into ``results``."""
    place, rng = _Place(*where), random.Random(0)
    contents = _contents()
    statuses: dict[str, int] = {}
    open_sockets: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def send(kind: str, key: str | None, request: tuple[str, str, bytes]) -> None:
        if kind == "generated":
            status, _ = _ask(place, *request, key)
        else:
            status = _send_attack(place, kind, contents, key, open_sockets)
        statuses[str(status)] = statuses.get(str(status), 0) + 1

    start, own = time.perf_counter(), time.process_time()
    for i in range(plan.requests):
        key = plan.key if i % 2 else None
        what = (rng.choice(_KINDS), key, rng.choice(plan.generated))
        thread = threading.Thread(target=send, args=what)
        thread.start()
        threads = [each for each in threads if each.is_alive()] + [thread]
        due = start + (i + 1) / plan.rate
        busy = start + (time.process_time() - own) / _CPU_SHARE
        time.sleep(max(0.0, max(due, busy) - time.perf_counter()))
        while len(open_sockets) > 600:
            open_sockets.pop(0).close()
    for thread in threads:
        thread.join(60)
    for each in open_sockets:
        each.close()
    results.put(statuses)


def _contents() -> dict[str, bytes]:
    """The bodies of the attacks by kind."""
    from tests.made_pictures import bomb

    keys = ",".join(f'"k{i}":{i}' for i in range(200_000))
    picture = base64.b64encode(bomb(9_400)).decode()
    return {
        "keys": ('{"query":{"id":"item 1"},' + keys + "}").encode(),
        "numbers": ('{"query":{"mu":[' + "0," * 1_500_000 + "0]}}").encode(),
        "vector": ('{"query":{"mu":[' + "0.1," * 200_000 + "0]}}").encode(),
        "picture": json.dumps({"image": picture}).encode(),
        "mutated": b'{"query": {"id": "item 1"}, "mass": 0.9, "limit": 10, "filter": {"label": ["a"]}}',
    }


def _send_attack(
    place: Any, kind: str, contents: dict[str, bytes], key: str | None, kept: list[socket.socket]
) -> int:
    """The status of one attack; 0 if the connection was closed or left open without a response."""
    if kind == "headers":
        with (
            suppress(OSError),
            socket.create_connection((place.host, place.port), 30) as connection,
        ):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
            for _ in range(64):
                connection.sendall(b"a" * 2**16)
        return 0
    if kind == "slow body":
        with suppress(OSError):
            connection = socket.create_connection((place.host, place.port), 30)
            head = "POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
            head += f"Authorization: Bearer {key}\r\n" if key else ""
            connection.sendall(f"{head}\r\n{{".encode())
            kept.append(connection)
        return 0
    body = contents[kind]
    if kind == "mutated":
        changed = bytearray(body)
        for _ in range(random.randint(1, 4)):
            changed[random.randrange(len(changed))] = random.randrange(256)
        body = bytes(changed)
    path = "/v1/embed" if kind == "picture" else "/v1/search"
    return _post(place, path, body, key)[0]


def _post(place: Any, path: str, body: bytes, key: str | None) -> tuple[int, bytes]:
    return _ask(place, "POST", path, body, key)


def _ask(place: Any, method: str, path: str, body: bytes, key: str | None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(place.host, place.port, timeout=60)
    headers = {"Content-Type": "application/json"}
    headers |= {"Authorization": f"Bearer {key}"} if key else {}
    try:
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, ValueError, http.client.HTTPException) as error:
        return 0, repr(error).encode()
    finally:
        connection.close()


def _seconds_until_ready(served: "Served", limit: float = 60.0) -> float:
    """The time until /readyz returns 200; at most ``limit``."""
    start = time.perf_counter()
    while time.perf_counter() - start < limit:
        connection = http.client.HTTPConnection(served.host, served.port, timeout=limit)
        with suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                break
        connection.close()
        time.sleep(0.05)
    return time.perf_counter() - start


def _percentile(found: list[tuple[int, float]], share: float) -> float:
    seconds = sorted(seconds for _, seconds in found)
    return seconds[min(len(seconds) - 1, int(share * len(seconds)))]
