"""CIFAR-10: small files made here, and the real ones against the hashes of the official files."""

import hashlib
import sys

import numpy as np
import pytest
import torch

from aureole.errors import AureoleError, InvalidInputError
from aureole_paper.cifar10 import CLASSES, load_cifar10
from aureole_paper.data_folder import data_folder
from aureole_paper.download import SOURCES

BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}


def write_binary(folder, part, images, labels):
    """Write official binary files, by the letter of their description."""
    binary = folder / "cifar10" / "cifar-10-batches-bin"
    binary.mkdir(parents=True, exist_ok=True)
    names = BATCHES[part]
    for name, i, y in zip(names, images.chunk(len(names)), labels.chunk(len(names)), strict=True):
        records = [
            bytes([label]) + image.numpy().tobytes() for image, label in zip(i, y, strict=True)
        ]
        (binary / f"{name}.bin").write_bytes(b"".join(records))


def write_mosaics(folder, images, labels):
    """Write a test mosaic of 2 x 3 tiles."""
    image = pytest.importorskip("PIL.Image")
    root = folder / "cifar10"
    root.mkdir()
    rows = [torch.cat(list(row), -1) for row in images.split(3)]
    pixels = torch.cat(rows, -2).permute(1, 2, 0).contiguous().numpy()
    image.fromarray(pixels).save(root / "test_batch.webp", lossless=True)
    np.savez(root / "labels.npz", test=labels.numpy().astype(np.uint8))


@pytest.fixture
def small():
    images = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8)
    return images, torch.tensor([3, 1, 4, 1, 5, 9])


def same(found, wanted):
    return all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_binary_files_are_read(tmp_path, small):
    write_binary(tmp_path, "test", *small)
    images, labels = load_cifar10(tmp_path, "test")
    assert same((images, labels), small)
    assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)


def test_training_batches_are_read_in_order(tmp_path, small):
    wanted = (small[0][:5], small[1][:5])
    write_binary(tmp_path, "train", *wanted)
    assert same(load_cifar10(tmp_path, "train"), wanted)


def test_mosaics_are_read(tmp_path, small):
    write_mosaics(tmp_path, *small)
    assert same(load_cifar10(tmp_path, "test"), small)


def test_mosaics_and_labels_must_agree(tmp_path, small):
    write_mosaics(tmp_path, small[0], small[1][:5])
    with pytest.raises(InvalidInputError, match=r"5 labels in 'test', but the mosaics hold 6"):
        load_cifar10(tmp_path, "test")


def test_mosaics_without_pillow_say_what_to_install(tmp_path, small, monkeypatch):
    write_mosaics(tmp_path, *small)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(AureoleError, match=r"pip install 'aureole\[images\]'"):
        load_cifar10(tmp_path, "test")


def test_broken_mosaics_are_named(tmp_path, small):
    write_mosaics(tmp_path, *small)
    path = tmp_path / "cifar10" / "test_batch.webp"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InvalidInputError, match=r"test_batch\.webp can't be read"):
        load_cifar10(tmp_path, "test")
    path.unlink()
    with pytest.raises(InvalidInputError, match=r"test_batch\.webp is missing"):
        load_cifar10(tmp_path, "test")


def test_mosaics_hold_whole_tiles(tmp_path, small):
    write_mosaics(tmp_path, *small)
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (96, 40)).save(tmp_path / "cifar10" / "test_batch.webp")
    with pytest.raises(InvalidInputError, match="40 x 96 pixels, not whole tiles"):
        load_cifar10(tmp_path, "test")


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b"\x0a" + b[1:]])
def test_broken_binary_files_are_named(tmp_path, small, damage):
    write_binary(tmp_path, "test", *small)
    path = tmp_path / "cifar10" / "cifar-10-batches-bin" / "test_batch.bin"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InvalidInputError, match=r"test_batch\.bin .* does not hold records"):
        load_cifar10(tmp_path, "test")


def test_missing_files_are_named(tmp_path):
    with pytest.raises(InvalidInputError, match=r"data_batch_1\.bin is missing.*download"):
        load_cifar10(tmp_path, "train")


@pytest.mark.parametrize("part", ["train", "test"])
def test_real_images_have_the_official_bytes(shared_data, part):
    images, labels = load_cifar10(shared_data, part)
    size = 50_000 if part == "train" else 10_000
    assert images.shape == (size, 3, 32, 32)
    assert labels.bincount().tolist() == [size // 10] * 10
    records = torch.cat([labels.to(torch.uint8).unsqueeze(1), images.flatten(1)], 1)
    found = [hashlib.sha256(r.numpy().tobytes()).hexdigest() for r in records.split(10_000)]
    official = {m.name.partition("/")[2]: m.sha256 for s in SOURCES for m in s.members}
    assert found == [official[f"{name}.bin"] for name in BATCHES[part]]


def test_real_images_are_the_same_from_a_binary_file(shared_data, tmp_path):
    wanted = load_cifar10(shared_data, "test")
    assert [CLASSES[i] for i in wanted[1][:4]] == ["cat", "ship", "ship", "airplane"]
    write_binary(tmp_path, "test", *wanted)
    assert same(load_cifar10(tmp_path, "test"), wanted)


def test_data_folder_is_the_given_one_or_the_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("AUREOLE_DATA", str(tmp_path))
    (tmp_path / "given").mkdir()
    assert data_folder(None) == tmp_path
    assert data_folder(tmp_path / "given") == tmp_path / "given"
    monkeypatch.setenv("AUREOLE_DATA", str(tmp_path / "gone"))
    with pytest.raises(InvalidInputError, match=r"gone \(from AUREOLE_DATA\) is not there"):
        data_folder(None)
    monkeypatch.delenv("AUREOLE_DATA")
    with pytest.raises(InvalidInputError, match=r"--data-dir or set AUREOLE_DATA .*download"):
        data_folder(None)
