"""Attacks: a typed refusal at a bounded cost, and the service goes on."""

import base64
import io
import json
import socket
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from aureole.serve._middleware import Access
from tests.serve.conftest import ask, client_of, error_of, found, in_base64, names, running
from tests.serve.served import serving as served

SCRIPT = "<script>alert(1)</script>"
JSON = {"Content-Type": "application/json"}


def png(width, height, rows=None):
    """A PNG of one bit per pixel; of ``rows`` rows only, if given."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    packed = zlib.compressobj(9)
    row = b"\0" * (width // 8 + 2)
    data = b"".join(packed.compress(row) for _ in range(height if rows is None else rows))
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", data + packed.flush()), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.fixture(scope="module")
def target(made, tmp_path_factory):
    """A service in a process of its own for all attacks."""
    log = tmp_path_factory.mktemp("log") / "log"
    with served(made[0] / "gallery.faiss", made[0] / "encoder", log=log) as running_service:
        yield running_service
        assert "Traceback" not in log.read_text()


def at(target):
    return (target.host, target.port)


def keys(count):
    return ",".join(f'"k{i}":{i}' for i in range(count))


ITEM = '"query": {"id": "item-001"}'
BODIES = {  # each is allowed by its size
    "keys": lambda: "{" + ITEM + ", " + keys(250_000) + "}",
    "wrong values": lambda: json.dumps(
        {"query": {"id": "a"}, "filter": {f"c{i}": [[]] * 1000 for i in range(64)}}
    ),
    "wrong words": lambda: '{"vectors": [' + ",".join(['["a"' + ',"a"' * 16_000 + "]"] * 60) + "]}",
    "keys of the filter": lambda: "{" + ITEM + ', "filter": {' + keys(250_000) + "}}",
    "numbers": lambda: '{"query": {"mu": [' + "0," * 2_000_000 + "0]}}",
    "objects": lambda: '{"query": {"mu": [' + "{}," * 1_300_000 + '0], "kappa": 1}}',
    "quotes": lambda: '{"query": {"text": "' + '\\",' * 1_300_000 + '"}}',
    "depth": lambda: '{"query": ' * 400_000,
}


@pytest.mark.parametrize("name", BODIES)
def test_a_permitted_body_costs_little(target, name):
    target.reset_peak()
    before = target.peak()
    path = "/v1/embed" if name == "wrong words" else "/v1/search"
    start = time.monotonic()
    answer = ask(at(target), "POST", path, content=BODIES[name](), headers=JSON)
    seconds, grown = time.monotonic() - start, (target.peak() - before) / 2**20
    print(f"\n{name}: {answer.status_code}, {seconds:.2f} s, {grown:.0f} MB")
    error_of(answer, 422, "invalid_input")
    assert len(answer.content) < 2000
    assert seconds < 5  # 62 s before
    assert grown < 400  # 1,077 MB before


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("narrow", png(1, 89_000_000, rows=0)),  # 74 bytes took 1.9 GB
        ("narrow within the limit of pixels", png(2, 16_000_000, rows=0)),
        ("large", png(9_400, 9_400)),  # 88 megapixels in 11 kB
        ("bomb", png(20_000, 20_000)),
        ("cut", png(64, 64)[:45]),
        ("postscript", b"%!PS-Adobe-3.0\n" + b"\0" * 100),
        ("svg", f"<svg onload='{SCRIPT}'/>".encode()),
        ("zeros", b"\0" * 10_000),
    ],
)
def test_pictures_that_are_attacks(target, made, name, file):
    target.reset_peak()
    before = target.peak()
    start = time.monotonic()
    answer = ask(at(target), "POST", "/v1/embed", json={"image": in_base64(file)})
    error_of(answer, 422, "invalid_input")
    assert "\\u003c" not in answer.text
    assert time.monotonic() - start < 12, name
    assert (target.peak() - before) / 2**20 < 1100
    good = {"image": in_base64(made[0] / "pictures" / "item-001.png")}
    found(ask(at(target), "POST", "/v1/embed", json=good))


def test_pictures_of_other_formats_and_many_at_once(client):
    gif = io.BytesIO()
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(gif, "GIF")
    found(client.post("/v1/embed", json={"image": base64.b64encode(gif.getvalue()).decode()}))
    error_of(client.post("/v1/embed", json={"images": ["AAAA"] * 257}), 422, "invalid_input")
    error_of(client.post("/v1/embed", json={"image": "===="}), 422, "invalid_input")


@pytest.mark.parametrize(
    "text",
    [
        '{"query": {"mu": [NaN, 0, 0, 1], "kappa": 1}}',
        '{"query": {"mu": [1e999, 0, 0, 1], "kappa": 1}}',
        '{"query": {"mu": [0, 0, 0, 0], "kappa": 1}}',
        '{"query": {"mu": [3, 0, 0, 0], "kappa": 1}}',
        '{"query": {"mu": [1, 0, 0], "kappa": 1}}',
        '{"query": {"mu": [1, 0, 0, 0], "kappa": -1}}',
        '{"query": {"mu": [1, 0, 0, 0], "kappa": Infinity}}',
        '{"query": {"mu": [1, 0, 0, 0]}}',
        '{"query": {"mu": [true, 0, 0, 0], "kappa": 1}}',
        '{"query": {"id": "item-001"}, "mass": NaN}',
        '{"query": {"id": "item-001"}, "limit": 100000}',
        '{"query": {"id": "item-001"}, "limit": 1e1}',
        '{"query": {"id": "item-001"}, "filter": {"number": 1e400}}',
        '{"query": {"id": "item-001"}, "filter": {"number": 99999999999999999999}}',
        '{"query": {"id": "item-001"}, "filter": {"number": {"low": "x"}}}',
        '{"query": {"id": "item-001"}, "filter": {"<script>": 1}}',
        '{"query": {"id": "item-001"}, "filter": {"number": {"__class__": 1}}}',
        '{"query": {"id": "item-001"}, "misspelt": 1}',
        '{"query": {"id": "\\ud800"}}',
        '{"query": {"id": 7}}',
        '{"query": []}',
        "[]",
        "null",
        '"text"',
        "",
        "{",
        "[" * 100_000,
        '{"mass": ' + "9" * 10_000 + "}",
        "\ufeff{}",
    ],
)
def test_bodies_that_make_no_sense(client, text):
    answer = client.post("/v1/search", content=text.encode(), headers=JSON)
    error_of(answer, 422, "invalid_input")
    assert len(answer.content) < 2000


@pytest.mark.parametrize("content_type", ["text/plain", "", "multipart/form-data; boundary=x"])
def test_other_content_types_are_refused(client, content_type):
    # a form of another site can send these without asking the browser
    headers = {"Content-Type": content_type}
    answer = client.post("/v1/search", content=b'{"query": {"id": "item-001"}}', headers=headers)
    assert "application/json" in error_of(answer, 422, "invalid_input")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/items/../../etc/shadow",
        "/v1/items/..%2f..%2fetc%2fshadow",
        "/v1/pictures/..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/v1/pictures/%2e%2e/%2e%2e/etc/passwd",
        "/v1/pictures/%00",
        "/v1/pictures/%ff%fe",
        "/v1/pictures/..%5c..%5cwin.ini",
        "/v1/pictures/" + "a" * 3000,
        "/assets/..%2f..%2f..%2fapp.py",
        "/assets/%00",
        "/" + "a" * 3000,
        "/v1/items/%3Cscript%3Ealert(1)%3C/script%3Ex",
        "/%3Cscript%3E",
    ],
)
def test_paths_that_mean_harm(target, path):
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    reply = send_raw(at(target), head.encode())
    assert reply.startswith((b"HTTP/1.1 404", b"HTTP/1.1 422"))
    assert b"root:" not in reply
    assert b"nosniff" in reply


def test_names_that_are_markup_are_json(client):
    assert SCRIPT in names()
    for answer in (
        client.get("/v1/items?limit=500"),
        client.post("/v1/search", json={"query": {"id": SCRIPT}}),
    ):
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


def send_raw(place, content, wait=5.0):
    """What comes back for bytes as they are."""
    with socket.create_connection(place, timeout=wait) as connection:
        reply = b""
        try:
            connection.sendall(content)
            while part := connection.recv(65536):
                reply += part
        except (TimeoutError, ConnectionError):
            pass
        return reply


@pytest.mark.parametrize(
    "content",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100,  # TLS
        b"GET / HTTP/9.9\r\n\r\n",
        b"\0" * 1000,
        b"POST /v1/search HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/search HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: b\r\n" * 20_000 + b"\r\n",
    ],
)
def test_what_is_no_http_or_has_huge_headers_is_refused_by_uvicorn(target, content):
    reply = send_raw(at(target), content, wait=2.0)
    assert not reply or reply.startswith(b"HTTP/1.1 400")
    assert b"Traceback" not in reply


def test_endless_headers_take_no_memory(target):
    def endless(_):
        with socket.create_connection(at(target), timeout=30) as connection:
            try:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
                for _ in range(512):
                    connection.sendall(b"a" * 2**16)
            except ConnectionError:
                return True
        return False

    target.reset_peak()
    before = target.peak()
    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(endless, range(3)))  # cut after 64 KiB
    assert (target.peak() - before) / 2**20 < 20  # 124 MB before


def test_bodies_that_are_too_large_are_refused_before_they_are_read(service, place):
    head = b"POST /v1/embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    start = time.monotonic()
    reply = send_raw(place, head + b"Content-Length: 1073741824\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 413")
    assert b'"too_large"' in reply
    assert time.monotonic() - start < 3
    client = client_of(service, Access(body=100_000))
    error_of(client.post("/v1/embed", content=b"x" * 200_000), 413, "too_large")
    chunks = (b"x" * 10_000 for _ in range(100))
    error_of(client.post("/v1/embed", content=chunks), 413, "too_large")


def test_a_body_that_never_comes_is_a_504(service):
    with running(service, Access(seconds=0.5)) as place:
        head = b"POST /v1/embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{"
        reply = send_raw(place, head)
    assert reply.startswith(b"HTTP/1.1 504")
    assert b'"timeout"' in reply


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 400),
        ("evil.example:8765", 400),
        ("localhost.evil.example", 400),
        ("127.0.0.1.evil.example", 400),
        ("", 400),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8765", 200),
        ("127.0.0.1:8765", 200),
    ],
)
def test_names_of_other_hosts_are_refused(client, service, host, status):
    assert client.get("/v1/about", headers={"Host": host}).status_code == status
    found(client.get("/healthz", headers={"Host": host}))  # probes use addresses
    named = client_of(service, Access(hosts=["evil.example"]))
    if host == "evil.example":
        found(named.get("/v1/about", headers={"Host": host}))


ROUTES = [
    ("GET", "/assets/a.js"), ("GET", "/openapi.json"), ("GET", "/v1/about"),
    ("GET", "/v1/items"), ("GET", "/v1/items/item-001"), ("GET", "/v1/pictures/item-001"), ("POST", "/v1/embed"),
    ("POST", "/v1/search"), ("GET", "/nothing"), ("OPTIONS", "/v1/about"), ("HEAD", "/v1/about"),
]  # fmt: skip


def test_without_the_key_there_is_nothing_but_health_and_the_page(service):
    client = client_of(service, Access(key="a-secret-key"))
    basic = "Basic " + in_base64(b"anyone:a-secret-key")  # which a browser would send by itself
    wrong = ({}, *({"Authorization": one} for one in ("Bearer a-secret-kez", "Basic %%%", basic)))
    for method, path in ROUTES:
        for headers in wrong:
            answer = client.request(method, path, headers=headers)
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert method == "HEAD" or answer.json()["error"]["code"] == "unauthorized"
    found(client.get("/healthz"))
    found(client.get("/readyz"))
    right = {"Authorization": "Bearer a-secret-key"}
    found(client.get("/v1/about", headers=right))
    for path in ("/", "/assets/explorer.js"):  # the program, which asks for the key
        assert client.get(path).status_code == 200


def test_a_gallery_that_is_damaged_is_a_typed_error(made, tmp_path):
    from aureole.caps import CredibleIndex
    from tests.cli.conftest import run
    from tests.serve.conftest import serving

    pytest.importorskip("lance")
    where = tmp_path / "g.lance"
    CredibleIndex.create(where, made[1], names()).close()
    with CredibleIndex.open(where) as index, serving(index) as service:
        client, query = client_of(service), {"query": {"id": "item-001"}}
        found(client.post("/v1/search", json=query))
        for file in Path(where).rglob("*.lance"):
            file.write_bytes(file.read_bytes()[:100])  # also if a reader has it open
        for answer in (client.get("/v1/items"), client.post("/v1/search", json=query)):
            assert answer.status_code in (200, 503)  # what is cached is right
            assert answer.status_code == 200 or error_of(answer, 503, "unavailable")
    for file in Path(where).rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    done = run("serve", "--index", where, "--port", 0)
    assert done.exit_code == 1
    assert "g.lance" in str(done.exception)
    assert "\n" not in str(done.exception)
