"""The page that is in the package is built from its source, small, and in need of nothing from elsewhere."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from aureole.explorer._explorer import page_folder

WEB = Path(__file__).parents[2] / "web"


def test_the_page_is_small_and_loads_nothing_from_elsewhere():
    files = [path for path in page_folder().rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".html", ".js", ".css", ""}
    assert sum(path.stat().st_size for path in files) < 250_000
    for path in files:
        for address in re.findall(r"https?://[^\"'`)\s]+", path.read_text("utf-8")):
            assert address == "http://www.w3.org/2000/svg", (path, address)


def test_the_page_has_no_script_or_style_of_its_own_and_parses_no_markup():
    html = (page_folder() / "index.html").read_text("utf-8")
    assert re.findall(r"<script[^>]*>([^<]*)</script>", html) == [""]
    assert "<style" not in html
    assert " style=" not in html
    for path in (WEB / "src").glob("*.ts"):
        text = path.read_text("utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, (path, word)


@pytest.mark.skipif(
    not (WEB / "node_modules").is_dir() or shutil.which("npm") is None,
    reason="the types are checked where npm ci was run in web/",
)
def test_the_types_hold():
    done = subprocess.run(["npm", "run", "check"], cwd=WEB, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
