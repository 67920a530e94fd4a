"""CIFAR-10 and its votes: small files made here, and the published facts about the real ones."""

import hashlib
import math
import sys

import numpy as np
import pytest
import torch

from aureole.errors import AureoleError, InvalidInputError
from aureole_paper.cifar import (
    CLASSES,
    Cifar10H,
    files_read,
    load_cifar10,
    load_cifar10h,
    load_crop_sizes,
    load_fold,
)
from aureole_paper.data_folder import SOURCES

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
    with pytest.raises(InvalidInputError, match=r"test_batch\.webp cannot be read"):
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
    official = SOURCES[0].members
    wanted = [official[f"cifar-10-batches-bin/{name}.bin"] for name in BATCHES[part]]
    assert found == wanted


def test_real_images_are_the_same_from_a_binary_file(shared_data, tmp_path):
    wanted = load_cifar10(shared_data, "test")
    assert [CLASSES[i] for i in wanted[1][:4]] == ["cat", "ship", "ship", "airplane"]
    write_binary(tmp_path, "test", *wanted)
    assert same(load_cifar10(tmp_path, "test"), wanted)


@pytest.fixture(scope="module")
def data(shared_data):
    return load_cifar10h(shared_data)


def test_real_votes_have_the_published_facts(data):
    assert data.counts.shape == (10_000, 10)
    votes = data.counts.sum(1)
    assert (int(votes.min()), int(votes.max())) == (47, 63)
    agreement = (data.counts.argmax(1) == data.labels).double().mean()
    assert round(float(agreement), 4) == 0.9921
    assert int((data.entropy == 0).sum()) == 4393


def test_real_votes_match_the_published_probabilities(data, shared_data):
    path = shared_data / "cifar10_human" / "cifar10h-probs.npy"
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    wanted = np.load(path, allow_pickle=False)
    assert torch.allclose(data.probabilities.double(), torch.from_numpy(wanted), atol=1e-7)


def test_entropy_is_that_of_the_votes(data):
    for i in range(0, 10_000, 501):
        share = [c / sum(row) for row in [data.counts[i].tolist()] for c in row if c]
        wanted = -sum(p * math.log(p) for p in share)
        assert float(data.entropy[i]) == pytest.approx(wanted, abs=1e-6)


def test_entropy_does_not_depend_on_the_order_of_the_classes():
    counts = torch.stack(
        [torch.tensor([31, 7, 5, 3, 2, 2, 1, 0, 0, 0])[torch.randperm(10)] for _ in range(50)]
    )
    data = Cifar10H(torch.zeros(50, 3, 32, 32, dtype=torch.uint8), torch.zeros(50).long(), counts)
    assert data.entropy.unique().numel() == 1


@pytest.mark.parametrize("fold", range(5))
def test_folds_are_disjoint_and_cover_all(shared_data, fold):
    found = load_fold(shared_data, fold)
    assert [len(found.train), len(found.validation), len(found.test)] == [6000, 2000, 2000]
    together = torch.cat([found.train, found.validation, found.test])
    assert torch.equal(together.sort().values, torch.arange(10_000))
    following = load_fold(shared_data, (fold + 1) % 5)
    assert torch.equal(following.validation, found.test)
    assert torch.equal(following.train[:4000], found.train[2000:])
    assert torch.equal(following.train[4000:], found.validation)


def test_folds_start_with_the_set_of_their_number(shared_data):
    assert load_fold(shared_data, 0).train[:3].tolist() == [1221, 1947, 3844]
    assert load_fold(shared_data, 3).train[:3].tolist() == [5908, 1435, 409]


@pytest.mark.parametrize("fold", [-1, 5])
def test_folds_are_five(tmp_path, fold):
    with pytest.raises(InvalidInputError, match=rf"fold must be 0\.\.4 .* is {fold}"):
        load_fold(tmp_path, fold)


def test_real_crop_sizes(shared_data):
    sizes = load_crop_sizes(shared_data)
    assert sizes.shape == (2000,)
    assert 0.25 <= float(sizes.min()) < 0.251
    assert 0.99 < float(sizes.max()) <= 1
    assert float(sizes[0]) == pytest.approx(0.5627665, abs=1e-6)


def test_votes_must_fit_the_images(tmp_path):
    write_binary(tmp_path, "test", torch.zeros(2, 3, 32, 32).byte(), torch.zeros(2).long())
    (tmp_path / "cifar10_human").mkdir()
    np.save(tmp_path / "cifar10_human" / "cifar10h-counts.npy", np.zeros((3, 10), np.int64))
    with pytest.raises(InvalidInputError, match=r"shape \(3, 10\), but 2 images"):
        load_cifar10h(tmp_path)


def test_every_file_that_is_read_is_hashed(shared_data, monkeypatch):
    """The names that the loaders open, against those that are hashed."""
    opened = set()

    def noted(path):
        opened.add(path.relative_to(shared_data).as_posix())
        return path

    from aureole_paper import cifar

    hashes = files_read(shared_data, 3, ("resnet20", "resnet20"))
    with monkeypatch.context() as patch:
        patch.setattr(cifar, "require_file", noted)
        load_cifar10h(shared_data), load_fold(shared_data, 3), load_crop_sizes(shared_data)
    opened |= {"cifar10/labels.npz", "weights/cifar10_resnet20.safetensors"}
    assert set(hashes) == opened
    content = (shared_data / "cifar10h_folds" / "idx_set_0.csv").read_bytes()
    assert hashes["cifar10h_folds/idx_set_0.csv"] == hashlib.sha256(content).hexdigest()
    assert len(files_read(shared_data, parts=("train", "test"))) == 8


def test_a_missing_file_is_named(tmp_path, small):
    write_binary(tmp_path, "test", *small)
    with pytest.raises(AureoleError, match="cifar10h-counts"):
        files_read(tmp_path)
