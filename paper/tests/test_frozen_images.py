"""Frozen images: the experiment on made-up features, on real ones, and the features' store."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from aureole.errors import InvalidInputError
from aureole.records import read_record
from aureole_paper import photo_features
from aureole_paper.class_head import ClassHeadSetting
from aureole_paper.frozen_images import (
    METHODS,
    SETTINGS,
    WEIGHTS,
    FrozenImages,
    FrozenImagesSetting,
    evaluate,
)
from aureole_paper.mobilenet import MobileNetV2
from aureole_paper.peers import ProbeSetting
from aureole_paper.photo_features import FeatureStore
from aureole_paper.runs import run
from paper.tests.test_peers import classes

PROBE = ProbeSetting(hidden=16, steps=100, batch=64, lr=5e-3)
TINY = FrozenImagesSetting(
    name="tiny",
    head=ClassHeadSetting(dim=4, kappa_pos=8.0, probe=PROBE, held_out=0.3, steps=30, items=64),
    plain_dim=3,
    plain_steps=20,
    plain_items=64,
    linear=replace(PROBE, hidden=0),
    probe=PROBE,
)


def test_every_method_is_judged_on_made_up_features():
    (train, labels, _), (test, truth, blur) = classes(), classes(200, seed=1)
    crops, _, lost = classes(200, seed=2)
    data = FrozenImages(train, labels, torch.arange(900), test, truth, blur, crops, 1.2 - lost)
    told = []
    figures = evaluate(data, TINY, 0, progress=lambda *what: told.append(what))
    assert tuple(figures["methods"]) == METHODS
    assert told == [(name, k, len(METHODS)) for k, name in enumerate(METHODS, 1)]
    for name in ("class-head", "softmax", "ensemble", "loss-ranked"):
        assert figures["methods"][name]["entropy_rank"] > 0.2, name
        assert figures["methods"][name]["crop_rank"] > 0.2, name
    assert figures["methods"]["class-head"]["recall_at_1"] > 0.7
    again = evaluate(data, TINY, 0)["methods"]["class-head"]
    assert again["crop_rank"] == figures["methods"]["class-head"]["crop_rank"]


def test_a_run_on_real_images_is_recorded_and_not_repeated(shared_data, tmp_path):
    if not (shared_data / WEIGHTS).is_file():
        pytest.skip(f"{WEIGHTS} is not in the data folder")
    setting = replace(SETTINGS[1].shortened(5), images=300, side=64, plain_dim=4)
    where = {"data_dir": shared_data, "cache": tmp_path / "cache"}
    record = run(setting, 1, tmp_path, command="aureole", **where)
    assert read_record(tmp_path / "whole" / "seed-1.json") == record
    assert len(list((tmp_path / "cache").iterdir())) == 3
    assert set(record.metrics["methods"]) == set(METHODS)
    assert str(WEIGHTS) in record.data
    # neither data nor cache are looked for again
    where = {"data_dir": tmp_path / "none", "cache": tmp_path / "none"}
    assert run(setting, 1, tmp_path, command="aureole", **where) == record
    with pytest.raises(InvalidInputError, match="none"):
        run(setting, 2, tmp_path, command="aureole", **where)


@pytest.fixture
def store(tmp_path):
    network = MobileNetV2(32)
    arrays = {
        k: v.numpy()
        for k, v in network.state_dict().items()
        if not k.endswith("num_batches_tracked")
    }
    np.savez(tmp_path / "w.npz", **arrays)
    return FeatureStore(tmp_path / "w.npz", tmp_path / "cache", side=32)


IMAGES = torch.randint(0, 256, (7, 3, 8, 8), dtype=torch.uint8)


def test_an_interrupted_run_goes_on_where_it_was(store, monkeypatch):
    monkeypatch.setattr(photo_features, "_CHUNK", 3)
    told = []

    def stop(*what):
        told.append(what)
        if what[1] == 6:
            raise KeyboardInterrupt

    store.progress = stop
    with pytest.raises(KeyboardInterrupt):
        store.features(IMAGES)
    assert len(list(store.folder.glob("*.npy"))) == 2
    encoded = []
    original = FeatureStore._encode
    monkeypatch.setattr(
        FeatureStore,
        "_encode",
        lambda self, images: (encoded.append(len(images)), original(self, images))[1],
    )
    store.progress = None
    found = store.features(IMAGES)
    assert encoded == [1]
    assert [path.name for path in store.folder.iterdir()] == [store.path(IMAGES).name]
    monkeypatch.setattr(photo_features, "_CHUNK", 2000)
    whole = FeatureStore(store.weights, store.folder / "other", side=32).features(IMAGES)
    assert np.allclose(found.astype(np.float32), whole.astype(np.float32), rtol=1e-2, atol=1e-3)
    store.features(IMAGES)
    assert encoded == [1, 7]


def test_other_images_weights_or_sides_have_other_files(store, tmp_path):
    other = tmp_path / "other.npz"
    other.write_bytes(store.weights.read_bytes() + b"x")
    paths = {
        store.path(IMAGES),
        store.path(IMAGES.flip(0)),
        FeatureStore(store.weights, store.folder, side=48).path(IMAGES),
        FeatureStore(other, store.folder, side=32).path(IMAGES),
    }
    assert len(paths) == 4


@pytest.mark.parametrize(
    "content",
    [b"", b"no array", np.zeros((7, 4), int), np.zeros((6, 4), np.float16), np.array([{}])],
)
def test_damaged_files_are_named(store, content):
    store.folder.mkdir()
    path = store.path(IMAGES)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content, allow_pickle=True)
    with pytest.raises(InvalidInputError, match="Delete it"):
        store.features(IMAGES)
