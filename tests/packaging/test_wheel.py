"""What the wheel and the source distribution hold, and that the wheel works in an empty environment."""

import email
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest

import aureole
from tests.packaging.environments import ROOT, build

pytestmark = pytest.mark.slow
NEEDED = (
    *(
        "aureole/py.typed",
        "aureole/explorer/page.html.jinja",
        "aureole/explorer/explorer_page/index.html",
    ),
    *(
        "aureole/explorer/explorer_page/assets/explorer.js",
        "aureole/models/minilm_captions/config.json",
    ),
    *("aureole/models/minilm_captions/weights.safetensors", "aureole/cli/_app.py"),
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("build")
    return build(tmp_path_factory.mktemp("dist"))


def test_the_wheel_holds_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built.wheel) as wheel:
        names = set(wheel.namelist())
        about = email.message_from_bytes(
            wheel.read(f"aureole-{aureole.__version__}.dist-info/METADATA")
        )
    assert set(NEEDED) <= names
    info = f"aureole-{aureole.__version__}.dist-info"
    assert f"{info}/licenses/LICENSE" in names
    assert {name.partition("/")[0] for name in names} == {"aureole", info}
    assert not [name for name in names if "test" in name.lower() or "__pycache__" in name]
    here = {str(p.relative_to(ROOT / "src")) for p in (ROOT / "src" / "aureole").rglob("*.py")}
    assert here <= names
    assert about["Version"] == aureole.__version__
    assert 0.5e6 < built.wheel.stat().st_size < 3e6
    assert built.sdist.stat().st_size < 12e6


def test_the_source_distribution_makes_the_same_wheel(built, tmp_path):
    with tarfile.open(built.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # not before 3.11.4
        sdist.extractall(tmp_path, **safely)
    assert {"LICENSE", "CITATION.cff", "SECURITY.md", "CHANGELOG.md", "tests/conftest.py"} <= names
    (folder,) = tmp_path.iterdir()
    again = tmp_path / "again"
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(again)]
    subprocess.run([*command, str(folder)], check=True, capture_output=True)
    (wheel,) = again.iterdir()
    assert wheel.name == built.wheel.name
    assert wheel.read_bytes() == built.wheel.read_bytes()


def test_the_index_can_show_the_description(built):
    pytest.importorskip("twine")
    command = [
        sys.executable,
        "-m",
        "twine",
        "check",
        "--strict",
        str(built.wheel),
        str(built.sdist),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_versions_agree():
    """What is cited has a section in the change log: with its date once it is released, open before."""
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    headings = (ROOT / "CHANGELOG.md").read_text().splitlines()
    assert f"## [{citation['version']}] - {citation.get('date-released', 'unreleased')}" in headings
    release, _, dev = aureole.__version__.partition(".dev")
    if dev:
        assert f"## [{release}] - unreleased" in headings
    else:
        assert citation["version"] == release


def test_the_other_distribution_has_the_same_version_and_licence():
    folder = ROOT / "paper"
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["version"] == aureole.__version__
    assert project["license-files"] == ["LICENSE"]
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
