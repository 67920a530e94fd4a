"""Frozen images: the experiment on made-up features, and on real ones."""

from dataclasses import replace

import pytest
import torch

from aureole.errors import InvalidInputError
from aureole.records import read_record
from aureole_paper.class_head import ClassHeadSetting
from aureole_paper.frozen_images import (
    METHODS,
    SETTINGS,
    WEIGHTS,
    FrozenImages,
    FrozenImagesSetting,
    evaluate,
)
from aureole_paper.runs import run
from aureole_paper.uncertainty_baselines import ProbeSetting
from paper.tests.test_uncertainty_baselines import classes

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
    calls = []
    figures = evaluate(data, TINY, 0, progress=lambda *what: calls.append(what))
    assert list(figures["methods"]) == list(METHODS)
    assert calls == [(name, k, len(METHODS)) for k, name in enumerate(METHODS, 1)]
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
