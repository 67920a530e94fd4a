"""The configuration of nginx in docs/serve.md, in front of the real service."""

import contextlib
import re
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from aureole.serve._middleware import Access
from tests.serve.conftest import found, running

PAGE = Path(__file__).parents[2] / "docs" / "serve.md"
NAME = "search.example.org"
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
pytestmark = pytest.mark.skipif(
    NGINX is None or shutil.which("openssl") is None, reason="needs nginx and openssl"
)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@contextlib.contextmanager
def nginx(folder, service_port):
    """The port of nginx with the documented configuration; only ports and paths differ."""
    subject = ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"]
    files = ["-keyout", f"{folder}/search.key", "-out", f"{folder}/search.pem"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subprocess.run([*command, *files, *subject], check=True, capture_output=True)
    (text,) = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
    port = free_port()
    for documented, here in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("/etc/ssl/", f"{folder}/"),
        ("127.0.0.1:8765", f"127.0.0.1:{service_port}"),
    ):
        assert documented in text
        text = text.replace(documented, here)
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/log;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{paths}{text}}}\n"
    )
    process = subprocess.Popen([NGINX, "-p", str(folder), "-c", str(configuration)])
    try:
        end = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < end
        yield port
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
def behind(service, tmp_path):
    """A client of nginx, and its port."""
    access = Access(key="a-secret-key", hosts=[NAME])
    trusted = ssl.create_default_context()
    with running(service, access) as (_, service_port), nginx(tmp_path, service_port) as port:
        trusted.load_verify_locations(tmp_path / "search.pem")
        headers = {"Host": NAME, "Authorization": "Bearer a-secret-key"}
        with httpx.Client(
            base_url=f"https://127.0.0.1:{port}", verify=trusted, headers=headers, timeout=30
        ) as client:
            yield lambda method, path, **rest: client.request(
                method, path, extensions={"sni_hostname": NAME}, **rest
            )


def test_requests_pass_with_their_name_and_key_and_limits_hold(behind):
    found(behind("GET", "/v1/about"))
    found(behind("POST", "/v1/search", json={"query": {"id": "item-001"}}))
    assert behind("GET", "/v1/about", headers={"Authorization": ""}).status_code == 401
    assert behind("GET", "/v1/about", headers={"Host": "evil.example"}).status_code == 400
    assert behind("POST", "/v1/embed", content=b" " * (2**22 + 1)).status_code == 413
    assert behind("GET", "/v1/about", headers={"X": "a" * 9_000}).status_code == 400
    statuses = [behind("GET", "/healthz").status_code for _ in range(200)]
    assert set(statuses) == {200, 429}
