"""Heads on the vectors of a finished encoder."""

import json
import pickle

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file

import aureole as au
from aureole.errors import InvalidInputError, NotFittedError
from aureole.evaluation import Calibration, nearest_label_matches, spearman
from aureole.models._saving import MINILM_CAPTIONS
from aureole.training import FrozenHead, _frozen_head as frozen


def draw(seed):
    """Noisy views of 600 things, four of each; the first coordinate shows how noisy a view is."""
    rng = torch.Generator().manual_seed(seed)
    groups = torch.arange(600).repeat(4)
    blur = 0.1 + 0.9 * torch.rand(len(groups), generator=rng)
    things = torch.randn(600, 11, generator=rng)[groups]
    views = things + blur[:, None] * torch.randn(len(groups), 11, generator=rng)
    vectors = 5 + 3 * torch.cat([blur[:, None], views], 1)
    return vectors, groups, blur


@pytest.fixture(scope="module")
def data():
    return draw(0)


def small(**changes):
    return FrozenHead(**({"dim": 8, "steps": 120, "items": 256, "width": 64} | changes))


@pytest.fixture(scope="module")
def head(data):
    vectors, groups, _ = data
    return small().fit(vectors, groups)


def test_kappa_knows_the_noise_and_mu_the_thing(head, data):
    vectors, groups, blur = data
    found = head.predict(vectors)
    assert isinstance(found, au.VonMisesFisher)
    assert found.mu.shape == (2400, 8)
    assert spearman(found.kappa, -blur) > 0.85
    sharp = blur < 0.4
    right = nearest_label_matches(found.mu, groups).double().mean()
    assert nearest_label_matches(found.mu[sharp], groups[sharp]).double().mean() > right + 0.1


def test_scores_are_information_and_the_profile_is_flat_at_the_top_alone(head, data):
    vectors, groups, _ = data
    score = head.score(vectors, groups)
    assert score > 2.0
    assert head.information_ == max(point["information"] for point in head.fit_.curve)
    untrained = small(steps=1, lr=1e-9).fit(vectors, groups)
    assert score > untrained.score(vectors, groups) + 0.5
    profile = head.profile(vectors, groups)
    assert profile[16.0] == pytest.approx(score)
    # the encoder is that of 16: twice that tells as much, and a quarter or four times as much tells less
    assert max(profile.values()) - score < 0.1
    assert abs(profile[32.0] - score) < 0.2
    assert max(profile[4.0], profile[64.0]) < score - 0.2


def test_the_judge_is_not_the_loss_that_trains_which_may_lie_on_a_gpu(data, monkeypatch):
    vectors, groups, _ = data
    trained, judges = [], []
    fit, judged = frozen.fit, frozen.judged

    def noted_fit(encoder, loss, *rest, **options):
        trained.append(loss)
        return fit(encoder, loss, *rest, **options)

    def noted_judged(model, loss, batch):
        judges.append(loss)
        return judged(model, loss, batch)

    monkeypatch.setattr(frozen, "fit", noted_fit)
    monkeypatch.setattr(frozen, "judged", noted_judged)
    small(steps=2).fit(vectors, groups)
    assert len(trained) == 1
    assert len(judges) > 1
    assert not any(judge is trained[0] for judge in judges)


def test_what_is_measured_takes_what_fit_takes(head, data):
    vectors, groups, _ = data
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.numpy().reshape(-1)), 12)
    pairs = [[row, row + 600] for row in range(600)]
    for measure in (head.score, head.profile, head.coverage):
        assert measure(column, groups) == measure(vectors, groups)
        by_pairs = measure(column, pairs=pairs)
        assert type(by_pairs) is type(measure(vectors, groups))
        with pytest.raises(
            InvalidInputError, match="2400 vectors need one group each, but got 2399"
        ):
            measure(vectors, groups[1:])
        with pytest.raises(InvalidInputError, match="either groups"):
            measure(vectors)
        with pytest.raises(InvalidInputError, match="either groups"):
            measure(vectors, groups, pairs=pairs)
    assert head.score(vectors, pairs=pairs) == pytest.approx(head.score(vectors, groups), abs=1.0)


@pytest.mark.parametrize("kind", ["numpy", "half", "memory-mapped"])
def test_arrays_and_files_do_as_tensors_do(head, data, kind, tmp_path):
    vectors, _, _ = data
    array = vectors.numpy()
    if kind == "half":
        array = array.astype(np.float16)
    if kind == "memory-mapped":
        np.save(tmp_path / "vectors.npy", array)
        array = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    found, expected = head.predict(array), head.predict(vectors)
    tolerance = 0.05 if kind == "half" else 1e-6
    torch.testing.assert_close(found.kappa, expected.kappa, rtol=tolerance, atol=tolerance)


def test_a_seed_decides_everything_and_strings_are_groups(data):
    vectors, groups, _ = data
    names = np.array([f"thing {g:04d}" for g in groups.tolist()])
    one, two = (small(steps=5).fit(vectors, g).predict(vectors) for g in (groups, names))
    assert torch.equal(one.kappa, two.kappa)
    other = small(steps=5, seed=1).fit(vectors, groups).predict(vectors)
    assert not torch.equal(one.kappa, other.kappa)


def test_predictive_caps_hold_what_they_promise_of_partners_not_seen(head, data):
    vectors, groups, _ = data
    assert head.coverage_[0.9] == pytest.approx(0.9, abs=0.02)
    fresh, labels, _ = draw(1)
    found = head.coverage(fresh, labels)
    assert list(found) == [0.5, 0.8, 0.9, 0.95]
    assert found[0.9] == pytest.approx(0.9, abs=0.05)  # calibrated on 30 groups
    raw = small().fit(vectors, groups, calibrate=False)
    assert raw.calibration_ == Calibration()
    one, two = raw.predict(vectors), head.predict(vectors)
    assert torch.equal(one.mu, two.mu)
    assert torch.equal(one.kappa.argsort(), two.kappa.argsort())
    assert abs(raw.coverage_[0.9] - 0.9) > abs(head.coverage_[0.9] - 0.9)


def test_pairs_of_rows_do_as_groups_do(data):
    vectors, groups, blur = data
    pairs = [[row, row + 600 * k] for row in range(600) for k in (1, 2, 3)]
    found = small().fit(vectors, pairs=pairs).predict(vectors)
    assert spearman(found.kappa, -blur) > 0.75
    with pytest.raises(InvalidInputError, match="either groups"):
        small().fit(vectors)
    with pytest.raises(InvalidInputError, match="either groups"):
        small().fit(vectors, groups, pairs=pairs)


@pytest.mark.parametrize("count", [4, 12, 30])
def test_a_few_pairs_are_enough(data, count):
    vectors = data[0]
    pairs = [[row, row + 600] for row in range(count)]
    head = small(steps=2).fit(vectors, pairs=pairs)
    assert bool(torch.isfinite(head.predict(vectors).kappa).all())


def test_auto_takes_the_dim_that_tells_most(data):
    vectors, groups, _ = data
    head = small(dim="auto", steps=60).fit(vectors, groups)
    assert set(head.dims_) == {8}  # 16 is more than there are
    wide = torch.cat([vectors, vectors @ torch.randn(12, 30)], 1)
    head = small(dim="auto", steps=60).fit(wide, groups)
    assert head.dim_ in head.dims_
    assert head.kappa_pos_ == 2.0 * head.dim_
    assert head.predict(wide).dim == head.dim_
    assert "by dim" in head.summary()


def test_dead_features_are_no_trouble_to_vectors_that_have_them(data):
    vectors, groups = torch.as_tensor(data[0]).clone(), data[1]
    vectors = torch.cat(
        [vectors, torch.randn(len(vectors), 3) * torch.tensor([1e-33, 1e-9, 0.0])], 1
    )
    fitted = small(steps=5).fit(vectors, groups)
    foreign = vectors[:20].clone()
    foreign[:, -3:] = 1.0
    with_them, without = fitted.predict(foreign), fitted.predict(vectors[:20])
    assert torch.isfinite(with_them.kappa).all()
    assert (with_them.kappa / without.kappa).log().abs().max() < 2
    foreign[7] = 1e30
    with pytest.raises(InvalidInputError, match="row 7 is too large"):
        fitted.predict(foreign)


@pytest.mark.filterwarnings("ignore::aureole.errors.AureoleWarning")  # groups of noise
def test_a_head_knows_whether_its_vectors_had_length_1(data, tmp_path):
    vectors = torch.as_tensor(data[0])
    unit = torch.nn.functional.normalize(vectors, dim=-1)
    assert small(steps=2).fit(unit, data[1]).takes_unit_vectors
    assert not small(steps=2).fit(3 * unit, data[1]).takes_unit_vectors
    # 64 even features and 20 dead ones, which have the scale of the one that varies most
    even = torch.nn.functional.normalize(torch.randn(400, 64), dim=1)
    dead = torch.cat([even, torch.zeros(400, 20)], 1)
    found = small(steps=2).fit(dead, torch.arange(200).repeat(2))
    assert found.diagnosis_.n_pairs >= 10
    assert found.takes_unit_vectors
    again = FrozenHead.load(found.save(tmp_path / "head"))
    assert again.square_length_ == pytest.approx(1.0)
    assert again.takes_unit_vectors


def test_the_summary_prints_profile_and_coverage(head):
    text = head.summary()
    assert "nats" in text
    assert f"{head.kappa_pos_:g}: {head.profile_[head.kappa_pos_]:.3f}" in text
    assert f"90%: {head.coverage_[0.9]:.1%}" in text


def test_a_head_is_the_last_step_of_a_pipeline(data):
    pipeline = pytest.importorskip("sklearn.pipeline")
    from sklearn.base import clone
    from sklearn.preprocessing import StandardScaler

    vectors, groups, blur = data
    steps = pipeline.make_pipeline(StandardScaler(), small())
    steps.set_params(frozenhead__steps=60)
    found = clone(steps).fit(vectors.numpy(), groups.numpy()).predict(vectors.numpy())
    assert spearman(found.kappa, -blur) > 0.7
    assert clone(small(seed=3)).get_params() == small(seed=3).get_params()


def test_a_stopped_fit_goes_on(data, tmp_path):
    vectors, groups, _ = data
    whole = small(steps=10).fit(vectors, groups).predict(vectors)

    def stop(step, total, phase, loss, state):
        if step >= 4:
            raise KeyboardInterrupt

    path = tmp_path / "head.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aureole.training._fit.time.monotonic", iter(range(10**6)).__next__)
        with pytest.raises(KeyboardInterrupt):
            small(steps=10).fit(vectors, groups, checkpoint=path, observer=stop)
    assert path.exists()
    resumed = small(steps=10).fit(vectors, groups, checkpoint=path).predict(vectors)
    torch.testing.assert_close(whole.kappa, resumed.kappa)


def test_parameters_have_scikit_learns_manners():
    head = FrozenHead(dim=4, steps=7)
    again = FrozenHead(**head.get_params())
    assert again.get_params() == head.get_params()
    assert head.set_params(dim=5) is head
    assert head.dim == 5
    with pytest.raises(InvalidInputError, match="no parameter 'dims'"):
        head.set_params(dims=5)


@pytest.mark.filterwarnings(
    "ignore::aureole.errors.AureoleWarning"
)  # there is little to learn from
@pytest.mark.parametrize("groups", [4, 9, 31])
def test_a_few_groups_are_enough(groups):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(groups).repeat_interleave(4)
    centres = torch.randn(groups, 12, generator=generator)
    vectors = centres[labels] + 0.5 * torch.randn(4 * groups, 12, generator=generator)
    found = FrozenHead(dim=4, steps=30).fit(vectors, labels)
    assert bool(found.predict(vectors).kappa.isfinite().all())


def test_what_cannot_be_fitted_is_named(head, data):
    vectors, groups, _ = data
    with pytest.raises(NotFittedError, match="call fit"):
        FrozenHead().predict(vectors)
    with pytest.raises(InvalidInputError, match="one group each"):
        small().fit(vectors, groups[:-1])
    with pytest.raises(InvalidInputError, match=r"\[n, d\]"):
        small().fit(vectors[0], groups)
    with pytest.raises(InvalidInputError, match="between 2 and 12"):
        small(dim=13).fit(vectors, groups)
    with pytest.raises(InvalidInputError, match="of 12 dimensions, not 11"):
        head.predict(vectors[:, 1:])
    broken = vectors.clone()
    broken[7, 3] = torch.nan
    with pytest.raises(InvalidInputError, match=r"vectors\[7\]"):
        head.predict(broken)


OUT_OF_RANGE = [
    *(("held_out", value, "share between 0 and 1") for value in (2.0, -1.0, 0.0, 1.0, np.nan)),
    *(("steps", value, "integer of at least 1") for value in (0, -3, 2.5, True)),
    *(("items", value, "integer of at least 4") for value in (1, 3, 64.0)),
    *(("width", value, "integer of at least 1") for value in (0, "wide")),
    *(("lr", value, "positive number") for value in (0.0, -1e-3, np.nan, np.inf)),
]


def with_parameters(head, **parameters):
    """A head with parameters of any type, which the annotations do not check here."""
    vars(head).update(parameters)
    return head


@pytest.mark.parametrize(("name", "value", "message"), OUT_OF_RANGE)
def test_parameters_out_of_range_are_named_before_anything_is_fitted(data, name, value, message):
    vectors, groups, _ = data
    with pytest.raises(InvalidInputError, match=f"{name} .*{message}"):
        with_parameters(small(steps=1), **{name: value}).fit(vectors, groups)


def test_a_saved_head_is_the_same_head(head, data, tmp_path):
    vectors, groups, _ = data
    folder = head.save(tmp_path / "head")
    assert sorted(p.name for p in folder.iterdir()) == [
        "README.md",
        "config.json",
        "weights.safetensors",
    ]
    assert f"| 0.9 | {head.coverage_[0.9]:.3f} |" in (folder / "README.md").read_text()
    again = FrozenHead.load(folder)
    assert again.get_params() == head.get_params()
    for name in (
        "information_",
        "dim_",
        "kappa_pos_",
        "profile_",
        "coverage_",
        "calibration_",
        "dims_",
    ):
        assert getattr(again, name) == getattr(head, name)
    one, two = head.predict(vectors), again.predict(vectors)
    assert torch.equal(one.kappa, two.kappa)
    assert torch.equal(one.mu, two.mu)
    assert again.score(vectors, groups) == head.score(vectors, groups)
    with pytest.raises(NotFittedError):
        FrozenHead().save(tmp_path / "none")


def _change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _change_weights(folder, change):
    weights = load_file(folder / "weights.safetensors")
    change(weights)
    save_file(weights, folder / "weights.safetensors")


class _Hostile:
    def __reduce__(self):
        return (print, ("code was run",))


HOSTILE = {
    "a pickle": (
        lambda f: (f / "weights.safetensors").write_bytes(pickle.dumps(_Hostile())),
        "cannot be read",
    ),
    "a huge layer": (
        lambda f: _change_config(f, parameters={"dim": 8, "width": 2**40}),
        "none may be above",
    ),
    "a huge dim": (lambda f: _change_config(f, dim=2**40), "none may be above"),
    "a dim that is no number": (lambda f: _change_config(f, dim="8; import os"), "damaged"),
    "an endless kappa_pos": (lambda f: _change_config(f, kappa_pos=-1.0), "kappa_pos is -1"),
    "a calibration that turns kappa round": (
        lambda f: _change_config(f, calibration={"reference": 1.0, "scale": 1.0, "power": -2.0}),
        "positive reference, scale and power",
    ),
    "a parameter of no head": (lambda f: _change_config(f, parameters={"code": 1}), "damaged"),
    "another format": (lambda f: _change_config(f, format="aureole-head-0"), "aureole-head-0"),
    "another shape": (
        lambda f: _change_weights(f, lambda w: w.update({"centre": torch.zeros(13)})),
        r"centre has shape \(13,\)",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused_and_run_no_code(head, kind, tmp_path, capsys):
    spoil, message = HOSTILE[kind]
    folder = head.save(tmp_path / "head")
    spoil(folder)
    with pytest.raises(InvalidInputError, match=message):
        FrozenHead.load(folder)
    assert "code was run" not in capsys.readouterr().out


def test_a_packaged_head_loads_by_its_name():
    by_name, by_path = FrozenHead.load("minilm-captions"), FrozenHead.load(MINILM_CAPTIONS)
    vectors = torch.randn(3, by_path.n_features_in_, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(by_name.predict(vectors).kappa, by_path.predict(vectors).kappa)
