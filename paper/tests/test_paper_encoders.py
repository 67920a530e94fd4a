"""The paper's encoders, networks and schedules."""

import math

import pytest
import torch
from torch import nn

import aureole as au
from aureole.errors import InvalidInputError
from aureole.models import IndependentEncoder, ResidualMLP
from aureole_paper.paper_encoders import MixtureEncoder, PaperEncoder, SharedEncoder, paper_mlp


def encoder(kind=IndependentEncoder, dim=4, n_in=6):
    latent = dim if kind is SharedEncoder else n_in
    return kind(ResidualMLP(n_in, dim, width=16), ResidualMLP(latent, 1, width=16), n_in=n_in)


def test_the_papers_encoder_spans_the_range_it_is_given():
    model, x = PaperEncoder(paper_mlp(3, 3), paper_mlp(3, 1), n_in=3), torch.rand(1000, 3)
    model.match_range(x, (16.0, 32.0))
    kappa = model(x).kappa
    assert kappa.min().item() == pytest.approx(16.0, rel=1e-3)
    assert kappa.max().item() == pytest.approx(32.0, rel=1e-3)
    widths = [layer.in_features for layer in paper_mlp(10, 10) if isinstance(layer, nn.Linear)]
    assert widths == [10, 100, 500, 500, 500, 500, 500, 100]


def test_mixtures_have_components_that_start_as_one():
    model = MixtureEncoder(
        ResidualMLP(6, 8, width=16), ResidualMLP(6, 4, width=16), n_in=6, n_components=2
    )
    x = torch.rand(512, 6)
    model.initialise(x)
    model.enter("mu")
    q = model(x)
    assert torch.equal(q.mu[:, 0], q.mu[:, 1])
    assert q.kappa.unique().numel() == 1
    model.enter("joint")
    q = model(x)
    assert isinstance(q, au.MixtureVMF)
    assert not torch.equal(q.mu[:, 0], q.mu[:, 1])
    assert q.mu.shape == (512, 2, 4)
    assert q.kappa.log().mean().item() == pytest.approx(math.log(10), abs=0.5)


@pytest.mark.parametrize("kind", [SharedEncoder, PaperEncoder])
def test_posteriors_are_valid_in_bfloat16_too(kind):
    model, x = encoder(kind), torch.rand(32, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        q = model(x)
    assert q.mu.dtype == q.kappa.dtype == torch.float32
    assert torch.allclose(q.mu.norm(dim=-1), torch.ones(32), atol=1e-5)


def test_they_are_not_saved_as_another_encoder(tmp_path):
    with pytest.raises(InvalidInputError, match="cannot be rebuilt from numbers"):
        encoder(SharedEncoder).save(tmp_path)
