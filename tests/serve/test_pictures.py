"""Thumbnails of pictures, and rows that change while the service runs."""

import time

import pytest
import torch

from aureole.data import find_picture, write_picture
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.retrieval import CredibleIndex
from aureole.serve import Pictures, Service


def test_only_pictures_inside_the_folder_are_found(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    picture = torch.zeros(3, 4, 4, dtype=torch.uint8)
    for place in (inside / "a.png", inside / "deep" / "b.jpg", outside / "secret.png"):
        write_picture(picture, place)
    (inside / "text.txt").write_text("secret")
    (inside / "folder.png").mkdir()
    (inside / "link.png").symlink_to(outside / "secret.png")
    (inside / "loop.png").symlink_to(inside / "loop.png")
    (inside / "same.png").symlink_to(inside / "a.png")
    root = inside.resolve()
    found = {
        name: find_picture(root, name) is not None
        for name in (
            "a", "a.png", "deep/b", "same", "b", "link", "loop", "folder", "folder.png", "text.txt", "text",
            "../out/secret", "../out/secret.png", "..", ".", "", "/", "//a", "deep/../a", "a\0", "a.png\0.txt",
            str(outside / "secret.png"), "x" * 5000, "\\..\\a", "a/", "deep", "\ud800",
        )
    }  # fmt: skip
    assert [name for name, there in found.items() if there] == ["a", "a.png", "deep/b", "same"]


def test_thumbnails_are_kept_within_their_memory(tmp_path):
    rng = torch.Generator().manual_seed(0)
    for i in range(8):
        noise = torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8, generator=rng)
        write_picture(noise, tmp_path / f"{i}.png")
    pictures = Pictures(tmp_path, cache_bytes=10_000)
    for i in [*range(8), 0, 7]:
        path, tag = pictures.find(str(i), 64)
        assert pictures.thumbnail(path, tag, 64)[:2] == b"\xff\xd8"
        assert pictures._used == sum(map(len, pictures._cache.values()))
        assert pictures._used <= 10_000
    (tmp_path / "bad.png").write_bytes(b"no picture")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        pictures.thumbnail(*pictures.find("bad", 64), 64)
    with pytest.raises(InvalidInputError, match="does not exist"):
        Pictures(tmp_path / "none")


@pytest.mark.parametrize("engine", ["faiss", "lance"])
def test_changed_rows_are_listed(tmp_path, engine):
    where = str(tmp_path / f"gallery.{engine}")
    mu = torch.nn.functional.normalize(torch.randn(6, 4), dim=-1)
    CredibleIndex.create(where, VonMisesFisher(mu[:3], torch.tensor([1.0, 2.0, 3.0])), list("abc"))
    with CredibleIndex.open(where) as index:
        service = Service(index)
        service.follow(where, 0.05)
        assert service.about()["rows"] == 3
        with CredibleIndex.open(where) as writer:
            writer.upsert(VonMisesFisher(mu[:2], torch.tensor([9.0, 0.5])), ["a", "d"])
            writer.delete(["b"])
        patience = time.monotonic() + 10
        while service.listing.table.page("ambiguous", 0, 9)[0] != ["d", "c", "a"]:
            assert time.monotonic() < patience
            time.sleep(0.02)
        assert service.about()["rows"] == 3
        assert service.rejection() == {"available": False, "curve": []}
        service.close()
