"""Starts: the one with the lowest loss on fresh pairs goes on."""

import pytest
import torch

import aureole as au
from aureole.training import Phase, best_start
from tests.training.test_fit import batches, new_encoder, process

assert process  # a fixture


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
