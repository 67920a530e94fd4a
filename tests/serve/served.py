"""Services for benchmarks: a gallery with its encoder, the command that serves it, and the resources it uses."""

import http.client
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aureole.caps import CredibleIndex
from aureole.embed import load_embedder
from aureole.engines import Origin
from aureole.models import Card, CifarResNet, KappaFromNorm, PosteriorEncoder
from benchmarks.engines import clustered

__all__ = ["Served", "ask", "make_encoder", "make_gallery", "serving"]

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Served:
    """A running service and its address."""

    process: subprocess.Popen[str]
    host: str
    port: int

    @property
    def url(self) -> str:
        """The URL of the service."""
        return f"http://{self.host}:{self.port}"

    def memory(self) -> int:
        """The memory of the process and its children, in bytes."""
        pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.processes())
        return sum(pages) * os.sysconf("SC_PAGE_SIZE")

    def reset_peak(self) -> None:
        """Measure ``peak`` from now on."""
        for pid in self.processes():
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def peak(self) -> int:
        """The peak memory of the process plus those of its children, in bytes."""
        texts = (Path(f"/proc/{pid}/status").read_text() for pid in self.processes())
        return sum(1024 * int(text.split("VmHWM:")[1].split()[0]) for text in texts)

    def seconds(self) -> float:
        """The CPU time of the process and its children."""
        texts = (Path(f"/proc/{pid}/stat").read_text() for pid in self.processes())
        parts = (text.rpartition(")")[2].split() for text in texts)
        return sum(int(part[11]) + int(part[12]) for part in parts) / _TICKS

    def processes(self) -> list[int]:
        """The ids of the process and of its children."""
        pid = self.process.pid
        found = [
            Path(f"/proc/{pid}/task/{task}/children") for task in os.listdir(f"/proc/{pid}/task")
        ]
        return [pid, *(int(child) for path in found for child in path.read_text().split())]


def make_encoder(folder: Path, dim: int, depth: int = 20) -> Path:
    """The folder of an encoder of pictures with random weights: only its cost matters."""
    if not (folder / "config.json").is_file():
        torch.manual_seed(0)
        card = Card(name="Untrained", kappa_pos=20.0)
        PosteriorEncoder(CifarResNet(depth), KappaFromNorm(64, dim), card=card).save(folder)
    return folder


def make_gallery(where: Path, encoder: Path, rows: int, dim: int, **build: int) -> Path:
    """A gallery of clusters at an address, written in steps and indexed by IVF; an existing one is reused."""
    if where.exists():
        return where
    step = 100_000
    index: CredibleIndex | None = None
    for start in range(0, rows, step):
        n = min(step, rows - start)
        part = clustered(n, dim, clusters=max(8, rows // 500), noise=0.6, seed=1 + start)
        ids = [f"item {start + i}" for i in range(n)]
        payload: dict[str, Any] = {"label": [f"class {i % 10}" for i in range(n)]}
        if index is None:
            index = CredibleIndex.create(where, part, ids, payload)
        else:
            index.append(part, ids, payload)
    assert index is not None
    if build:
        index.build("ivf", **build)
    index.origin = Origin(20.0, load_embedder(encoder).weights)
    index.close()
    return where


@contextmanager
def serving(
    gallery: Path,
    encoder: Path | str | None,
    *options: str,
    log: Path,
    label: str | None = "label",
) -> Iterator[Served]:
    """``aureole serve`` on a free port, killed at the end if it is still running."""
    command = [sys.executable, "-m", "aureole", "serve", "--index", str(gallery)]
    command += [] if encoder is None else ["--encoder", str(encoder)]
    command += ["--port", "0", *options]
    command += [] if label is None else ["--label-column", label]
    with open(log, "w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://([\d.]+):(\d+)", line)
            if found is None:
                raise RuntimeError(f"the service did not start: {log.read_text()[-500:]}")
            yield Served(process, found[1], int(found[2]))
        finally:
            process.kill()
            process.communicate()


def ask(
    served: Served, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """(Status, body); (0, reason) if the connection was closed instead."""
    connection = http.client.HTTPConnection(served.host, served.port, timeout=60)
    sent = {"Content-Type": "application/json", **(headers or {})}
    # the response may have arrived although the service no longer listens
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.request(method, path, body=body, headers=sent)
    try:
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        return 0, repr(error).encode()
    finally:
        connection.close()
