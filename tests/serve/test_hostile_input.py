"""Input that means harm: a typed refusal, no crash, nothing reflected as markup, and the service goes on."""

import base64
import http.client
import io
import json
import struct
import time
import zlib

import numpy as np
import pytest
from PIL import Image

from aureole.serve import Limits
from tests.serve.attacks import send_raw
from tests.serve.conftest import ask, error_of, names, running

SCRIPT = "<script>alert(1)</script>"


def png_bomb(side):
    """A PNG of side x side pixels in a few kilobytes."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    row = zlib.compressobj(9)
    data = b"".join(row.compress(b"\0" * (side // 8 + 1)) for _ in range(side)) + row.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", data), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def encoded(content):
    return base64.b64encode(content).decode()


def test_bombs_and_files_that_are_no_pictures(place):
    gif = io.BytesIO()
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(gif, "GIF")
    contents = {
        "bomb": png_bomb(20_000),
        "postscript": b"%!PS-Adobe-3.0\n" + b"\0" * 100,
        "empty": b"",
        "cut": png_bomb(64)[:45],
        "svg": f"<svg onload='{SCRIPT}'/>".encode(),
        "zeros": b"\0" * 10_000,
    }
    for name, content in contents.items():
        start = time.monotonic()
        body = {"image": encoded(content) or "===="}
        answer = ask(place, "POST", "/v1/embed", body)
        error_of(answer, 422, "invalid_input")
        assert time.monotonic() - start < 5, name
        assert b"<" not in answer[2]
    assert ask(place, "POST", "/v1/embed", {"image": encoded(gif.getvalue())})[0] == 200


def test_pictures_that_are_small_files_but_many_pixels(place):
    body = {"image": encoded(png_bomb(9_400))}  # 88 megapixels in 11 kB
    assert "88,360,000 pixels" in error_of(
        ask(place, "POST", "/v1/embed", body), 422, "invalid_input"
    )
    many = {"images": [encoded(png_bomb(5_696))] * 5}
    assert "in total" in error_of(ask(place, "POST", "/v1/embed", many), 422, "invalid_input")
    assert ask(place, "POST", "/v1/embed", {"image": encoded(png_bomb(2_000))})[0] == 200


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
        '{"query": {"mu": ["1", 0, 0, 0], "kappa": 1}}',
        '{"query": {"id": "item-001"}, "mass": NaN}',
        '{"query": {"id": "item-001"}, "mass": 1.5}',
        '{"query": {"id": "item-001"}, "limit": 0}',
        '{"query": {"id": "item-001"}, "limit": 100000}',
        '{"query": {"id": "item-001"}, "limit": 1e1}',
        '{"query": {"id": "item-001"}, "filter": {"number": 1e400}}',
        '{"query": {"id": "item-001"}, "filter": {"number": 99999999999999999999}}',
        '{"query": {"id": "item-001"}, "filter": {"number": {"low": "x"}}}',
        '{"query": {"id": "item-001"}, "filter": {"nothing": 1}}',
        '{"query": {"id": "item-001"}, "filter": {"<script>": 1}}',
        '{"query": {"id": "item-001"}, "filter": {"number": {"__class__": 1}}}',
        '{"query": {"id": "item-001"}, "prior": -1}',
        '{"query": {"id": "item-001"}, "misspelt": 1}',
        '{"query": {"id": ""}}',
        '{"query": {"id": "\\ud800"}}',
        '{"query": {"id": 7}}',
        '{"query": {"image": "x", "view": {"crop": 0}}}',
        '{"query": []}',
        "[]",
        "null",
        "7",
        '"text"',
        "",
        "{",
        "[" * 100_000,
        '{"query": ' * 5_000,
        '{"mass": ' + "9" * 10_000 + "}",
        "\ufeff{}",
    ],
)
def test_bodies_that_make_no_sense(hostile_place, text):
    answer = ask(
        hostile_place, "POST", "/v1/search", text.encode(), {"Content-Type": "application/json"}
    )
    error_of(answer, 422, "invalid_input")
    assert b"<" not in answer[2]
    assert len(answer[2]) < 2000


@pytest.fixture(scope="module")
def hostile_place(made):
    """One server for all the bodies."""
    from aureole.embed import load_embedder
    from aureole.retrieval import CredibleIndex
    from aureole.serve import Service

    with CredibleIndex.open(made[0] / "gallery.faiss") as index:
        service = Service(index, load_embedder(made[0] / "encoder"), label_column="label")
        with running(service) as place:
            yield place
        service.close()


def test_the_last_server_still_serves(hostile_place):
    assert ask(hostile_place, "POST", "/v1/search", {"query": {"id": "item-001"}})[0] == 200


@pytest.mark.parametrize("content_type", ["text/plain", "", "multipart/form-data; boundary=x"])
def test_other_content_types_are_refused(hostile_place, content_type):
    # a form of another site can send these without asking the browser
    answer = ask(
        hostile_place,
        "POST",
        "/v1/search",
        b'{"query": {"id": "item-001"}}',
        {"Content-Type": content_type},
    )
    assert "application/json" in error_of(answer, 422, "invalid_input")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/items/../../etc/shadow",
        "/v1/items/..%2f..%2fetc%2fshadow",
        "/v1/pictures/../../../../etc/passwd",
        "/v1/pictures/..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/v1/pictures/%2e%2e/%2e%2e/etc/passwd",
        "/v1/pictures/%00",
        "/v1/pictures/%ff%fe",
        "/v1/pictures/..%5c..%5cwin.ini",
        "/v1/pictures/" + "a" * 3000,
        "/assets/../../../../../../etc/passwd",
        "/assets/..%2f..%2f..%2fapp.py",
        "/v1/items/%3Cscript%3Ealert(1)%3C/script%3Ex",
        "/%3Cscript%3E",
        "/v1/items?label=%3Cscript%3E&order=%3Cscript%3E",
        "//etc/passwd",
        "/..",
    ],
)
def test_paths_lead_nowhere(place, path):
    answer = ask(place, "GET", path)
    assert answer[0] in (404, 422), answer
    assert json.loads(answer[2])["error"]["code"] in ("not_found", "invalid_input")
    assert b"root:" not in answer[2]
    assert b"<" not in answer[2]
    assert answer[1]["x-content-type-options"] == "nosniff"


def test_names_that_are_markup_stay_text(client, place):
    assert SCRIPT in names()
    for status, headers, body in (
        ask(place, "GET", "/v1/items?limit=500"),
        ask(place, "POST", "/v1/search", {"query": {"id": SCRIPT}}),
        ask(place, "POST", "/v1/map", {"query": {"id": SCRIPT}}),
    ):
        assert (status, headers["content-type"]) == (200, "application/json")
        assert b"<" not in body
    assert client.item(SCRIPT)["id"] == SCRIPT
    assert client.search(id=SCRIPT).about == f"item {SCRIPT!r}"


def test_a_gigabyte_is_refused_before_it_is_sent(place):
    head = (
        b"POST /v1/embed HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 1073741824\r\n\r\n"
    )
    start = time.monotonic()
    found = send_raw(place, head)
    assert found.startswith(b"HTTP/1.1 413")
    assert b'"too_large"' in found
    assert time.monotonic() - start < 3  # it was closed, and not waited out


def test_an_endless_body_in_chunks_is_cut(service):
    with running(service, limits=Limits(body=100_000)) as place:
        connection = http.client.HTTPConnection(*place, timeout=10)

        def chunks():
            for _ in range(10_000):
                yield b"x" * 10_000

        try:
            connection.request(
                "POST",
                "/v1/embed",
                body=chunks(),
                headers={"Content-Type": "application/json"},
                encode_chunked=True,
            )
        except (BrokenPipeError, ConnectionResetError):
            pass  # it does not listen any more
        else:
            pytest.fail("100 MB were read")
        finally:
            connection.close()
        error_of(ask(place, "POST", "/v1/embed", b"x" * 200_000), 413, "too_large")
        assert ask(place, "GET", "/v1/about")[0] == 200


def test_a_body_that_never_comes_is_a_504(service):
    with running(service, limits=Limits(seconds=0.5)) as place:
        head = b"POST /v1/embed HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{"
        found = send_raw(place, head)
        assert found.startswith(b"HTTP/1.1 504")
        assert b'"timeout"' in found


@pytest.mark.parametrize(
    "content",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100,  # TLS
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\r\n\r\n",
        b"\0" * 1000,
        b"POST /v1/search HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/search HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/search HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    ],
)
def test_what_is_no_http(hostile_place, content):
    found = send_raw(hostile_place, content, wait=2.0)
    assert b"Traceback" not in found
    assert not found or found.startswith(b"HTTP/1.1 ")
    assert ask(hostile_place, "GET", "/healthz")[0] == 200


def test_headers_that_never_end_are_cut(service, monkeypatch):
    monkeypatch.setattr("aureole.serve._server._HEADER_TIMEOUT", 0.5)
    with running(service) as place:
        for begin in (b"", b"GET / HTTP/1.1\r\nHost: x\r\n"):
            start = time.monotonic()
            assert send_raw(place, begin) == b""
            assert time.monotonic() - start < 3


ROUTES = [
    ("GET", "/"), ("GET", "/assets/a.js"), ("GET", "/metrics"), ("GET", "/openapi.json"), ("GET", "/v1/about"),
    ("GET", "/v1/items"), ("GET", "/v1/ambiguous"), ("GET", "/v1/items/item-001"), ("GET", "/v1/rejection"),
    ("GET", "/v1/calibration"),
    ("GET", "/v1/pictures/item-001"), ("POST", "/v1/embed"), ("POST", "/v1/search"), ("POST", "/v1/map"),
    ("GET", "/nothing"), ("OPTIONS", "/v1/about"), ("HEAD", "/v1/about"),
]  # fmt: skip


def test_without_the_key_there_is_nothing_but_health(service):
    with running(service, key="a-secret-key") as place:
        for method, path in ROUTES:
            for headers in ({}, {"Authorization": "Bearer a-secret-kez"}):
                status, found, body = ask(place, method, path, headers=headers)
                assert status == 401, (method, path)
                opened = path == "/" or path.startswith("/assets/")
                assert found["www-authenticate"].startswith("Basic" if opened else "Bearer")
                assert method == "HEAD" or json.loads(body)["error"]["code"] == "unauthorized"
        assert ask(place, "GET", "/healthz")[0] == 200
        assert ask(place, "GET", "/readyz")[0] == 200
        right = {"Authorization": "Bearer a-secret-key"}
        basic = {"Authorization": "Basic " + encoded(b"anyone:a-secret-key")}
        assert ask(place, "GET", "/v1/about", headers=right)[0] == 200
        assert ask(place, "GET", "/", headers=basic)[0] == 200
        described = json.loads(ask(place, "GET", "/openapi.json", headers=right)[2])
        assert {"/" + p.split("/")[1] for p in described["paths"]} == {
            "/v1",
            "/healthz",
            "/readyz",
            "/metrics",
        }
