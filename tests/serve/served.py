"""``aureole serve`` as a process, and the memory that it uses."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


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

    def reset_peak(self) -> None:
        """Measure ``peak`` from now on."""
        for pid in self.processes():
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def peak(self) -> int:
        """The peak memory of the process plus those of its children, in bytes."""
        texts = (Path(f"/proc/{pid}/status").read_text() for pid in self.processes())
        return sum(1024 * int(text.split("VmHWM:")[1].split()[0]) for text in texts)

    def processes(self) -> list[int]:
        """The ids of the process and of its children."""
        pid = self.process.pid
        found = [
            Path(f"/proc/{pid}/task/{task}/children") for task in os.listdir(f"/proc/{pid}/task")
        ]
        return [pid, *(int(child) for path in found for child in path.read_text().split())]


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
