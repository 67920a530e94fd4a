"""Models on the hub: a round trip through huggingface_hub to a local server; folders and caches."""

import os
import subprocess
import sys
import threading

import pytest
import torch

from aureole.errors import InvalidInputError
from aureole.models import (
    Card,
    KappaFromNorm,
    PosteriorEncoder,
    ResidualMLP,
)
from tests.models.hub_server import Hub

pytest.importorskip("huggingface_hub")
SHA = "0" * 39 + "1"

ROUND_TRIP = """
import sys
from pathlib import Path
import torch
from aureole.models import PosteriorEncoder

encoder = PosteriorEncoder.load(sys.argv[1])
print(encoder.push_to_hub("owner/name", token="of-no-account"))
again = PosteriorEncoder.from_pretrained("owner/name", cache_dir=sys.argv[2])
x = torch.randn(4, 5)
assert torch.equal(again(x).kappa, encoder(x).kappa)
assert again.card == encoder.card
"""


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def encoder():
    card = Card(name="Toy", kappa_pos=20.0)
    return PosteriorEncoder(ResidualMLP(5, 8, width=6), KappaFromNorm(8, 3), card=card).eval()


@pytest.fixture
def hub():
    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.long
def test_what_is_pushed_comes_back_and_numbers_alone_are_fetched(encoder, hub, tmp_path):
    hub.files["evil.py"] = b"print('code was run')"
    hub.files["pytorch_model.bin"] = b"a pickle"
    folder = encoder.save(tmp_path / "encoder")
    (folder / "notes.txt").write_text("mine")
    settings = {
        "HF_ENDPOINT": hub.address,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(tmp_path / "home"),
        "NO_PROXY": "127.0.0.1",
    }
    result = subprocess.run(
        [sys.executable, "-c", ROUND_TRIP, str(folder), str(tmp_path / "cache")],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == f"{hub.address}/owner/name/commit/{SHA}"
    pushed = hub.files.keys() - {"evil.py", "pytorch_model.bin"}
    assert pushed == {"README.md", "config.json", "weights.safetensors"}
    assert hub.files["weights.safetensors"] == (folder / "weights.safetensors").read_bytes()
    assert sorted(set(hub.asked)) == ["config.json", "weights.safetensors"]


def test_what_was_fetched_once_is_there_without_a_network(encoder, tmp_path):
    repository = tmp_path / "cache" / "models--owner--name"
    folder = encoder.save(repository / "snapshots" / SHA)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(SHA)
    found = PosteriorEncoder.from_pretrained("owner/name", cache_dir=tmp_path / "cache")
    x = torch.randn(4, 5)
    assert torch.equal(found(x).kappa, encoder(x).kappa)
    (folder / "weights.safetensors").write_bytes(b"spoiled in the cache")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        PosteriorEncoder.from_pretrained("owner/name", cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("name", ["owner/absent", "../../etc/passwd", "no such name"])
def test_what_cannot_be_reached_is_named(name, tmp_path):
    with pytest.raises(InvalidInputError, match=r"is not a reachable repository"):
        PosteriorEncoder.from_pretrained(name, cache_dir=tmp_path)


ABSENT = """
import sys
from aureole.errors import InvalidInputError
from aureole.models import PosteriorEncoder

for name, revision in (("owner/absent", None), ("owner/gated", None), ("owner/name", "absent")):
    try:
        PosteriorEncoder.from_pretrained(name, revision=revision, cache_dir=sys.argv[1])
    except InvalidInputError as error:
        assert f"{name!r} is not a reachable repository" in str(error), error
    else:
        raise AssertionError(name)
"""


def test_repositories_that_the_hub_does_not_give_are_named(hub, tmp_path):
    settings = {
        "HF_ENDPOINT": hub.address,
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(tmp_path / "home"),
        "NO_PROXY": "127.0.0.1",
    }
    result = subprocess.run(
        [sys.executable, "-c", ABSENT, str(tmp_path / "cache")],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr


def test_what_cannot_be_saved_is_not_pushed():
    encoder = PosteriorEncoder(ResidualMLP(5, 8), torch.nn.Linear(8, 3))
    with pytest.raises(InvalidInputError, match="attribute dim"):
        encoder.push_to_hub("owner/name")
