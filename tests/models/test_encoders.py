"""Encoders with two networks: shapes, parts, initialisation, saving."""

import json

import pytest
import torch
from torch import nn

import aureole as au
from aureole.errors import InvalidInputError
from aureole.models import IndependentEncoder, ResidualMLP, whiten_last_layer


def encoder(dim=4, n_in=6):
    networks = ResidualMLP(n_in, dim, width=16), ResidualMLP(n_in, 1, width=16)
    return IndependentEncoder(*networks, n_in=n_in)


def test_posteriors_are_valid_in_bfloat16_too():
    model = encoder()
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


def new_encoder():
    torch.manual_seed(0)
    return IndependentEncoder(ResidualMLP(5, 3, width=8), ResidualMLP(5, 1, width=8), n_in=5)


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
    with pytest.raises(InvalidInputError, match="cannot be rebuilt from numbers"):
        plain.save(tmp_path)


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
