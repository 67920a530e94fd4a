"""Mixtures of vMFs, and EM."""

import itertools

import pytest
import torch

import aureole as au
from aureole import sphere
from aureole.errors import ConvergenceWarning, InvalidInputError


def seeded():
    return torch.Generator().manual_seed(2)


def truth():
    mu = sphere.normalize(torch.tensor([[1.0, 0, 0, 0], [-1, 1, 0, 0], [0, 0, 1, 1]]).double())
    weights, kappa = torch.tensor([0.2, 0.3, 0.5]).double(), torch.tensor([80.0, 20, 200]).double()
    return au.MixtureVMF(weights, mu, kappa)


def test_log_prob_is_the_log_of_the_weighted_sum():
    mixture = truth()
    z = sphere.normalize(torch.randn(20, 4, dtype=torch.float64))
    density = sum(
        w * au.VonMisesFisher(m, k).log_prob(z).exp()
        for w, m, k in zip(mixture.weights, mixture.mu, mixture.kappa, strict=True)
    )
    assert torch.allclose(mixture.log_prob(z).exp(), density, rtol=1e-12)


@pytest.mark.long
def test_shapes_moments_and_expand():
    mixture = truth()
    assert (mixture.batch_shape, mixture.event_shape, mixture.dim) == ((), (4,), 4)
    z = mixture.sample((200_000,))
    assert torch.allclose(z.mean(0), mixture.mean, atol=5e-3)
    assert torch.allclose(z.var(0), mixture.variance, atol=5e-3)
    wide = mixture.expand((2, 3))
    assert type(wide) is au.MixtureVMF
    assert wide.log_prob(z[:6].reshape(2, 3, 4)).shape == (2, 3)
    assert wide.mode.shape == (2, 3, 4)
    assert torch.equal(mixture.mode, mixture.mu[2])
    batch = au.MixtureVMF(torch.ones(5, 2), sphere.normalize(torch.randn(5, 2, 3)), 7.0)
    assert batch.sample((4,)).shape == (4, 5, 3)
    assert torch.allclose(batch.weights, torch.full((5, 2), 0.5))


def test_gradients_reach_weights_mu_and_kappa():
    mixture = truth()
    z = mixture.sample((10,))

    def log_prob(weights, mu, kappa):
        return au.MixtureVMF(weights, mu, kappa, validate_args=False).log_prob(z)

    inputs = [x.detach().requires_grad_() for x in (mixture.weights, mixture.mu, mixture.kappa)]
    assert torch.autograd.gradcheck(log_prob, inputs)


def test_em_recovers_the_mixture():
    mixture = truth()
    rng = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    z = mixture.sample((20_000,))
    found = au.MixtureVMF.fit(z, 3, generator=rng)
    order = (mixture.mu @ found.mu.T).argmax(-1)
    assert sorted(order.tolist()) == [0, 1, 2]
    assert torch.allclose(found.weights[order], mixture.weights, atol=0.02)
    assert torch.allclose(found.kappa[order], mixture.kappa, rtol=0.06)
    assert found.log_prob(z).mean() >= mixture.log_prob(z).mean()


def test_em_never_lowers_the_likelihood():
    vague = au.MixtureVMF(torch.ones(3).double(), truth().mu, 3.0)  # heavy overlap: many steps
    z = vague.sample((500,))
    values = []
    for steps in (1, 2, 3, 5, 8):
        with pytest.warns(ConvergenceWarning, match=f"max_steps={steps}"):
            found = au.MixtureVMF.fit(
                z, 3, n_starts=1, max_steps=steps, tolerance=-1.0, generator=seeded()
            )
        values.append(found.log_prob(z).mean().item())
    assert all(b >= a - 1e-12 for a, b in itertools.pairwise(values))
    assert values[-1] > values[0]


def test_em_on_duplicates_stays_finite():
    z = torch.eye(3, dtype=torch.float64).repeat(4, 1)
    found = au.MixtureVMF.fit(z, 3, max_kappa=1e5, generator=torch.Generator().manual_seed(0))
    assert torch.isfinite(found.kappa).all()
    assert found.kappa.max() <= 1e5
    assert torch.isfinite(found.log_prob(z)).all()


@pytest.mark.parametrize(
    "arguments",
    [
        (torch.ones(2), torch.eye(3), torch.ones(3)),
        (torch.ones(2), torch.eye(3)[0], torch.tensor(1.0)),
    ],
)
def test_components_must_agree(arguments):
    with pytest.raises(InvalidInputError, match="number of components"):
        au.MixtureVMF(*arguments)


def test_too_many_components_for_the_samples():
    with pytest.raises(InvalidInputError, match="n_components = 9"):
        au.MixtureVMF.fit(torch.eye(3), 9)


@pytest.mark.parametrize("given", [{"n_starts": 0}, {"max_steps": 0}, {"n_starts": -1}])
def test_no_starts_or_steps_are_refused_as_such(given):
    with pytest.raises(InvalidInputError, match="one start and one step or more"):
        au.MixtureVMF.fit(torch.eye(3), 2, **given)
