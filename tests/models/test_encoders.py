"""Encoders with two networks: shapes, parts, initialisation, saving."""

import json
import math

import pytest
import torch
from torch import nn

import aureole as au
from aureole.errors import InvalidInputError
from aureole.models import IndependentEncoder, ResidualMLP, whiten_last_layer
from aureole_paper.paper_encoders import MixtureEncoder, PaperEncoder, SharedEncoder, paper_mlp


def encoder(kind=IndependentEncoder, dim=4, n_in=6):
    latent = dim if kind is SharedEncoder else n_in
    return kind(ResidualMLP(n_in, dim, width=16), ResidualMLP(latent, 1, width=16), n_in=n_in)


@pytest.mark.parametrize("kind", [IndependentEncoder, SharedEncoder, PaperEncoder])
def test_posteriors_are_valid_in_bfloat16_too(kind):
    model = encoder(kind)
    x = torch.rand(32, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        q = model(x)
    assert isinstance(q, au.VonMisesFisher)
    assert q.mu.dtype == q.kappa.dtype == torch.float32
    assert torch.allclose(q.mu.norm(dim=-1), torch.ones(32), atol=1e-5)
    assert bool((q.kappa > 0).all())


def test_initialise_standardises_and_spreads():
    model, x = encoder(dim=6), 5 + 0.01 * torch.rand(4096, 6)
    model.initialise(x)
    q = model(x)
    assert q.mu.mean(0).norm() < 0.1
    assert torch.linalg.eigvalsh(q.mu.T @ q.mu / 4096)[0] * 6 > 0.3
    assert 5 < q.kappa.min() < q.kappa.max() < 20


def test_constant_inputs_do_not_divide_by_zero():
    model, x = encoder(), torch.rand(64, 6)
    x[:, 2] = 1.0
    model.initialise(x)
    assert bool(torch.isfinite(model(x).mu).all())


def test_more_outputs_than_inputs_are_not_blown_up():
    network, x = ResidualMLP(3, 24, width=64), torch.randn(4096, 3)
    before = network.last.weight.detach().norm()
    with torch.no_grad():
        whiten_last_layer(network, x)
    assert network.last.weight.norm() < 30 * before
    outputs = network(x)
    assert torch.allclose(outputs.mean(0), torch.zeros(24), atol=1e-3)
    assert torch.linalg.eigvalsh(torch.cov(outputs.T))[-1] < 1.1


def test_parts_train_what_they_say():
    model, x = encoder(), torch.rand(8, 6)
    for part, trained in (
        ("mu", {"location"}),
        ("kappa", {"certainty"}),
        ("joint", {"location", "certainty"}),
    ):
        model.enter(part)
        model.zero_grad()
        q = model(x)
        (q.mu.sum() + q.kappa.sum()).backward()
        for name in ("location", "certainty"):
            moved = [p.grad is not None for p in getattr(model, name).parameters()]
            assert all(moved) == (name in trained) == any(moved)
        assert model.log_kappa.grad is not None
        chosen = [id(p) for group in model.parameter_groups(1e-3) for p in group["params"]]
        assert len(chosen) == len(set(chosen)) == sum(p.requires_grad for p in model.parameters())
    model.enter("mu")
    assert model(x).kappa.std() == 0
    with pytest.raises(InvalidInputError, match="'mu', 'kappa' or 'joint'"):
        model.enter("both")


def test_kappa_stops_at_its_guard():
    model = encoder()
    with torch.no_grad():
        model.log_kappa.fill_(500.0)
    assert model(torch.rand(3, 6)).kappa.tolist() == pytest.approx([1e8] * 3, rel=1e-5)


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


def new_encoder(kind=IndependentEncoder):
    torch.manual_seed(0)
    return kind(ResidualMLP(5, 3, width=8), ResidualMLP(5, 1, width=8), n_in=5)


def test_it_comes_back_as_it_was(tmp_path):
    encoder = new_encoder()
    encoder.initialise(torch.randn(100, 5))
    found, x = IndependentEncoder.load(encoder.save(tmp_path)), torch.randn(4, 5)
    assert torch.equal(found(x).mu, encoder(x).mu)
    assert torch.equal(found(x).kappa, encoder(x).kappa)
    assert not found.training
    assert "IndependentEncoder.load" in (tmp_path / "README.md").read_text()


def test_what_numbers_do_not_describe_is_refused(tmp_path):
    plain = IndependentEncoder(nn.Linear(5, 3), nn.Linear(5, 1), n_in=5)
    for encoder in (plain, new_encoder(SharedEncoder)):
        with pytest.raises(InvalidInputError, match="cannot be rebuilt from numbers"):
            encoder.save(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_in": -1}, "n_in is -1"),
        ({"n_in": True}, "n_in is True"),
        ({"n_in": 10**9}, "n_in is 1000000000"),
        ({"n_in": 6}, "the model needs"),
        ({"location": None}, "described by a kind and numbers"),
        ({"location": {"kind": "os.system"}}, "unknown kind of network 'os.system'"),
        ({"certainty": {"kind": "ResidualMLP", "n_in": 5, "n_out": 2, "width": 8, "n_blocks": 3}}, "the model needs"),
        ({"format": "another"}, "has the format 'another'"),
    ],
)  # fmt: skip
def test_damaged_configs_are_refused(tmp_path, change, message):
    new_encoder().save(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InvalidInputError, match=message):
        IndependentEncoder.load(tmp_path)
