"""The controlled experiment end to end, short; and the catalogue."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from aureole.errors import InvalidInputError
from aureole.records import read_record
from aureole_paper import controlled
from aureole_paper.bimodal import BimodalSetting
from aureole_paper.catalogue import CATALOGUE, find_experiment
from aureole_paper.controlled import train
from aureole_paper.runs import record_path, run
from aureole_paper.settings import Setting, paper_setting

SMALL = Setting("small", dim=4, generator="whitened", width=32, items=48, pairs=100, steps=20)


def test_a_run_is_recorded_and_not_repeated(tmp_path):
    record = run(SMALL, 4, tmp_path, command="test")
    path = record_path(tmp_path, SMALL, 4)
    assert read_record(path).metrics == record.metrics
    assert [p.name for p in path.parent.iterdir()] == ["seed-4.json"]
    metrics = record.metrics
    assert set(metrics["latent_coverage"]) == {"0.5", "0.8", "0.9", "0.95", "0.99"}
    assert metrics["information"] > 0
    assert metrics["curve"][-1]["step"] == 20
    stamp = path.stat().st_mtime_ns
    run(SMALL, 4, tmp_path, command="test")
    assert path.stat().st_mtime_ns == stamp
    run(SMALL.shortened(10), 4, tmp_path, command="test")
    assert read_record(path).settings["steps"] == 10


def test_runs_of_one_seed_agree_and_of_two_differ(tmp_path):
    first, again, other = (
        run(SMALL, seed, tmp_path / folder, command="test").metrics
        for seed, folder in ((4, "a"), (4, "b"), (5, "c"))
    )
    for name in ("mu_rank", "kappa_mae", "information"):
        assert first[name] == again[name] != other[name]


@pytest.mark.parametrize(
    "changes",
    [
        {"family": "gaussian"},
        {"family": "laplace"},
        {"family": "dirac", "kappa_range": (math.inf, math.inf)},
        {"rule": "paper"},
        {"encoder_dim": 6},
        {"architecture": "shared"},
        {"loss": "mcinfonce", "n_samples": 2},
        {"loss": "hib", "n_samples": 2},
        {"loss": "elk", "temperature": 1.0},
        {"loss": "infonce"},
        {"negatives": 0},
        {"negatives": 2, "rule": "paper", "loss": "mcinfonce", "n_samples": 2},
        {"reference": 64, "dim": 8},
        {"dim": 2},
        {"self_weight": 4.0},
        {"self_weight": 4.0, "loss": "mcinfonce", "n_samples": 2},
        {"averaging": False},
        {"tilt": 30.0},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::aureole.errors.AureoleWarning")
def test_every_kind_of_setting_runs(tmp_path, changes):
    setting = replace(SMALL, steps=4, **changes)
    metrics = run(setting, 4, tmp_path, command="test").metrics
    assert -1 <= metrics["mu_rank"] <= 1
    assert ("kappa_rank" in metrics) == (changes.get("family") != "dirac")
    assert ("latent_coverage" in metrics) == ("encoder_dim" not in changes)
    json.dumps(metrics, allow_nan=False)


@pytest.mark.parametrize("degrees", [0.0, 30.0, 60.0])
def test_an_encoder_starts_with_the_tilt_of_its_setting(degrees):
    setting = replace(SMALL, dim=16, tilt=degrees)
    process = setting.process(4)
    posterior = controlled._new_encoder(setting, process, 4)(process.inputs(2000))
    lean = math.degrees(math.asin(posterior.mu.mean(0).norm().item()))
    assert lean == pytest.approx(degrees, abs=5)
    with pytest.raises(InvalidInputError, match="tilt must be"):
        replace(SMALL, tilt=90.0)


def test_self_pairs_need_pairs_among_items():
    with pytest.raises(InvalidInputError, match="self_weight needs pairs among items"):
        replace(SMALL, self_weight=1.0, negatives=0)


@pytest.mark.filterwarnings("ignore:the posteriors carry negative information")
def test_self_pairs_recover_kappa_where_pairs_alone_do_not(tmp_path):
    """Few steps, in which pairs alone teach little about kappa."""
    small = replace(SMALL, dim=48, kappa_range=(12.0, 36.0), items=96, pairs=300, steps=40)
    ranks = []
    for weight in (0.0, 20.0):
        setting = replace(small, self_weight=weight)
        fitted, _ = train(setting, 4, checkpoint=tmp_path / f"{weight:g}.safetensors")
        ranks.append(fitted.curve[-1]["kappa_rank"])
    assert ranks[0] < 0.5
    assert ranks[1] > 0.7


@pytest.mark.filterwarnings("ignore:the posteriors carry negative information")
@pytest.mark.parametrize("components", [1, 2])
def test_bimodal_runs(tmp_path, components):
    setting = BimodalSetting("b", components, dim=3, items=32, pairs=60, steps=5, width=16)
    metrics = run(setting, 4, tmp_path, command="test").metrics
    assert metrics["divergence"] > 0
    assert ("mode_degrees" in metrics) == (components == 2)
    assert len(metrics["examples"]["found"]["weight"][0]) == components


def test_the_ladder_changes_one_thing_at_a_time():
    rungs = find_experiment("ladder").settings
    assert rungs[-1].name == "base"
    joint = {"phases", "lr", "kappa_start", "hold_kappa"}
    together = {"negatives", "items", "pairs"}, joint, {"architecture", "lr"}
    for before, after in pairwise(rungs):
        old, new = before.as_json(), after.as_json()
        changed = {key for key in old if old[key] != new[key]} - {"name", "n_samples"}
        assert len(changed) == 1 or any(changed <= group for group in together), changed


def test_settings_with_and_without_self_pairs_differ_in_nothing_else():
    settings = {s.name: s for s in find_experiment("self-pairs").settings}
    for dim in (10, 16, 32, 40, 48, 56, 64):
        own, plain = settings[f"self-pairs-{dim}"], settings[f"high-dim-fixed-{dim}"]
        assert replace(own, name=plain.name, self_weight=0.0) == plain


def test_the_catalogue_names_each_setting_once():
    settings = {}
    for experiment in CATALOGUE.values():
        for setting in experiment.settings:
            assert settings.setdefault(setting.name, setting) == setting
            json.dumps(setting.as_json(), allow_nan=False)
    wanted = "ambiguous clear injective two-dim families mc-samples encoder-dim losses high-dim"
    assert {*wanted.split(), "shared-backbone", "tuning", "bimodal"} <= set(CATALOGUE)
    with pytest.raises(InvalidInputError, match="Choose one of: ambiguous"):
        find_experiment("unclear")
    with pytest.raises(InvalidInputError, match="the paper has no experiment"):
        find_experiment("bimodal").of_preset("paper")


def test_the_papers_preset_is_the_papers():
    (setting,) = find_experiment("ambiguous").of_preset("paper")
    sizes = (setting.items, setting.n_samples, setting.negatives, setting.steps)
    assert sizes == (512, 512, 32, 100_000)
    assert (setting.loss, setting.rule, setting.lr) == ("mcinfonce", "paper", 1e-4)
    widths = [m.in_features for m in setting.encoder().location if isinstance(m, torch.nn.Linear)]
    assert widths == [10, 100, 500, 500, 500, 500, 500, 100]
    assert paper_setting(Setting("two", dim=2)).steps == 8192


@pytest.mark.slow
def test_400_batches_recover_kappa(tmp_path):
    """The fast preset, shortened; the paper's kappa ends at a rank correlation of 0.82."""
    setting = find_experiment("ambiguous").of_preset("fast")[0]
    metrics = run(setting.shortened(400), 4, tmp_path, command="test").metrics
    assert metrics["mu_rank"] > 0.98
    assert metrics["kappa_rank"] > 0.95
    assert metrics["kappa_mae"] < 1.0
    for mass, share in metrics["latent_coverage"].items():
        assert share == pytest.approx(float(mass), abs=0.02)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:mu has collapsed")
def test_the_papers_preset_runs(tmp_path):
    (setting,) = find_experiment("ambiguous").of_preset("paper")
    metrics = run(setting.shortened(2), 4, tmp_path, command="test").metrics
    assert metrics["curve"][-1]["step"] == 2
    assert math.isfinite(metrics["kappa_mae"])
