"""``aureole index release`` and ``rollback``."""

import json

import pytest
import torch

from aureole.distributions import VonMisesFisher
from aureole.errors import DamagedGalleryError, InvalidInputError, MissingInputError
from aureole.retrieval import CredibleIndex, Origin
from tests.cli.conftest import run

pytest.importorskip("faiss")


@pytest.fixture
def galleries(tmp_path):
    """Two versions with the same ids, the second without the last one."""
    rng = torch.Generator().manual_seed(0)
    mu = torch.nn.functional.normalize(torch.randn(40, 4, generator=rng), dim=-1)
    for name, count in (("one", 40), ("two", 36)):
        rows = VonMisesFisher(mu[:count], torch.arange(1.0, count + 1))
        ids = [f"item {i}" for i in range(count)]
        with CredibleIndex.create(tmp_path / f"{name}.faiss", rows, ids) as index:
            index.origin = Origin(8.0, name)
    return tmp_path / "one.faiss", tmp_path / "two.faiss", tmp_path / "shop.live"


def test_a_release_is_refused_forced_and_taken_back(galleries):
    one, two, live = galleries
    done = run("index", "release", one, live)
    assert done.exit_code == 0, done.exception
    assert f"{live}: one.faiss is in service (release 1)" in done.stdout
    done = run("index", "release", two, live)
    assert done.exit_code == 1
    for text in ("ids", "FAILED", "40 → 36", "1 check failed, so nothing has changed"):
        assert text in done.stdout
    done = run("index", "release", two, live, "--force", "--json")
    assert done.exit_code == 0
    said = json.loads(done.stdout)
    assert (said["switched"], said["number"]) == (True, 2)
    assert (said["current"], said["previous"]) == ("two.faiss", "one.faiss")
    checks = {check["name"]: check for check in said["checks"]}
    assert checks["ids"]["values"]["missing"] == pytest.approx(0.1)
    assert checks["kappa"]["values"]["rank_correlation"] == pytest.approx(1.0)
    assert json.loads(run("index", "info", live, "--json").stdout)["live"]["current"] == "two.faiss"
    assert "release 2: two.faiss; before: one.faiss" in run("index", "info", live).stdout
    done = run("index", "rollback", live)
    assert "one.faiss is in service (release 3); before: two.faiss" in done.stdout
    assert run("index", "check", live).exit_code == 0
    assert json.loads(run("index", "rollback", live, "--json").stdout)["current"] == "two.faiss"


def test_commands_take_a_live_gallery(galleries, tmp_path):
    one, _, live = galleries
    run("index", "release", one, live)
    assert run("index", "approximate", live, "--kind", "hnsw").exit_code == 0
    done = run("index", "copy", live, tmp_path / "copy.faiss", "--json")
    assert json.loads(done.stdout)["rows"] == 40
    with CredibleIndex.open(one) as index:
        assert index.approximate["kind"] == "hnsw"


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("index", "release", "one.faiss", "shop.lance"), InvalidInputError, "ends in .live"),
        (("index", "release", "shop.live", "b.live"), InvalidInputError, "not a gallery"),
        (("index", "release", "none.faiss", "shop.live"), MissingInputError, "none.faiss"),
        (("index", "rollback", "shop.live"), InvalidInputError, "no previous version"),
        (("index", "rollback", "none.live"), MissingInputError, "does not exist"),
        (("index", "info", "bad.live"), DamagedGalleryError, "bad.live"),
    ],
)
def test_errors_name_the_file(galleries, tmp_path, monkeypatch, arguments, error, text):
    monkeypatch.chdir(tmp_path)
    run("index", "release", "one.faiss", "shop.live")
    (tmp_path / "bad.live").write_text("{}")
    before = sorted(path.name for path in tmp_path.iterdir())
    done = run(*arguments)
    assert isinstance(done.exception, error)
    assert text in str(done.exception)
    assert "\n" not in str(done.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
