"""The head of mixtures: its start, its parts, and that it trains."""

import pytest
import torch

import aureole as au
from aureole.data import PairBatch
from aureole.errors import InvalidInputError
from aureole.models import KappaFromNorm, MixtureHead, PosteriorEncoder, ResidualMLP
from aureole.models._heads import mixture_from
from aureole.training import Phase, fit

FEATURES = 2 + torch.randn(512, 8, generator=torch.Generator().manual_seed(0))


def test_it_starts_even_and_with_the_kappa_it_was_given():
    head = MixtureHead(8, 4, 3, kappa=7.0)
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
    head = MixtureHead(8, 4, 2)
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


def test_one_step_of_the_mixture_loss_moves_everything_and_lowers_it():
    head, loss = MixtureHead(8, 4, 2), au.ClosedFormInfoNCE(20.0)
    head.initialise(FEATURES, kappa=10.0)
    pairs = torch.arange(32).view(16, 2)
    views = FEATURES[:16].repeat_interleave(2, 0) + 0.1 * torch.randn(32, 8)
    optimiser = torch.optim.SGD(head.parameters(), 0.05)
    before = loss.among(head(views), pairs)
    before.backward()
    assert all(p.grad.abs().max() > 0 for p in head.parameters())
    optimiser.step()
    assert loss.among(head(views), pairs) < before


def test_it_trains_in_phases_and_in_bfloat16():
    encoder = PosteriorEncoder(ResidualMLP(8, 16, width=16), MixtureHead(16, 4, 2))
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
        precision="bf16-mixed",
    )
    q = fitted.encoder(things)
    assert isinstance(q, au.MixtureVMF)
    assert q.kappa.dtype == torch.float32
    assert bool(torch.isfinite(q.kappa).all())


@pytest.mark.parametrize(("count", "kappa"), [(0, 10.0), (2, 0.0), (2, float("nan"))])
def test_what_is_no_mixture_is_refused(count, kappa):
    with pytest.raises(InvalidInputError, match="at least one component"):
        MixtureHead(8, 4, count, kappa=kappa)
