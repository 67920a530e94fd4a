"""Models on the hub: what is uploaded and fetched, by a stand-in for huggingface_hub's client; caches."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from aureole.errors import InvalidInputError
from aureole.models import Card, KappaFromNorm, PosteriorEncoder, ResidualMLP

hub = pytest.importorskip("huggingface_hub")
SHA = "0" * 39 + "1"
FILES = {"README.md", "config.json", "weights.safetensors"}


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def encoder():
    card = Card(name="Toy", kappa_pos=20.0)
    return PosteriorEncoder(ResidualMLP(5, 8, width=6), KappaFromNorm(8, 3), card=card).eval()


def test_what_is_pushed_comes_back_and_numbers_alone_are_fetched(encoder, monkeypatch, tmp_path):
    repository = tmp_path / "repository"

    class Api:
        def __init__(self, token):
            assert token == "of-no-account"

        def create_repo(self, name, **_):
            return SimpleNamespace(repo_id=name)

        def upload_folder(self, *, folder_path, allow_patterns, **_):
            shutil.copytree(folder_path, repository)
            assert set(allow_patterns) == FILES
            return SimpleNamespace(commit_url=f"https://hub/owner/name/commit/{SHA}")

    def fetched(name, *, allow_patterns, revision, **_):
        assert (name, revision) == ("owner/name", SHA)
        assert set(allow_patterns) == FILES - {"README.md"}
        return str(repository)

    monkeypatch.setattr(hub, "HfApi", Api)
    monkeypatch.setattr(hub, "snapshot_download", fetched)
    url = encoder.push_to_hub("owner/name", token="of-no-account")
    assert url.endswith(SHA)
    assert {path.name for path in repository.iterdir()} == FILES
    again, x = PosteriorEncoder.from_pretrained("owner/name", revision=SHA), torch.randn(4, 5)
    assert torch.equal(again(x).kappa, encoder(x).kappa)
    assert again.card == encoder.card
    mine = ResidualMLP(5, 8, width=6)
    found = PosteriorEncoder.from_pretrained("owner/name", revision=SHA, backbone=mine)
    assert found.backbone is mine


def test_what_was_fetched_once_is_there_without_a_network(encoder, tmp_path):
    repository = tmp_path / "cache" / "models--owner--name"
    folder = encoder.save(repository / "snapshots" / SHA)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(SHA)
    found = PosteriorEncoder.from_pretrained("owner/name", cache_dir=tmp_path / "cache")
    x = torch.randn(4, 5)
    assert torch.equal(found(x).kappa, encoder(x).kappa)
    Path(folder, "weights.safetensors").write_bytes(b"spoiled in the cache")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        PosteriorEncoder.from_pretrained("owner/name", cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("name", ["owner/absent", "../../etc/passwd", "no such name"])
def test_what_cannot_be_reached_is_named(name, tmp_path):
    with pytest.raises(InvalidInputError, match="is not a reachable repository"):
        PosteriorEncoder.from_pretrained(name, cache_dir=tmp_path)


def test_what_cannot_be_saved_is_not_pushed():
    encoder = PosteriorEncoder(ResidualMLP(5, 8), torch.nn.Linear(8, 3))
    with pytest.raises(InvalidInputError, match="attribute dim"):
        encoder.push_to_hub("owner/name")
