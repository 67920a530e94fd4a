"""The CIFAR-10H experiment on the real images and votes, shortened; skipped if the data is missing."""

from dataclasses import replace

import pytest
import torch

from aureole.errors import InvalidInputError
from aureole.models._networks import bfloat16_in_hardware
from aureole_paper import cifar10h
from aureole_paper.catalogue import find_experiment
from aureole_paper.cifar import Cifar10H, Fold, files_read
from aureole_paper.cifar10h import BaselineSetting, Cifar10HSetting, Split
from aureole_paper.runs import run
from paper.tests.conftest import reproduce


@pytest.fixture(scope="module")
def split(shared_data):
    return Split.load(shared_data, 0)


@pytest.mark.slow
def test_thirty_batches_learn_what_the_paper_measures(shared_data, tmp_path):
    command = ["cifar10h", "--loss", "closed-form", "--labels", "soft", "--pretrained"]
    command += ["--backbone", "resnet20", "--folds", "1", "--max-batches", "30"]
    command += [word for name in ("closed-form", "softmax", "ceiling") for word in ("--only", name)]
    found = reproduce(*command, data=shared_data, out=tmp_path)
    ours, softmax = found["closed-form"], found["softmax"]
    assert ours["entropy_rank"] > 0.25
    assert ours["crop_rank"] > softmax["crop_rank"]
    assert ours["recall_at_1"] > 0.84
    assert 0.3 < softmax["entropy_rank"] < 0.37
    assert 0.81 < found["ceiling"]["ceiling_rank"] < 0.87
    kept = ours["rejection"]["kept"]
    assert kept[0] == pytest.approx(ours["recall_at_1"], abs=1e-4)
    assert kept[10] > kept[0] + 0.03
    assert ours["rejection_area"] > ours["recall_at_1"]
    assert ours["pictures"]["tiles"] >= 106
    assert 0.01 < ours["bootstrap_errors"]["entropy_rank"] < 0.04
    assert (tmp_path / "closed-form" / "seed-0.png").stat().st_size > 10_000
    record = (tmp_path / "closed-form" / "seed-0.json").read_text()
    assert str(tmp_path) not in record
    assert str(shared_data) not in record
    assert not list(tmp_path.glob("*/*.safetensors"))


@pytest.mark.slow
def test_values_are_chosen_inside_the_training_images(shared_data, split, tmp_path, monkeypatch):
    setting = Cifar10HSetting(
        "small", steps=2, items=32, pairs=100, lrs=(1e-4, 5e-4), heads=("prototypes", "norm")
    )
    seen, score = [], iter([{"entropy_rank": x} for x in (0.1, 0.4, 0.3, 0.2)])

    def evaluate(model, part, candidate, *, folder):
        seen.append(part.fold)
        return dict.fromkeys(cifar10h._SCORES, 0.5) | next(score)

    monkeypatch.setattr(cifar10h, "evaluate", evaluate)
    place = tmp_path / "seed-0.safetensors"
    chosen, tried = cifar10h.choose(setting, split, 0, folder=shared_data, checkpoint=place)
    assert (chosen.lr, chosen.head, chosen.lrs, chosen.heads) == (1e-4, "norm", (), ())
    assert [entry["score"] for entry in tried] == pytest.approx([0.4, 0.475, 0.45, 0.425])
    known = set(split.fold.train.tolist())
    for fold in seen:
        inner, held = set(fold.train.tolist()), set(fold.test.tolist())
        assert inner | held == known
        assert not inner & held
        assert len(held) == len(split.crop_sizes)
    plain = Cifar10HSetting("plain")
    assert cifar10h.choose(plain, split, 0, folder=shared_data, checkpoint=place) == (plain, [])


@pytest.mark.slow
def test_a_stopped_run_of_two_members_goes_on_to_the_same_result(
    shared_data, split, tmp_path, monkeypatch
):
    setting = Cifar10HSetting("small", steps=3, evaluate_every=2, members=2, items=32, pairs=100)

    def train(folder):
        return cifar10h.train(
            setting, split, 0, folder=shared_data, checkpoint=folder / "seed-0.safetensors"
        )

    whole = train(tmp_path / "whole")
    draw, calls = cifar10h._Batches.__call__, []

    def interrupted(self, step, rng):
        calls.append(step)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return draw(self, step, rng)

    with monkeypatch.context() as patch:
        patch.setattr(cifar10h._Batches, "__call__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "parts")
    resumed = train(tmp_path / "parts")
    images = split.data.images[:20]
    torch.testing.assert_close(whole.encoder(images).kappa, resumed.encoder(images).kappa)


def test_from_scratch_directions_start_apart(shared_data, split):
    setting = Cifar10HSetting("scratch", pretrained=False)
    encoder = cifar10h.new_encoder(setting, split, shared_data)
    found = cifar10h.encode(encoder, split.data.images[:200])
    assert found.mu.mean(0).norm() < 0.3


def test_labels_are_as_the_supplement_defines_them():
    counts = torch.zeros(10, 10, dtype=torch.int64)
    counts[:, 3], counts[:, 5] = 30, 20
    data = Cifar10H(torch.zeros(10, 3, 32, 32, dtype=torch.uint8), torch.full((10,), 5), counts)
    nothing = torch.zeros(0)
    index = torch.arange(10)
    split = Split(data, Fold(index, index, index), nothing, nothing, nothing)
    torch.testing.assert_close(split.soft_labels("soft")[0, [3, 5]], torch.tensor([0.6, 0.4]))
    assert split.soft_labels("hard")[0].argmax() == 3
    assert split.soft_labels("cifar10")[0].argmax() == 5
    assert split.soft_labels("hard").sum() == 10


def test_foreign_images_keep_shape_and_type():
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
    found = cifar10h.foreign_images(images)
    assert all(x.shape == images.shape and x.dtype == torch.uint8 for x in found.values())
    tiles = found["tiles shuffled"]
    assert torch.equal(tiles.flatten().sort().values, images.flatten().sort().values)
    assert not torch.equal(tiles, images)


def test_baselines_are_recorded_without_training(shared_data, tmp_path):
    record = run(BaselineSetting("ceiling"), 1, tmp_path, command="test", data_dir=shared_data)
    assert record.name == "cifar10h/ceiling"
    assert record.data == files_read(shared_data, 1)
    assert record.metrics["bfloat16"] == bfloat16_in_hardware()


def test_without_data_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv("AUREOLE_DATA", raising=False)
    with pytest.raises(InvalidInputError, match="AUREOLE_DATA"):
        run(Cifar10HSetting("none"), 0, tmp_path, command="test")


def test_experiments_are_narrowed_by_what_is_asked_for():
    experiment = find_experiment("cifar10h")
    names = {s.name for s in experiment.narrowed({"labels": "hard"}).settings}
    assert "labels-hard" in names
    assert "closed-form" not in names
    scratch = experiment.narrowed({"pretrained": False, "name": ["scratch", "elk"]}).settings
    assert [s.name for s in scratch] == ["scratch"]
    made = experiment.narrowed({"loss": "elk", "backbone": "resnet18", "pretrained": False})
    assert [s.name for s in made.settings][-1] == "resnet18-elk-scratch"
    assert made.settings[-1].steps == experiment.narrowed({"name": ["scratch"]}).settings[0].steps
    with pytest.raises(InvalidInputError, match="loss elk"):
        find_experiment("two-dim").narrowed({"loss": "elk"})


def test_settings_are_shortened_but_not_lengthened():
    setting = Cifar10HSetting("x", steps=10)
    assert setting.shortened(4) == replace(setting, steps=4)
    assert setting.shortened(40) is setting
    assert BaselineSetting("softmax").shortened(1) == BaselineSetting("softmax")
