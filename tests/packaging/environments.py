"""The wheel, and empty environments to install it in. Needs the standard library alone, and `build` to build."""

import importlib.util
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "TORCH", "Built", "Environment", "base", "build", "layer", "timed"]

ROOT = Path(__file__).parents[2]
TORCH = "torch==2.13.0"  # first, from the CPU build: no other package may pull another
_KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")


@dataclass(frozen=True)
class Built:
    """The two files of a release."""

    wheel: Path
    sdist: Path


def build(out: Path) -> Built:
    """The source distribution of this tree, and the wheel that is built from it."""
    at_hand = importlib.util.find_spec("hatchling") is not None  # nothing need be installed for it
    options = ["--no-isolation"] if at_hand else []
    command = [sys.executable, "-m", "build", *options, "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nIs the package build installed?"
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return Built(wheel, sdist)


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and a folder in which its commands run."""

    folder: Path
    work: Path

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.folder / "bin" / "python")

    def variables(self) -> dict[str, str]:
        """What its commands find in their environment: nothing of this one that could hide a fault."""
        kept = {k: v for k, v in os.environ.items() if k in _KEPT or k.startswith("PIP_")}
        kept["PATH"] = f"{self.folder / 'bin'}:{kept['PATH']}"
        own = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        return {**kept, **own, "COLUMNS": "80", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def run(self, *command: str, status: int = 0, timeout: float = 600) -> str:
        """What a command says on standard output, or on both if it shall fail; another status is an error."""
        done = subprocess.run(
            command, cwd=self.work, env=self.variables(), timeout=timeout,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        said = f"$ {' '.join(command)}\n{done.stdout}{done.stderr}"
        assert done.returncode == status, f"status {done.returncode}, not {status}:\n{said}"
        assert "Traceback" not in done.stderr, said
        return done.stdout if not status else done.stdout + done.stderr

    def code(self, program: str) -> str:
        """What a program says."""
        return self.run(self.python, "-c", program).strip()

    def aureole(self, *arguments: str, status: int = 0) -> str:
        """What a command of ours says. Not by its script: that of a layer names the interpreter of its base."""
        return self.run(self.python, "-m", "aureole", *arguments, status=status)

    def install(self, *what: str) -> None:
        """Install packages; torch stays as it is."""
        pins = ("-c", str(ROOT / "constraints.txt"))
        self.run(self.python, "-m", "pip", "install", "--quiet", *pins, *what, timeout=3600)


def base(folder: Path, work: Path, wheel: Path) -> Environment:
    """An empty environment with torch and then the wheel, without extras."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    work.mkdir(parents=True, exist_ok=True)
    made = Environment(folder, work)
    made.install(TORCH)
    made.install(str(wheel))
    return made


def layer(below: Environment, folder: Path, wheel: Path, extra: str) -> Environment:
    """A copy of an environment with one extra more, and nothing that other extras brought.

    Files are shared by hard links; pip replaces them and never writes into them.
    """
    subprocess.run(["cp", "-al", str(below.folder), str(folder)], check=True)
    made = Environment(folder, below.work)
    made.install(f"{wheel}[{extra}]")
    return made


class timed:  # noqa: N801
    """A context that prints what it is about and how long it took."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, kind: object, *_: object) -> None:
        end = "" if kind is None else "  FAILED"
        print(f"{time.monotonic() - self._started:7.1f} s  {self._what}{end}", flush=True)
