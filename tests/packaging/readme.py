"""The commands of README, run as a stranger would: in order, in an empty environment with the built wheel.

``python -m tests.packaging.readme [FILE ...]``, or ``.ci/readme``. Every line of a console block that begins with ``$``
and a blank is run, but for blocks after a line ``<!-- not run: reason -->``. The files of a reader, which commands
read, are small ones that exist before the first command. A service is started, asked whether it is
well, and ended with its block. Then the blocks of Python are run as doctests, in the same environment.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.docs.belongings import make_belongings
from tests.packaging.environments import ROOT, TORCH, Environment, base, build, timed

__all__ = ["Block", "Runner", "blocks", "check_installed", "is_service", "main"]

_MARK = re.compile(r"<!--\s*not run:\s*(\S.*?)\s*-->")
_ADDRESS = re.compile(r"http://[^\s/]+:[0-9]+")
_FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*console\b.*$")


@dataclass(frozen=True)
class Block:
    """The commands of a console block, the line where it begins, and why it is not run, if so."""

    line: int
    commands: tuple[str, ...]
    reason: str | None = None


def blocks(text: str) -> Iterator[Block]:
    r"""The console blocks of a page of Markdown.

    Examples
    --------
    >>> page = "```console\n$ aureole score v.npy \\\n    --head head   # a remark\nwritten to ...\n$ ls\n```"
    >>> [block.commands for block in blocks(page)]
    [('aureole score v.npy \\\n    --head head   # a remark', 'ls')]
    >>> [block.reason for block in blocks("<!-- not run: takes an hour -->\n" + page)]
    ['takes an hour']
    """
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        opened = _FENCE.match(lines[at])
        if opened is None:
            at += 1
            continue
        first, indent, fence = at, opened[1], opened[2]
        at += 1
        inside = []
        while at < len(lines) and lines[at].strip() != fence:
            inside.append(lines[at].removeprefix(indent))
            at += 1
        at += 1
        marked = _MARK.search(lines[first - 1]) if first else None
        yield Block(first + 1, tuple(_commands(inside)), marked[1] if marked else None)


def _commands(lines: list[str]) -> Iterator[str]:
    rest = iter(lines)
    for line in rest:
        if not line.startswith("$ "):
            continue  # what the command prints
        command = line[2:].rstrip()
        while command.endswith("\\"):
            command += "\n" + next(rest, "").removeprefix("> ").rstrip()
        yield command


def is_service(command: str) -> bool:
    """Whether a command runs until it is ended.

    Examples
    --------
    >>> is_service("aureole serve --index gallery.lance   # at http://127.0.0.1:8765")
    True
    >>> is_service("aureole serve --help")
    False
    """
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    return words[:2] == ["aureole", "serve"] and "--help" not in words


class Runner:
    """Runs commands in an environment one after the other; folders and variables that they change stay changed."""

    def __init__(self, env: Environment, constraints: Path, timeout: float, wheels: Path) -> None:
        self._env, self._timeout, self._wheels = env, timeout, wheels
        self._variables = env.variables() | {"PIP_CONSTRAINT": str(constraints)}
        self._state = env.folder.parent / "state"
        self._services: list[subprocess.Popen[bytes]] = []

    def run(self, command: str) -> None:
        """Run a command; a status other than 0 is an error with what it said."""
        # what a command leaves behind: its folder and its variables
        links = f"pip install --find-links '{self._wheels}'"  # beside those that are configured
        command = re.sub(r"\bpip install\b", lambda _: links, command).replace("'.[", "'aureole[")
        script = f"set -e -o pipefail\n{command}\npwd > '{self._state}.cwd'\nenv -0 > '{self._state}.env'\n"
        done = subprocess.run(
            ["bash", "-c", script], cwd=self._env.work, env=self._variables, timeout=self._timeout,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"status {done.returncode}:\n{done.stdout[-5000:]}"
        assert "Traceback" not in done.stdout, done.stdout[-5000:]
        self._env = replace(self._env, work=Path(Path(f"{self._state}.cwd").read_text().strip()))
        entries = Path(f"{self._state}.env").read_text().split("\0")
        self._variables = dict(entry.split("=", 1) for entry in entries if "=" in entry)

    def serve(self, command: str) -> None:
        """Start a service and ask it whether it is well; it runs until ``stop``."""
        log = Path(f"{self._state}.log")
        with log.open("w") as out:
            running = subprocess.Popen(
                ["bash", "-c", f"exec {command.strip().removesuffix('&')}"],
                cwd=self._env.work, env=self._variables, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self._services.append(running)
        deadline = time.monotonic() + self._timeout
        while (found := _ADDRESS.search(log.read_text())) is None:  # it says where it listens
            assert running.poll() is None, f"it ended and said: {log.read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"it does not listen: {log.read_text()[-2000:]}"
            time.sleep(0.1)
        address = found[0]
        with urllib.request.urlopen(f"{address}/healthz", timeout=30) as answer:
            assert answer.status == 200

    def stop(self) -> None:
        """End the services; each must end by itself, and well."""
        ended = self._services
        self._services = []
        for service in ended:
            service.terminate()
        for service in ended:
            try:
                status = service.wait(timeout=20)
            except subprocess.TimeoutExpired:
                service.kill()
                raise
            assert status in (0, -15, 143), f"the service ended with status {status}"


def check_installed(env: Environment, wheel: Path) -> None:
    """Refuse an aureole that is there and is not of this wheel, but of an index, say."""
    for record in env.folder.glob("lib/python3*/site-packages/aureole-*.dist-info/RECORD"):
        with zipfile.ZipFile(wheel) as file:
            name = f"{record.parent.name}/RECORD"
            assert name in file.namelist(), f"{record.parent.name} is not of {wheel.name}"
            wanted = file.read(name).decode().splitlines()
        hashes = [line for line in wanted if line.startswith("aureole/")]
        assert set(hashes) <= set(record.read_text().splitlines()), f"not of {wheel.name}"


def main(arguments: list[str] | None = None) -> int:
    """Run the files' blocks; 1 if a command failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, default=[ROOT / "README.md"])
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one command")
    given = parser.parse_args(arguments)
    found = [(file, block) for file in given.files for block in blocks(file.read_text())]
    started, run = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="aureole-readme-") as temporary:
        place = Path(temporary)
        with timed("build"):
            built = build(place / "dist")
        version = built.wheel.name.split("-")[1]
        with timed("an empty environment with torch and the wheel"):
            env = base(place / "venv", place / "work", built.wheel)
        with timed("the wheel without extras"):
            env.run(env.python, "-m", "pip", "check")
            assert env.aureole("--version") == f"aureole {version}\n"
            env.aureole("--help")
        constraints = place / "constraints.txt"
        constraints.write_text(f"{TORCH}\naureole=={version}\n")
        make_belongings(place / "files")
        for name in ("captions.csv", "pairs.csv"):
            shutil.copy(place / "files" / name, env.work)
        runner = Runner(env, constraints, given.timeout, built.wheel.parent)
        for file, block in found:
            where = f"{os.path.relpath(file, ROOT)}:{block.line}"
            if block.reason is not None:
                print(f"{'':>9}  {where} not run: {block.reason}")
                continue
            try:
                for command in block.commands:
                    shown = command.replace("\\\n", "").split("  #")[0]
                    with timed(f"{where} $ {' '.join(shown.split())}"):
                        (runner.serve if is_service(command) else runner.run)(command)
                    run += 1
                    if "pip install" in command:
                        check_installed(env, built.wheel)
            except (AssertionError, OSError, subprocess.SubprocessError) as error:
                print(f"{where} is not true: {error}")
                return 1
            finally:
                runner.stop()
        for file in given.files:
            if ">>>" in file.read_text():
                command = (
                    f"python -m doctest -o NORMALIZE_WHITESPACE -o ELLIPSIS '{file.resolve()}'"
                )
                try:
                    with timed(f"{os.path.relpath(file, ROOT)}, its lines of Python"):
                        runner.run(command)
                except AssertionError as error:
                    print(f"{file.name} is not true: {error}")
                    return 1
                run += 1
    print(f"{run} commands in {time.monotonic() - started:.1f} s: all is as the page says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
