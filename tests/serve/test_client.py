"""The client: its requests, and servers that are missing or not an aureole service."""

import http.server
import sys
import threading

import numpy as np
import pytest
import torch

from aureole.distributions import VonMisesFisher
from aureole.errors import AureoleError, InvalidInputError, MissingPackageError
from aureole.serve import Client, Limits, ServiceError
from tests.serve.conftest import running


def test_nobody_there():
    with Client("http://127.0.0.1:9", timeout=2.0) as client, pytest.raises(ServiceError) as caught:
        client.about()
    assert (caught.value.code, caught.value.status) == ("unreachable", None)
    assert isinstance(caught.value, AureoleError)


def test_a_missing_httpx_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingPackageError, match=r"aureole\[serve\]"):
        Client("http://127.0.0.1:9")


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8765", "ftp://a", "http://", "http://a:b", "http://a/?q=1", "file:///etc"],
)
def test_what_is_no_url(url):
    with pytest.raises(InvalidInputError, match="http://HOST:PORT"):
        Client(url)


def test_a_password_in_what_is_no_url_is_not_shown():
    for url in ("ftp://me:hunter2@a", "http://me:hunter2@a:b", f"http://{'a' * 90}:hunter2@a/?q"):
        with pytest.raises(InvalidInputError, match="http://HOST:PORT") as caught:
            Client(url)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("key", ["hunter2\nX-Other: 1", "hunter2\rX", "hünter2", "hunter2\0"])
def test_a_key_that_no_header_can_hold_is_refused_unseen(key):
    with pytest.raises(InvalidInputError, match="printable ASCII") as caught:
        Client("http://127.0.0.1:9", key=key)
    assert "nter2" not in str(caught.value)


def test_blanks_around_a_key_are_none_of_it(service):
    with running(service, key="a-secret-key") as place:
        url = f"http://{place[0]}:{place[1]}"
        for key in ("a-secret-key", "a-secret-key\n", " a-secret-key\r\n"):
            with Client(url, key=key, timeout=20.0) as client:
                assert client.about()["rows"]
        for key in (None, "", "\n", "another-key"):
            with (
                Client(url, key=key, timeout=20.0) as client,
                pytest.raises(ServiceError) as caught,
            ):
                client.about()
            assert caught.value.status == 401


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"error": 3}', b"", b'{"hits": 7}'])
@pytest.mark.parametrize("status", [200, 404, 500])
def test_a_server_of_something_else(body, status):
    class Other(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            with Client(url, timeout=5.0) as client, pytest.raises(ServiceError):
                client.search(id="a")
        finally:
            server.shutdown()
            thread.join()


def test_a_connection_that_was_closed_is_made_again(service):
    with running(service) as place:
        client = Client(f"http://{place[0]}:{place[1]}")
        client.about()
        for connection in client._http._transport._pool.connections:
            stream = connection._connection._network_stream
            stream.get_extra_info("socket").close()  # as after an idle timeout
        assert client.about()["rows"] == 60
        client.close()


def test_errors_say_when_to_come_back(service):
    with running(service, limits=Limits(rate=0.1, burst=1)) as place:
        client = Client(f"http://{place[0]}:{place[1]}")
        client.about()
        with pytest.raises(ServiceError) as caught:
            client.about()
        client.close()
    assert (caught.value.code, caught.value.status) == ("rate_limited", 429)
    assert caught.value.retry_after == 10


def test_what_cannot_be_asked(client):
    query = VonMisesFisher(torch.eye(4)[0], 3.0)
    for ask, match in (
        (lambda: client.search(), "one query"),
        (lambda: client.search(query, id="a"), "one query"),
        (lambda: client.search(vector=np.ones((2, 4))), "one query"),
        (lambda: client.embed(), "exactly one of text"),
        (lambda: client.embed(vector=np.array([1.0, np.nan])), "not finite"),
        (lambda: client.search(query, mass=float("nan")), "not finite"),
    ):
        with pytest.raises(InvalidInputError, match=match):
            ask()
    with pytest.raises(ServiceError, match="Extra inputs"):
        client.search(query, misspelt=3)


def test_threads_share_a_client(client):
    found = []

    def ask(i):
        found.append((i, client.item(f"item-{i:03d}")["payload"]["number"]))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [(i, i) for i in range(16)]
