"""Saved encoders of two networks, whole and damaged."""

import json

import pytest
import torch
from torch import nn

from aureole.errors import InvalidInputError
from aureole.models import IndependentEncoder, ResidualMLP, SharedEncoder, save_independent
from aureole.models._independent import load_independent


def new_encoder(kind=IndependentEncoder):
    torch.manual_seed(0)
    return kind(ResidualMLP(5, 3, width=8), ResidualMLP(5, 1, width=8), n_in=5)


def test_it_comes_back_as_it_was(tmp_path):
    encoder = new_encoder()
    encoder.initialise(torch.randn(100, 5))
    found, x = load_independent(save_independent(encoder, tmp_path)), torch.randn(4, 5)
    assert torch.equal(found(x).mu, encoder(x).mu)
    assert torch.equal(found(x).kappa, encoder(x).kappa)
    assert not found.training
    assert "load_independent" in (tmp_path / "README.md").read_text()


def test_what_numbers_do_not_describe_is_refused(tmp_path):
    plain = IndependentEncoder(nn.Linear(5, 3), nn.Linear(5, 1), n_in=5)
    for encoder in (plain, new_encoder(SharedEncoder)):
        with pytest.raises(InvalidInputError, match="cannot be rebuilt from numbers"):
            save_independent(encoder, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_in": -1}, "n_in is -1"),
        ({"n_in": True}, "n_in is True"),
        ({"n_in": 10**9}, "n_in is 1000000000"),
        ({"n_in": 6}, "the model needs"),
        ({"location": None}, "described by a kind and numbers"),
        ({"location": {"kind": "os.system"}}, "no network of the kind 'os.system'"),
        ({"certainty": {"kind": "ResidualMLP", "n_in": 5, "n_out": 2, "width": 8, "n_blocks": 3}}, "the model needs"),
        ({"format": "another"}, "has the format 'another'"),
    ],
)  # fmt: skip
def test_damaged_configs_are_refused(tmp_path, change, message):
    save_independent(new_encoder(), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InvalidInputError, match=message):
        load_independent(tmp_path)
