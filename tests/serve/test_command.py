"""``aureole serve`` as a process: startup, API key, Host names, and shutdown under load."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from aureole.caps import CredibleIndex
from aureole.training import FrozenHead
from tests.cli.conftest import run
from tests.serve.conftest import ask, error_of, found, in_base64
from tests.serve.served import serving as served

ROUNDS = int(os.environ.get("AUREOLE_SHUTDOWNS", "1"))
CLIENTS = 64
JSON = {"Content-Type": "application/json"}


class Client(threading.Thread):
    """Asks again and again on one connection until the service closes it; keeps what it got."""

    def __init__(self, place, body):
        super().__init__(daemon=True)
        self._place, self._body = place, body
        self.statuses, self.wrong, self.first = [], [], threading.Event()

    def run(self):
        with contextlib.closing(http.client.HTTPConnection(*self._place, timeout=30)) as connection:
            self._ask(connection)

    def _ask(self, connection):
        while True:
            try:
                connection.request("POST", "/v1/embed", body=self._body, headers=JSON)
                answer = connection.getresponse()
            except (OSError, http.client.HTTPException):
                return  # closed before a byte of an answer came: the request may be sent again
            try:
                content = json.loads(answer.read())
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.wrong.append(repr(error))
                return
            self.statuses.append(answer.status)
            self.first.set()
            if not ("posteriors" in content or content["error"]["code"] == "unavailable"):
                self.wrong.append(content)


@pytest.mark.parametrize("round", range(ROUNDS))
def test_sigterm_under_load_sends_whole_answers_or_json_errors(made, tmp_path, round):
    files = [in_base64(made[0] / "pictures" / "item-001.png")] * 4
    body = json.dumps({"images": files})
    with served(made[0] / "gallery.faiss", made[0] / "encoder", log=tmp_path / "log") as service:
        clients = [Client((service.host, service.port), body) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        assert clients[0].first.wait(60)
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(10) == 0
        for client in clients:
            client.join(10)
    assert [client.wrong for client in clients if client.wrong] == []
    assert set().union(*(client.statuses for client in clients)) <= {200, 503}
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_requests_that_outlast_the_shutdown_get_a_json_error(made, tmp_path):
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import pathlib, time\nimport numpy as np\n"
        "def encode(texts):\n"
        "    if 'slow' in texts:\n"
        f"        pathlib.Path({str(tmp_path / 'began')!r}).touch()\n"
        "        time.sleep(20)\n"
        "    return np.ones((len(texts), 4), np.float32) / 2\n"
        "encode.kind = 'text'\n"
    )
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((200, 4)).astype(np.float32)
    head = FrozenHead(dim=4, steps=5).fit(vectors, np.arange(200) // 4)
    head.save(tmp_path / "head")
    ids = [str(i) for i in range(200)]
    CredibleIndex.create(tmp_path / "g.faiss", head.predict(vectors), ids).close()
    options = ("--head", str(tmp_path / "head"))
    log = tmp_path / "log"
    with served(
        tmp_path / "g.faiss", f"python:{slow}:encode", *options, log=log, label=None
    ) as service:
        place = (service.host, service.port)
        found(ask(place, "POST", "/v1/embed", json={"text": "quick"}))
        clients = [http.client.HTTPConnection(*place, timeout=30) for _ in range(8)]
        for client in clients:
            client.request("POST", "/v1/embed", '{"text": "slow"}', JSON)
        while not (tmp_path / "began").exists():
            found(ask(place, "GET", "/healthz"))
        for _ in range(3):  # by now it has read the other requests, too
            found(ask(place, "GET", "/healthz"))
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(10) == 0
        for client in clients:
            answer = client.getresponse()
            error = json.loads(answer.read())["error"]
            assert (answer.status, error["code"]) == (503, "unavailable")
            assert "shutting down" in error["message"]
            client.close()


def test_the_key_and_the_names_of_the_command(made, tmp_path, monkeypatch):
    key = tmp_path / "key"
    key.write_text("a-very-secret-key\n")
    monkeypatch.delenv("AUREOLE_API_KEY", raising=False)
    options = ("--host", "0.0.0.0", "--api-key-file", str(key), "--allow-host", "search.example")
    with served(made[0] / "gallery.faiss", None, *options, log=tmp_path / "log") as service:
        place = ("127.0.0.1", service.port)
        error_of(ask(place, "GET", "/v1/about"), 401, "unauthorized")
        right = {"Authorization": "Bearer a-very-secret-key"}
        found(ask(place, "GET", "/v1/about", headers=right))
        found(ask(place, "GET", "/v1/about", headers=right | {"Host": "search.example:443"}))
        other = ask(place, "GET", "/v1/about", headers=right | {"Host": "evil.example"})
        assert other.status_code == 400  # 200 before, as in the container by default
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(10) == 0


def test_options_that_make_no_service(made, tmp_path, monkeypatch):
    gallery = made[0] / "gallery.faiss"
    short, coded = tmp_path / "short", tmp_path / "coded"
    short.write_text("abc")
    coded.write_bytes(b"\xff\xfe" + "a-very-secret-key".encode("utf-16-le"))
    monkeypatch.delenv("AUREOLE_API_KEY", raising=False)
    for options, match in {
        ("--index", tmp_path / "no.lance"): "holds no gallery",
        ("--index", gallery, "--label-column", "no"): "payload column 'no' not found",
        ("--index", gallery, "--images", tmp_path / "no"): "folder of pictures",
        ("--index", gallery, "--encoder", tmp_path): "no saved model",
        ("--index", gallery, "--api-key-file", short): "8 to 256 printable ASCII",
        ("--index", gallery, "--api-key-file", coded): "8 to 256 printable ASCII",
        ("--index", gallery, "--writable"): "needs an API key",
        ("--index", gallery, "--host", "198.51.100.7"): "cannot listen on",
    }.items():
        done = run("serve", *options, "--port", 0)
        assert done.exit_code == 1, options
        assert match in str(done.exception)


def test_importing_the_library_imports_no_server():
    code = (
        "import sys, aureole, aureole.cli, aureole.serve; "
        "print({'fastapi', 'starlette', 'uvicorn', 'pydantic', 'httpx'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
