"""CIFAR-10H and CIFAR-10N: the known facts about the real files, and errors on small ones."""

import math

import numpy as np
import pytest
import torch

from aureole.errors import InvalidInputError, MissingInputError
from aureole_paper.captions import load_captions
from aureole_paper.cifar10 import load_cifar10
from aureole_paper.cifar10h_data import (
    Cifar10H,
    load_cifar10h,
    load_crop_sizes,
    load_fold,
    load_votes_10n,
)
from aureole_paper.data_folder import require_file


def beyond_download(path):
    """The path of a file that ``download`` does not get; the test is skipped where it is missing."""
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    return path


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
    path = beyond_download(shared_data / "cifar10_human" / "cifar10h-probs.npy")
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


def test_real_raters_of_the_training_images(shared_data):
    beyond_download(shared_data / "cifar10_human" / "cifar10n_human_labels.npz")
    counts = load_votes_10n(shared_data)
    assert counts.shape == (50_000, 10)
    assert bool((counts.sum(1) == 3).all())
    labels = load_cifar10(shared_data, "train")[1]
    # each rater is wrong on 17 to 18 % of the images (Wei et al. 2022, table 1)
    right = counts.gather(1, labels.unsqueeze(1)).double().mean() / 3
    assert 0.82 < float(right) < 0.83


def test_votes_must_fit_the_images(tmp_path):
    binary = tmp_path / "cifar10" / "cifar-10-batches-bin"
    binary.mkdir(parents=True)
    (binary / "test_batch.bin").write_bytes(bytes(2 * 3073))
    (tmp_path / "cifar10_human").mkdir()
    np.save(tmp_path / "cifar10_human" / "cifar10h-counts.npy", np.zeros((3, 10), np.int64))
    with pytest.raises(InvalidInputError, match=r"shape \(3, 10\), but 2 images"):
        load_cifar10h(tmp_path)


@pytest.mark.parametrize("load", [load_crop_sizes, lambda f: load_fold(f, 0)])
def test_missing_files_are_named(tmp_path, load):
    with pytest.raises(InvalidInputError, match=r"csv is missing.*download\.download\(folder\)"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("load", "origin"),
    [
        (load_votes_10n, "npz is missing.*CIFAR-10N"),
        (lambda f: load_captions(f, "val"), "gz is missing.*Multi30k"),
        (lambda f: require_file(f / "weights" / "odd.npz"), "npz is missing.*no function"),
        (lambda f: require_file(f / "cifar10" / "test_batch.webp"), "webp is missing.*no function"),
    ],
)
def test_no_download_is_named_for_files_that_it_does_not_have(tmp_path, load, origin):
    with pytest.raises(MissingInputError, match=origin) as missing:
        load(tmp_path)
    assert "aureole_paper.download" not in str(missing.value)
