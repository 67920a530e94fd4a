"""The best of several initialisations, and the schedules of the paper."""

import pytest
import torch

import aureole as au
from aureole.errors import InvalidInputError
from aureole.models import IndependentEncoder, ResidualMLP
from aureole.synthetic import ControlledProcess, draw_generator
from aureole.training import Phase
from aureole.training._fit import locate, step_seed
from aureole_paper.paper_encoders import paper_phases, three_phases
from aureole_paper.starts import best_start

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


def test_schedules():
    assert [phase.part for phase in three_phases(100)] == ["mu", "kappa", "joint"]
    assert sum(phase.steps for phase in three_phases(997)) == 997
    assert sum(phase.steps for phase in paper_phases(22)) == 22
    assert [phase.lr for phase in paper_phases(8)] == pytest.approx([1e-4, 1e-5, 1e-6, 1e-7])
    phase = Phase("joint", 1000, 1.0)
    rates = [phase.rate(step) for step in range(1000)]
    assert max(rates) == pytest.approx(1.0)
    assert rates[0] < 0.05
    assert rates[-1] < 1e-4
    with pytest.raises(InvalidInputError, match="beyond"):
        locate([phase], 1000)
    assert len({step_seed(seed, step) for seed in range(30) for step in range(30)}) == 900


@pytest.mark.filterwarnings("ignore:mu has collapsed")
def test_the_best_start_goes_on_and_leaves_no_files(process, tmp_path):
    def start(k):
        encoder = new_encoder(process)
        if k != 1:  # all mu in one spot: such a start cannot learn in three steps
            with torch.no_grad():
                encoder.location.last.weight.mul_(1e-6)
                encoder.location.last.bias.fill_(1.0)
        return encoder

    options = {"starts": 3, "phase": Phase("joint", 3, 1e-4), "seed": 4}
    path = tmp_path / "run.safetensors"
    best, losses = best_start(
        start, au.ClosedFormInfoNCE(20.0), batches(process), **options, checkpoint=path
    )
    assert losses.index(min(losses)) == 1
    assert all(p.requires_grad for p in best.parameters())
    assert best(process.inputs(64)).mu.std(0).mean() > 0.2
    assert not list(tmp_path.iterdir())
