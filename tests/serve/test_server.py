"""``aureole serve`` as a process: startup, API key, graceful shutdown."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
import uvicorn

from aureole.serve import Client, Server, ServiceError, address_of, bound_socket, create_app
from tests.cli.conftest import run
from tests.serve.conftest import ask, error_of, in_base64


@contextmanager
def served(made, *options, **environment):
    """(Process, (host, port)) of the command."""
    folder = made[0]
    command = [
        sys.executable, "-m", "aureole", "serve", "--index", folder / "gallery.faiss", "--encoder",
        folder / "encoder", "--images", folder / "pictures", "--label-column", "label", "--port", "0", *options,
    ]  # fmt: skip
    process = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        line = process.stdout.readline()
        found = re.fullmatch(r"aureole serves 60 items at http://(.+):(\d+)\n", line)
        assert found, (line, process.stderr.read() if not line else "")
        yield process, (found[1], int(found[2]))
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_sigterm_under_load_answers_all_that_was_accepted(made):
    body = {"image": in_base64(made[0] / "pictures" / "item-001.png")}
    sent, answered, lost = [], [], []

    def load(place, stop):
        """Ask again and again on kept connections; a request counts once it is written to a connection."""
        connection = http.client.HTTPConnection(*place, timeout=15)
        content = json.dumps(body).encode()
        while not stop.is_set():
            try:
                if connection.sock is None:
                    connection.connect()
            except OSError:
                return  # the port is closed: nothing was accepted
            try:
                kind = {"Content-Type": "application/json"}
                connection.request("POST", "/v1/embed", body=content, headers=kind)
                sent.append(1)
                answer = connection.getresponse()
                found = answer.read()
                answered.append(answer.status)
                if answer.status != 200:
                    lost.append(found)
            except OSError as error:
                lost.append(repr(error))
                connection.close()
                return
            except http.client.HTTPException as error:
                lost.append(repr(error))
                connection.close()
                return

    with served(made) as (process, place):
        stop = threading.Event()
        threads = [threading.Thread(target=load, args=(place, stop)) for _ in range(12)]
        for thread in threads:
            thread.start()
        while len(answered) < 50:
            time.sleep(0.02)
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert time.monotonic() - start < 10
        stop.set()
        for thread in threads:
            thread.join(15)
    assert lost == []
    assert len(sent) == len(answered)
    assert set(answered) == {200}


@pytest.mark.parametrize("plain", [False, True])
def test_a_request_on_an_idle_connection_during_shutdown(service, plain):
    """uvicorn's own shutdown loses the request; ``Server`` answers it."""
    app = create_app(service)
    config = uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=7)
    server = uvicorn.Server(config) if plain else Server(app)
    listening = bound_socket("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    connection = http.client.HTTPConnection(*address_of(listening), timeout=20)
    connection.request("GET", "/v1/about")
    assert connection.getresponse().read()
    kept = connection.sock
    if plain:
        server.should_exit = True
    else:
        server.stop()
    time.sleep(1.0)
    try:
        if plain:
            with pytest.raises((OSError, http.client.HTTPException)):
                request_on(kept)
        else:
            assert request_on(kept) == 200
    finally:
        connection.close()
        thread.join(15)
    assert not thread.is_alive()


def request_on(sock):
    """The status of a request on a connection that is still open, without a reconnect."""
    sock.sendall(b"GET /v1/about HTTP/1.1\r\nHost: x\r\n\r\n")
    response = http.client.HTTPResponse(sock)
    response.begin()
    return response.status


@pytest.mark.slow
def test_the_key(made, tmp_path, monkeypatch):
    key = tmp_path / "key"
    key.write_text("a-very-secret-key\n")
    monkeypatch.delenv("AUREOLE_API_KEY", raising=False)
    with served(made, "--api-key-file", key, "--json-logs") as (process, place):
        url = f"http://{place[0]}:{place[1]}"
        error_of(ask(place, "GET", "/v1/about"), 401, "unauthorized")
        with Client(url, key="another-secret-key") as client, pytest.raises(ServiceError):
            client.search(id="item-003")
        with Client(url, key="a-very-secret-key") as client:
            assert len(client.search(id="item-003", mass=0.9).hits)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        said = [json.loads(line) for line in process.stderr.read().splitlines()]
        assert any("stopping" in entry["message"] for entry in said)


def test_options_that_make_no_service(made, tmp_path, monkeypatch):
    gallery = made[0] / "gallery.faiss"
    short = tmp_path / "short"
    short.write_text("abc")
    coded = tmp_path / "coded"
    coded.write_bytes(b"\xff\xfe" + "a-very-secret-key".encode("utf-16-le"))
    for options, match in {
        ("--index", tmp_path / "no.lance"): "holds no gallery",
        ("--index", gallery, "--label-column", "no"): "payload column 'no' not found",
        ("--index", gallery, "--images", tmp_path / "no"): "folder of pictures",
        ("--index", gallery, "--encoder", tmp_path): "no saved model",
        ("--index", gallery, "--api-key-file", short): "8 printable ASCII",
        ("--index", gallery, "--api-key-file", coded): "8 printable ASCII",
        ("--index", gallery, "--host", "198.51.100.7"): "cannot listen on",
    }.items():
        done = run("serve", *options, "--port", 0)
        assert done.exit_code == 1, options
        assert match in str(done.exception)
    assert "other machines can reach" in done.output


def test_importing_the_library_imports_no_server():
    code = (
        "import sys, aureole, aureole.cli, aureole.serve; "
        "print({'fastapi', 'starlette', 'uvicorn', 'prometheus_client', 'pydantic', 'httpx'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
