"""Heads: kappa from the norm, from a network, and mixtures."""

import pytest
import torch

import aureole as au
from aureole.data import PairBatch
from aureole.errors import InvalidInputError
from aureole.models import (
    KappaFromNorm,
    MixtureHead,
    PosteriorEncoder,
    PosteriorHead,
    ResidualMLP,
)
from aureole.models._heads import mixture_from
from aureole.training import FitOptions, Phase, fit

FEATURES = 2 + torch.randn(512, 8, generator=torch.Generator().manual_seed(0))


def test_it_starts_even_and_with_the_kappa_it_was_given():
    head = MixtureHead(8, 4, n_components=3, kappa=7.0)
    q = head(FEATURES)
    assert isinstance(q, au.MixtureVMF)
    assert q.mu.shape == (512, 3, 4)
    torch.testing.assert_close(q.weights, torch.full((512, 3), 1 / 3))
    torch.testing.assert_close(q.kappa, torch.full((512, 3), 7.0))
    head.initialise(FEATURES, kappa=12.0)
    q = head(FEATURES)
    torch.testing.assert_close(q.kappa, torch.full((512, 3), 12.0))
    assert q.mu[:, 0].mean(0).norm() < 0.1  # whitened: before, one direction served all
    near = (q.mu[:, :1] * q.mu[:, 1:]).sum(-1)
    assert 0.8 < near.mean() < 0.999


def test_a_mixture_matches_a_loop():
    raw, log_kappa, scores = torch.randn(5, 3, 4), torch.randn(5, 3), torch.randn(5, 3)
    found = mixture_from(raw, log_kappa, scores)
    for i in range(5):
        for j in range(3):
            direction = raw[i, 0] if j == 0 else raw[i, 0] + 0.3 * raw[i, j]
            torch.testing.assert_close(found.mu[i, j], direction / direction.norm())
            torch.testing.assert_close(found.kappa[i, j], log_kappa[i, j].exp())
            share = scores[i, j].exp() / scores[i].exp().sum()
            torch.testing.assert_close(found.weights[i, j], share)
    assert mixture_from(raw, log_kappa + 500, scores).kappa.max().item() == pytest.approx(1e8)


def test_the_part_mu_is_one_component_and_keeps_every_parameter_in_the_graph():
    head = MixtureHead(8, 4, n_components=2)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    encoder = PosteriorEncoder(torch.nn.Identity(), head)
    encoder.enter("mu")
    q = encoder(FEATURES)
    torch.testing.assert_close(q.mu[:, 0], q.mu[:, 1])
    assert q.kappa.std() < 1e-5
    torch.testing.assert_close(q.weights, torch.full((512, 2), 0.5))
    q.log_prob(torch.eye(4)[0]).sum().backward()
    assert head.location.weight.grad[:4].abs().min() > 0
    assert bool((head.location.weight.grad[4:] == 0).all())
    assert bool((head.certainty.weight.grad == 0).all())
    encoder.enter("joint")
    q = encoder(FEATURES)
    assert not torch.allclose(q.mu[:, 0], q.mu[:, 1])
    with pytest.raises(InvalidInputError, match="'mu' or 'joint'"):
        encoder.enter("kappa")
    with pytest.raises(InvalidInputError, match="jointly"):
        PosteriorEncoder(torch.nn.Identity(), KappaFromNorm(8, 4)).enter("mu")


def test_it_trains_in_phases_and_in_bfloat16():
    encoder = PosteriorEncoder(ResidualMLP(8, 16, width=16), MixtureHead(16, 4, n_components=2))
    things = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))

    def draw(_, rng):
        rows = torch.randint(0, 64, (32,), generator=rng).repeat_interleave(2)
        inputs = things[rows] + 0.2 * torch.randn(64, 8, generator=rng)
        return PairBatch(inputs, torch.arange(64).view(32, 2), 32.0)

    fitted = fit(
        encoder,
        au.ClosedFormInfoNCE(20.0),
        draw,
        phases=[Phase("mu", 5, 3e-3), Phase("joint", 5, 3e-3)],
        options=FitOptions(precision="bf16-mixed"),
    )
    q = fitted.encoder(things)
    assert isinstance(q, au.MixtureVMF)
    assert q.kappa.dtype == torch.float32
    assert bool(torch.isfinite(q.kappa).all())


@pytest.mark.parametrize(("count", "kappa"), [(0, 10.0), (2, 0.0), (2, float("nan"))])
def test_what_is_no_mixture_is_refused(count, kappa):
    with pytest.raises(InvalidInputError, match="n_components must be at least 1"):
        MixtureHead(8, 4, n_components=count, kappa=kappa)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_head_starts_from_a_classifier_of_another_precision_and_place(device):
    classifier = torch.nn.Linear(7, 5, device=device, dtype=torch.float64)
    head = KappaFromNorm(7, 9).to(device)
    head.start_from(classifier)
    assert head.linear.weight.dtype == torch.float32
    assert head.linear.weight.device.type == device
    if device == "cpu":
        features = torch.randn(20, 7)
        logits = classifier(features.double())
        norms = (logits - logits.mean(1, keepdim=True)).norm(dim=1)
        torch.testing.assert_close(head(features).kappa.double(), norms, rtol=1e-4, atol=1e-5)


def test_kappa_is_the_scaled_norm():
    head = KappaFromNorm(6, 3)
    features = torch.randn(50, 6)
    head.initialise(features, kappa=30.0)
    found, embedding = head(features), head.linear(features)
    torch.testing.assert_close(found.mu, embedding / embedding.norm(dim=-1, keepdim=True))
    assert found.kappa.median().item() == pytest.approx(30.0, rel=1e-5)
    torch.testing.assert_close(
        found.kappa / found.kappa[0], embedding.norm(dim=-1) / embedding[0].norm()
    )


@pytest.mark.parametrize("dim", [4, 10, 16])
def test_a_head_starts_from_the_classifiers_logits(dim):
    classifier, head = torch.nn.Linear(6, 10), KappaFromNorm(6, dim)
    head.start_from(classifier)
    features = torch.randn(5, 6)
    logits = classifier(features)
    logits = logits - logits.mean(-1, keepdim=True)
    found = head.linear(features)
    if dim >= 10:
        torch.testing.assert_close(found @ found.T, logits @ logits.T, rtol=1e-4, atol=1e-5)
    else:
        assert bool((found.norm(dim=-1) <= logits.norm(dim=-1) + 1e-5).all())


def test_the_default_head_starts_with_one_kappa_and_any_order_can_be_learned():
    head = PosteriorHead(8, 4)
    q = head(FEATURES)
    torch.testing.assert_close(q.kappa, torch.full((512,), 8.0))
    assert len(head(FEATURES[:2])) == 2
    torch.testing.assert_close(
        PosteriorHead(8, 4, kappa=30.0)(FEATURES).kappa, torch.full((512,), 30.0)
    )
    wanted = FEATURES[:, 0]
    optimiser = torch.optim.Adam(head.parameters(), 1e-2)
    for _ in range(60):
        optimiser.zero_grad()
        (head(FEATURES).kappa.log() - 2 - 0.3 * wanted).square().mean().backward()
        optimiser.step()
    assert au.evaluation.spearman(head.eval()(FEATURES).kappa, wanted) > 0.9


def test_the_default_head_takes_features_of_any_scale_shape_and_type():
    head = PosteriorHead(8, 4).train()
    far = 1e4 + 1e3 * FEATURES
    assert head(far).mu.mean(0).norm() < 0.5  # features far from 0 do not make all mu alike
    assert head(FEATURES.view(16, 32, 8)).shape == (16, 32)
    assert head(FEATURES[0]).shape == ()
    assert head(FEATURES[:1]).shape == (1,)  # a batch of one has no variance of its own
    before = head.norm.running_mean.clone()
    head.eval()(FEATURES)
    assert torch.equal(before, head.norm.running_mean)
    head.half()
    assert head(FEATURES.half()).dtype == head.train()(FEATURES.half()).dtype == torch.float32
    assert head.double()(FEATURES).dtype == torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        assert PosteriorHead(8, 4)(FEATURES.bfloat16()).dtype == torch.float32
    for kappa in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InvalidInputError, match="kappa must be positive"):
            PosteriorHead(8, 4, kappa=kappa)


def test_initialise_holds_the_statistics_of_the_default_head(tmp_path):
    head = PosteriorHead(8, 4)
    head.initialise(FEATURES, kappa=5.0)
    first = head.train()(FEATURES[:3])
    torch.testing.assert_close(head(FEATURES)[:3].mu, first.mu)  # no batch matters any more
    torch.testing.assert_close(first.kappa, torch.full((3,), 5.0))
    assert head(FEATURES).mu.mean(0).norm() < 0.1
    for held in (head, PosteriorHead(8, 4, width=16)):
        encoder = PosteriorEncoder(ResidualMLP(6, 8), held).eval()
        again = PosteriorEncoder.load(encoder.save(tmp_path / str(id(held))))
        x = torch.randn(7, 6)
        assert torch.equal(again(x).kappa, encoder(x).kappa)
        assert torch.equal(again(x).mu, encoder(x).mu)
        assert again.train().head.norm.training == held.train().norm.training
