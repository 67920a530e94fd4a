"""The loop: it learns, it resumes to the same result, it says what goes wrong."""

import math

import pytest
import torch
from torch import nn

import aureole as au
from aureole.data import Triplets
from aureole.errors import AureoleWarning, DivergenceError, InvalidInputError
from aureole.models import IndependentEncoder, ResidualMLP
from aureole.synthetic import ControlledProcess, draw_generator
from aureole.training import FitOptions, Phase, _fit as fitting, fit
from aureole.training._fit import load_checkpoint, save_checkpoint
from aureole_paper.paper_encoders import three_phases

DIM = 4


@pytest.fixture(scope="module")
def process():
    return ControlledProcess(draw_generator(DIM, (8.0, 32.0), kind="whitened", seed=4))


def new_encoder(process):
    torch.manual_seed(0)
    encoder = IndependentEncoder(
        ResidualMLP(DIM, DIM, width=32), ResidualMLP(DIM, 1, width=32), n_in=DIM
    )
    encoder.initialise(process.inputs(1024))
    return encoder


def batches(process, n=64):
    return lambda step, rng: process.batch(n, 150.0, generator=rng)


def parameters(result):
    return torch.cat([p.flatten() for p in result.encoder.parameters()])


def test_it_learns_and_averages(process):
    encoder = new_encoder(process)
    curve = []
    result = fit(
        encoder, au.ClosedFormInfoNCE(20.0), batches(process), phases=three_phases(60),
        evaluate=lambda model: curve.append(1) or {"score": 1.0}, options=FitOptions(evaluate_every=20),
    )  # fmt: skip
    assert [point["step"] for point in result.curve] == [20, 40, 60]
    assert all(point["score"] == 1.0 for point in result.curve)
    before, after = (
        au.ClosedFormInfoNCE(20.0).among(model(batch.inputs), batch.pairs)
        for batch in [process.batch(256, 600.0)]
        for model in (new_encoder(process), result.encoder)
    )
    assert after < before - 0.3
    assert not any(p.requires_grad for p in result.encoder.parameters())
    assert not torch.equal(
        parameters(result), torch.cat([p.flatten() for p in encoder.parameters()])
    )


ELSEWHERE = torch.device(
    "cpu:0"
)  # differs from "cpu" for all who compare, and computes all the same


class Placed(IndependentEncoder):
    """An encoder that knows where it was sent, and works with nothing that was sent elsewhere."""

    place = torch.device("cpu")

    def to(self, device):
        self.place = device
        return self


class PlacedLoss(au.ClosedFormInfoNCE):
    place = torch.device("cpu")

    def to(self, device):
        self.place = device
        return self


@pytest.fixture
def a_device(monkeypatch):
    """A stand-in for a GPU: Fabric as it is, with a device that is not where encoders come from."""
    usual = fitting._fabric

    def elsewhere(precision):
        fabric = usual(precision)
        monkeypatch.setattr(type(fabric), "device", ELSEWHERE)
        fabric.strategy.module_to_device = lambda module: module.to(ELSEWHERE)
        return fabric

    monkeypatch.setattr(fitting, "_fabric", elsewhere)


@pytest.mark.parametrize("select", [None, "score"])
def test_training_on_a_device_gives_everything_back_where_it_came_from(process, a_device, select):
    torch.manual_seed(0)
    encoder = Placed(ResidualMLP(DIM, DIM, width=32), ResidualMLP(DIM, 1, width=32), n_in=DIM)
    encoder.initialise(process.inputs(1024))
    loss, home, seen = PlacedLoss(20.0), torch.device("cpu"), []

    def evaluate(model):
        assert (encoder.place, loss.place) == (ELSEWHERE, ELSEWHERE)  # training goes on there
        assert model is not encoder
        seen.append(model.place)
        return {"score": 1.0}

    result = fit(
        encoder, loss, batches(process), phases=three_phases(6), evaluate=evaluate,
        options=FitOptions(evaluate_every=3, select=select),
    )  # fmt: skip
    assert seen == [home, home]
    assert (result.encoder.place, encoder.place, loss.place) == (home, home, home)


def test_a_fit_that_fails_gives_the_encoder_back_too(process, a_device):
    encoder = Placed(ResidualMLP(DIM, DIM, width=32), ResidualMLP(DIM, 1, width=32), n_in=DIM)
    with pytest.raises(ZeroDivisionError):
        fit(encoder, PlacedLoss(20.0), lambda step, rng: 1 / 0, phases=three_phases(6))
    assert encoder.place == torch.device("cpu")


def test_apples_processor_is_not_taken_for_a_gpu_it_has_no_float64(monkeypatch):
    from lightning_fabric.accelerators import MPSAccelerator

    monkeypatch.setattr(MPSAccelerator, "is_available", staticmethod(lambda: True))
    assert fitting._fabric("32-true").device.type in ("cuda", "cpu")


@pytest.mark.parametrize("stop", [10, 21, 30, 31])
@pytest.mark.parametrize(
    "loss", [au.ClosedFormInfoNCE(20.0), au.MCInfoNCE(20.0, 4)], ids=["closed", "drawn"]
)
def test_a_stopped_run_goes_on_to_the_same_result(process, tmp_path, stop, loss):
    """Stopped within each phase and at the border of two; losses that draw are seeded by the step."""
    options = FitOptions(seed=3, checkpoint_seconds=0.0)
    given = {"phases": three_phases(60), "options": options}
    whole = fit(new_encoder(process), loss, batches(process), **given)

    class StoppedError(Exception):
        pass

    def until(step, rng):
        if step == stop:
            raise StoppedError
        return batches(process)(step, rng)

    path = tmp_path / "run.safetensors"
    with pytest.raises(StoppedError):
        fit(new_encoder(process), loss, until, **given, checkpoint=path)
    resumed = fit(new_encoder(process), loss, batches(process), **given, checkpoint=path)
    assert torch.equal(parameters(whole), parameters(resumed))


def test_a_finished_run_is_not_trained_again(process, tmp_path):
    path = tmp_path / "run.safetensors"
    given = {"phases": [Phase("joint", 5, 1e-3)], "checkpoint": path}
    first = fit(new_encoder(process), au.InfoNCE(temperature=0.05), batches(process), **given)

    def never(step, rng):
        raise AssertionError("nothing is left to train")

    again = fit(new_encoder(process), au.InfoNCE(temperature=0.05), never, **given)
    assert torch.equal(parameters(first), parameters(again))
    with pytest.raises(InvalidInputError, match="another seed or other phases") as refused:
        fit(
            new_encoder(process),
            au.InfoNCE(temperature=0.05),
            batches(process),
            **given,
            options=FitOptions(seed=9),
        )
    assert str(path) in str(refused.value)
    wide = IndependentEncoder(ResidualMLP(DIM, DIM, width=16), ResidualMLP(DIM, 1), n_in=DIM)
    with pytest.raises(InvalidInputError, match="another encoder or loss") as refused:
        fit(wide, au.InfoNCE(temperature=0.05), batches(process), **given)
    assert str(path) in str(refused.value)


def test_a_figure_that_is_no_number_does_not_stop_a_run_with_a_checkpoint(process, tmp_path):
    scores = iter([float("nan"), 1.0, float("nan")])
    options = {
        "phases": [Phase("joint", 6, 1e-3)],
        "checkpoint": tmp_path / "run.safetensors",
        "evaluate": lambda model: {"score": next(scores)},
        "options": FitOptions(evaluate_every=2, select="score"),
    }
    found = fit(new_encoder(process), au.InfoNCE(temperature=0.05), batches(process), **options)
    again = fit(new_encoder(process), au.InfoNCE(temperature=0.05), batches(process), **options)
    assert torch.equal(parameters(found), parameters(again))
    assert [str(point["score"]) for point in again.curve] == ["nan", "1.0", "nan"]
    assert [path.name for path in tmp_path.iterdir()] == ["run.safetensors"]


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before_and_nothing_else(tmp_path):
    path = tmp_path / "run.safetensors"
    save_checkpoint(path, {"a": torch.ones(2)}, {"step": 1})
    with pytest.raises(TypeError):
        save_checkpoint(path, {"a": torch.zeros(2)}, {"step": object()})
    tied = torch.zeros(2)
    with pytest.raises(RuntimeError, match="share memory"):
        save_checkpoint(path, {"a": tied, "b": tied}, {"step": 2})
    assert load_checkpoint(path)[1] == {"step": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["run.safetensors"]


def test_separate_pairs_with_shared_own_and_no_negatives(process):
    rng = torch.Generator().manual_seed(0)
    anchor, positive = process.pairs(16, rng, pool=256)
    for negative in (None, process.inputs(5), process.inputs(16 * 3).view(16, 3, DIM)):
        result = fit(
            new_encoder(process), au.ClosedFormInfoNCE(20.0),
            lambda *_, n=negative: Triplets(anchor, positive, n), phases=[Phase("joint", 2, 1e-3)],
        )  # fmt: skip
        assert len(result.curve) == 1


def test_divergence_names_the_step(process):
    class Broken(au.InfoNCE):
        def per_pairs(self, posterior, pairs, anchors, self_weight):
            return super().per_pairs(posterior, pairs, anchors, self_weight) * float("nan")

    with pytest.raises(DivergenceError, match="step 0"):
        fit(
            new_encoder(process),
            Broken(temperature=0.05),
            batches(process),
            phases=[Phase("joint", 2, 1e-3)],
        )


def test_phases_need_an_encoder_that_has_them(process):
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(DIM, DIM)

        def forward(self, x):
            return au.VonMisesFisher(au.sphere.normalize(self.layer(x)), 5.0)

    phases = [Phase("joint", 2, 1e-3)]
    with pytest.warns(AureoleWarning, match="kappa is constant"):
        found = fit(Plain(), au.ClosedFormInfoNCE(20.0), batches(process), phases=phases)
    assert found.diagnosis.n_pairs > 10
    quiet = fit(Plain(), au.InfoNCE(temperature=0.05), batches(process), phases=phases)
    assert quiet.diagnosis.kappa_median == 5  # a loss of mu alone does not warn about kappa
    with pytest.raises(InvalidInputError, match="no method enter"):
        fit(Plain(), au.InfoNCE(temperature=0.05), batches(process), phases=[Phase("mu", 2, 1e-3)])


def test_a_phase_that_the_loss_does_not_see_is_named(process):
    with pytest.raises(InvalidInputError, match="InfoNCE does not depend on"):
        fit(
            new_encoder(process),
            au.InfoNCE(temperature=0.05),
            batches(process),
            phases=[Phase("kappa", 2, 1e-3)],
        )


def test_sums_are_divided_by_the_expected_number_of_pairs(process):
    """Not by the number seen, which would bias the gradient."""
    seen = []

    class Keep(au.InfoNCE):
        def among(self, posterior, pairs):
            value = super().among(posterior, pairs)
            seen.append(value.item() * len(pairs) / 150)
            return value

    result = fit(
        new_encoder(process),
        Keep(temperature=0.05),
        batches(process),
        phases=[Phase("joint", 1, 1e-3)],
    )
    assert result.curve[0]["loss"] == pytest.approx(seen[0])


def test_a_learnable_kappa_pos_is_learned_and_resumed(process, tmp_path):
    def trained(folder, steps):
        with pytest.warns(AureoleWarning, match="learnable"):
            loss = au.ClosedFormInfoNCE(5.0, learn_kappa_pos=True)
        fit(
            new_encoder(process), loss, batches(process), phases=[Phase("joint", steps, 0.01, "constant")],
            checkpoint=folder / "run.safetensors",
        )  # fmt: skip
        return loss.kappa_pos.item()

    (tmp_path / "a").mkdir()
    value = trained(tmp_path / "a", 8)
    assert abs(value - 5.0) > 0.1
    assert trained(tmp_path / "a", 8) == value


def test_checkpoints_are_whole_or_refused(tmp_path):
    path = tmp_path / "a" / "run.safetensors"
    save_checkpoint(path, {"x": torch.arange(3)}, {"step": 1})
    tensors, state = load_checkpoint(path)
    assert tensors["x"].tolist() == [0, 1, 2]
    assert state == {"step": 1}
    assert [p.name for p in path.parent.iterdir()] == ["run.safetensors"]
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InvalidInputError, match="Delete it"):
        load_checkpoint(path)
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(InvalidInputError, match="not a checkpoint"):
        load_checkpoint(path)


@pytest.mark.parametrize("stop", [None, 14])
def test_the_encoder_is_returned_as_it_was_when_it_was_best(process, tmp_path, stop):
    """Selection by a figure of the curve, also across an interruption."""
    scores = {5: 0.1, 10: 0.9, 15: 0.2, 20: 0.9}
    seen = {}

    def evaluate(model):
        step = 5 * (len(seen) + 1)
        if seen and step <= max(seen):
            raise AssertionError
        seen[step] = [p.clone() for p in model.parameters()]
        return {"score": scores[step]}

    def go(draw_batch):
        return fit(
            new_encoder(process),
            au.ClosedFormInfoNCE(process.kappa_pos),
            draw_batch,
            phases=[Phase("joint", 20, 1e-3)],
            checkpoint=tmp_path / "run.safetensors",
            options=FitOptions(checkpoint_seconds=0.0, evaluate_every=5, select="score"),
            evaluate=evaluate,
        )

    draw = batches(process)
    if stop is not None:

        def interrupted(step, rng):
            if step == stop:
                raise KeyboardInterrupt
            return draw(step, rng)

        with pytest.raises(KeyboardInterrupt):
            go(interrupted)
    result = go(draw)
    assert all(map(torch.equal, result.encoder.parameters(), seen[10]))
    assert not all(map(torch.equal, seen[20], seen[10]))


def test_a_fit_ends_when_its_metric_has_long_stopped_growing(process):
    scores = iter([1.0, 3.0, 2.0, math.nan, 2.5, 4.0])
    result = fit(
        new_encoder(process),
        au.ClosedFormInfoNCE(process.kappa_pos),
        batches(process),
        phases=[Phase("joint", 12, 1e-3)],
        options=FitOptions(evaluate_every=2, select="score", patience=3),
        evaluate=lambda _: {"score": next(scores)},
    )
    assert [point["step"] for point in result.curve] == [2, 4, 6, 8, 10]


def test_selection_by_an_unknown_figure_names_the_known_ones(process):
    with pytest.raises(InvalidInputError, match="loss"):
        fit(
            new_encoder(process),
            au.ClosedFormInfoNCE(process.kappa_pos),
            batches(process),
            phases=[Phase("joint", 2, 1e-3)],
            options=FitOptions(select="score"),
        )
