"""The client: what it sends, and what it makes of servers that are not there or are something else."""

import http.server
import threading

import numpy as np
import pytest
import torch

from aureole.distributions import VonMisesFisher
from aureole.errors import AureoleError, InvalidInputError
from aureole.serve.client import Client, ServiceError
from aureole.serve.limits import Limits
from tests.serve.conftest import running


def test_nobody_there():
    with Client("http://127.0.0.1:9", timeout=2.0) as client, pytest.raises(ServiceError) as caught:
        client.about()
    assert (caught.value.code, caught.value.status) == ("unreachable", None)
    assert isinstance(caught.value, AureoleError)


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8765", "ftp://a", "http://", "http://a:b", "http://a/?q=1", "file:///etc"],
)
def test_what_is_no_url(url):
    with pytest.raises(InvalidInputError, match="http://HOST:PORT"):
        Client(url)


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
        client._connection.sock.close()  # as a server that tires of waiting does
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
        (lambda: client.embed(), "one of text"),
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
