"""Saved encoders: the same posteriors come back, and hostile files are refused."""

import json
import pickle
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import aureole as au
from aureole.errors import InvalidInputError
from aureole.models import (
    Card,
    CifarResNet,
    KappaFromNorm,
    MixtureHead,
    PosteriorEncoder,
    PosteriorHead,
    ResidualMLP,
)
from aureole.models._networks import hold_statistics
from aureole.models._saving import BACKBONES, HEADS, build, describe

IMAGES, VECTORS = torch.rand(3, 3, 32, 32), torch.randn(3, 5)


class _Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 8)

    def forward(self, x):
        return self.layer(x).relu()


def moved(encoder):
    """The encoder with weights that no constructor gives."""
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return encoder.eval()


def assert_same(one, two, inputs):
    first, second = one(inputs), two(inputs)
    assert type(first) is type(second)
    assert torch.equal(first.mu, second.mu)
    assert torch.equal(first.kappa, second.kappa)
    if isinstance(first, au.MixtureVMF):
        assert torch.equal(first.weights, second.weights)


@pytest.mark.parametrize(
    "head",
    [
        KappaFromNorm(64, 4),
        MixtureHead(64, 4, n_components=3),
    ],
    ids=lambda head: type(head).__name__,
)
def test_a_saved_encoder_is_the_same_encoder(head, tmp_path):
    card = Card(name="Toy", data="noise", kappa_pos=20, coverage={0.5: 0.48, 0.9: 1.0})
    encoder = moved(PosteriorEncoder(CifarResNet(8), head, head_rate=3.0, card=card))
    state = torch.get_rng_state()
    folder = encoder.save(tmp_path / "encoder")
    again = PosteriorEncoder.load(folder)
    assert torch.equal(torch.get_rng_state(), state)
    names = sorted(p.name for p in folder.iterdir())
    assert names == ["README.md", "config.json", "weights.safetensors"]
    assert_same(encoder, again, IMAGES)
    assert again.card == card
    assert again.head_rate == 3.0
    assert not again.training
    assert all(p.requires_grad for p in again.parameters())
    assert 'au.PosteriorEncoder.load("folder")' in (folder / "README.md").read_text()
    assert f"dim: {describe(head, HEADS)['dim']}" in (folder / "README.md").read_text()
    folder = again.save(tmp_path / "encoder")  # over itself, and again the same
    assert_same(encoder, PosteriorEncoder.load(str(folder)), IMAGES)


def test_a_residual_mlp_comes_back(tmp_path):
    network = ResidualMLP(5, 8, width=6, n_blocks=2)
    encoder = moved(PosteriorEncoder(network, KappaFromNorm(8, 3)))
    assert_same(encoder, PosteriorEncoder.load(encoder.save(tmp_path)), VECTORS)


def test_held_statistics_stay_held(tmp_path):
    encoder = PosteriorEncoder(hold_statistics(CifarResNet(8)), KappaFromNorm(64, 3))
    again = PosteriorEncoder.load(encoder.save(tmp_path)).train()
    before = again.backbone.bn1.running_mean.clone()
    again(IMAGES + 3)
    assert torch.equal(again.backbone.bn1.running_mean, before)
    free = PosteriorEncoder(CifarResNet(8), KappaFromNorm(64, 3))
    again = PosteriorEncoder.load(free.save(tmp_path)).train()
    again(IMAGES + 3)
    assert not torch.equal(again.backbone.bn1.running_mean, before)


def test_any_other_network_is_to_be_passed(tmp_path):
    encoder = moved(PosteriorEncoder(_Net(), KappaFromNorm(8, 3)))
    folder = encoder.save(tmp_path)
    assert "backbone=my_backbone" in (folder / "README.md").read_text()
    with pytest.raises(InvalidInputError, match=r"class '_Net'.*load\(folder, backbone=module\)"):
        PosteriorEncoder.load(folder)
    assert_same(encoder, PosteriorEncoder.load(folder, backbone=_Net()), VECTORS)
    with pytest.raises(InvalidInputError, match="do not fit the model"):
        PosteriorEncoder.load(folder, backbone=nn.Identity())
    other = _Net()
    other.layer = nn.Linear(6, 8)
    with pytest.raises(InvalidInputError, match=r"layer.weight has shape \(8, 5\)"):
        PosteriorEncoder.load(folder, backbone=other)


class _Head(KappaFromNorm):
    dim = 3


def test_a_head_of_ones_own_is_to_be_passed(tmp_path):
    encoder = moved(PosteriorEncoder(ResidualMLP(5, 8), _Head(8, 3)))
    folder = encoder.save(tmp_path)
    with pytest.raises(InvalidInputError, match=r"class '_Head'.*head=module"):
        PosteriorEncoder.load(folder)
    assert_same(encoder, PosteriorEncoder.load(folder, head=_Head(8, 3)), VECTORS)
    nameless = PosteriorEncoder(ResidualMLP(5, 8), nn.Linear(8, 3))
    with pytest.raises(InvalidInputError, match="attribute dim"):
        nameless.save(tmp_path)


def test_a_network_with_other_layers_than_its_class_is_not_described():
    network = CifarResNet(8)
    network.conv1 = nn.Conv2d(3, 16, 5, padding=2, bias=False)
    assert describe(network, BACKBONES) == {"kind": "custom", "class": "CifarResNet"}
    network = CifarResNet(8)
    network.layer1 = nn.Identity()
    assert describe(network, BACKBONES)["kind"] == "custom"
    network = CifarResNet(8)
    hold_statistics(network.layer1)
    assert describe(network, BACKBONES)["kind"] == "custom"
    assert describe(CifarResNet(8).double(), BACKBONES)["kind"] == "custom"


def test_tied_weights_are_saved(tmp_path):
    network = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
    network[1].weight = network[0].weight
    encoder = moved(PosteriorEncoder(network, KappaFromNorm(5, 3)))
    other = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
    other[1].weight = other[0].weight
    assert_same(encoder, PosteriorEncoder.load(encoder.save(tmp_path), other), VECTORS)


def _change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _backbone(**changes):
    network = {"kind": "ResidualMLP", "n_in": 5, "n_out": 8, "width": 6, "n_blocks": 1}
    return lambda f: _change_config(f, backbone=network | changes)


def _head(**changes):
    return lambda f: _change_config(
        f, head={"kind": "KappaFromNorm", "n_in": 8, "dim": 3} | changes
    )


def _card(**changes):
    return lambda f: _change_config(f, card=Card().as_json() | changes)


def _change_weights(change):
    def spoil(folder):
        weights = load_file(folder / "weights.safetensors")
        change(weights)
        save_file(weights, folder / "weights.safetensors")

    return spoil


def _write_weights(content):
    return lambda f: (f / "weights.safetensors").write_bytes(content(f / "weights.safetensors"))


class _Hostile:
    def __reduce__(self):
        return (print, ("code was run",))


def _huge(_):
    """A header that promises 2**60 numbers, and none of them."""
    tensor = {"dtype": "F32", "shape": [2**30, 2**30], "data_offsets": [0, 2**62]}
    header = json.dumps({"head.linear.weight": tensor}).encode()
    return struct.pack("<Q", len(header)) + header


HOSTILE = {
    "a pickle": (_write_weights(lambda _: pickle.dumps(_Hostile())), "cannot be read"),
    "cut off": (_write_weights(lambda path: path.read_bytes()[:-100]), "cannot be read"),
    "a huge shape": (_write_weights(_huge), "cannot be read"),
    "no weights": (_write_weights(lambda _: b""), "cannot be read"),
    "another shape": (
        _change_weights(lambda w: w.update({"head.linear.bias": torch.zeros(4)})),
        r"head.linear.bias has shape \(4,\)",
    ),
    "another type": (
        _change_weights(lambda w: w.update({"head.log_scale": w["head.log_scale"].double()})),
        "float64",
    ),
    "NaN": (_change_weights(lambda w: w["backbone.first.bias"].fill_(torch.nan)), "NaN"),
    "infinity": (_change_weights(lambda w: w["head.log_scale"].fill_(torch.inf)), "infinity"),
    "a layer too few": (_change_weights(lambda w: w.pop("head.log_scale")), "head.log_scale"),
    "a layer too many": (_change_weights(lambda w: w.update({"x": torch.zeros(1)})), "tensors: x"),
    "a giant layer": (_backbone(width=2**40), "from 1 to 65536, but is 1099511627776"),
    "the largest layer": (_backbone(width=65_536), r"has shape \(6,\)"),  # 17 GB, never allocated
    "a giant head": (_head(dim=65_536, n_in=65_536), "has shape"),
    "very many layers": (_backbone(n_blocks=10**6), "from 1 to 1024"),
    "another depth": (lambda f: _change_config(f, backbone=_cifar(depth=21)), "6 n \\+ 2"),
    "no flag": (lambda f: _change_config(f, backbone=_cifar(held_statistics=1)), "wrong type"),
    "a fraction": (_backbone(width=6.0), "must be an integer"),
    "a truth": (_backbone(n_blocks=True), "must be an integer"),
    "a text": (_backbone(width="6"), "must be an integer"),
    "a negative": (_backbone(width=-6), "must be an integer"),
    "an argument too many": (
        _backbone(code="print(1)"),
        "not by n_in, n_out, width, n_blocks, code",
    ),
    "an unknown kind": (_backbone(kind="os.system"), "unknown kind of network 'os.system'"),
    "a kind of the other table": (_backbone(kind="KappaFromNorm"), "unknown kind of network"),
    "a kind that is no text": (_backbone(kind=["ResidualMLP"]), "unknown kind of network"),
    "no description": (lambda f: _change_config(f, head="KappaFromNorm"), "kind and numbers"),
    "no head": (lambda f: _drop(f, "head"), "no entry 'head'"),
    "an infinite rate": (lambda f: _change_config(f, head_rate=float("inf")), "positive number"),
    "no rate": (lambda f: _change_config(f, head_rate=None), "positive number"),
    "a card that is none": (
        lambda f: _change_config(f, card=[]),
        "card of a saved model is damaged",
    ),
    "a card's text": (_card(name=7), "name of a card"),
    "a long text": (_card(notes="a" * 10_000), "at most 2000"),
    "a card's kappa_pos": (_card(kappa_pos=-1), "positive and finite"),
    "a card's coverage": (_card(coverage=[[0.5, 7]]), "coverage of a card"),
    "no coverage": (_card(coverage=[1, 2]), "card of a saved model"),
    "coverage of lists": (_card(coverage=[[[], 0.5]]), "card of a saved model"),
    "another format": (lambda f: _change_config(f, format="aureole-frozen-head-1"), "frozen-head"),
    "deep JSON": (lambda f: (f / "config.json").write_text("[" * 200_000), "not JSON"),
    "no text": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"), "not JSON"),
}


def _cifar(**changes):
    return {"kind": "CifarResNet", "depth": 8, "held_statistics": False} | changes


def _drop(folder, name):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    del config[name]
    path.write_text(json.dumps(config))


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused_and_run_no_code(kind, tmp_path, capsys):
    spoil, message = HOSTILE[kind]
    network = ResidualMLP(5, 8, width=6, n_blocks=1)
    folder = PosteriorEncoder(network, KappaFromNorm(8, 3)).save(tmp_path)
    PosteriorEncoder.load(folder)
    spoil(folder)
    with pytest.raises(InvalidInputError, match=message):
        PosteriorEncoder.load(folder)
    assert "code was run" not in capsys.readouterr().out


def test_every_kind_is_built_as_it_is_described():
    networks = {
        "PosteriorHead": PosteriorHead(6, 3, width=5),
        "KappaFromNorm": KappaFromNorm(6, 3),
        "MixtureHead": MixtureHead(6, 3, n_components=2),
        "CifarResNet": CifarResNet(14),
        "ResidualMLP": ResidualMLP(6, 3, width=7, n_blocks=2),
    }
    assert networks.keys() == HEADS.keys() | BACKBONES.keys()
    for name, network in networks.items():
        table = HEADS if name in HEADS else BACKBONES
        description = describe(network, table)
        assert description["kind"] == name
        assert describe(build(json.loads(json.dumps(description)), table), table) == description
