"""Diagnosis of posteriors on pairs: numbers against a slow loop, and a warning for each thing that goes wrong."""

import math
import re
import warnings

import numpy as np
import pytest
import torch

import aureole as au
from aureole.errors import AureoleWarning, InvalidInputError
from aureole.evaluation import predictive_coverage, spearman
from aureole.evaluation._calibration import CAP_MASSES
from aureole.sphere import normalize

KAPPA_POS = 40.0
pytestmark = pytest.mark.slow  # each diagnosis builds tables for several ranges of kappa


def pairs_of(n=300, dim=8, seed=0):
    """(Posteriors [2n] with the right kappa, their pairs)."""
    rng = torch.Generator().manual_seed(seed)
    latent = normalize(torch.randn(n, dim, generator=rng))
    other = au.VonMisesFisher(latent, KAPPA_POS).sample(generator=rng)
    kappa = torch.exp(math.log(3) + 4 * torch.rand(2 * n, generator=rng))
    mu = au.VonMisesFisher(torch.cat([latent, other]), kappa).sample(generator=rng)
    return au.VonMisesFisher(mu, kappa), torch.stack([torch.arange(n), torch.arange(n) + n], 1)


def test_numbers_match_a_slow_computation():
    posterior, pairs = pairs_of(40)
    found = au.diagnose(posterior, pairs, kappa_pos=KAPPA_POS)
    both = torch.cat([pairs, pairs.flip(1)])

    def losses(q):
        value = au.distributions.log_expected_positivity(
            q[:, None], q[None], KAPPA_POS
        ).fill_diagonal_(-math.inf)
        return (torch.logsumexp(value, 1)[both[:, 0]] - value[both[:, 0], both[:, 1]]).double()

    own = losses(posterior)
    factors, flat = (0.5, 1, 2), posterior.kappa.median()
    single, scaled = (
        min((losses(au.VonMisesFisher(posterior.mu, f * kappa)) for f in factors), key=torch.mean)
        for kappa in (flat, posterior.kappa)
    )
    assert found.information == pytest.approx(math.log(79) - own.mean().item(), abs=1e-4)
    assert found.gain == pytest.approx((single - scaled).mean().item(), abs=1e-4)
    k1, k2 = posterior.kappa[both].double().T
    assert found.agreement == pytest.approx(spearman(k1 * k2 / (k1 + k2), -single), abs=0.01)
    left, right = posterior[pairs[:, 0]], posterior[pairs[:, 1]]
    assert found.coverage == predictive_coverage(
        left, right, kappa_pos=KAPPA_POS, masses=CAP_MASSES
    )
    assert (found.n_pairs, found.kappa_pos, found.problems) == (40, KAPPA_POS, ())
    assert found.gain > 0.1
    assert found.agreement > 0.3
    text = repr(found)
    assert "40, kappa_pos 40" in text
    assert "90%:" in text
    assert len(text.splitlines()) == 7


def test_pairs_may_be_labels_lists_or_arrays():
    posterior, pairs = pairs_of()
    labels = torch.arange(300).repeat(2)
    results = [
        au.diagnose(posterior, given, kappa_pos=KAPPA_POS)
        for given in (
            pairs,
            pairs.numpy(),
            pairs.tolist(),
            labels,
            labels.numpy(),
            [f"g{i:03}" for i in labels],
        )
    ]
    assert {round(found.information, 3) for found in results} == {round(results[0].information, 3)}


def test_large_batches_cost_no_more_and_kappa_pos_is_found():
    posterior, pairs = pairs_of(3000)
    found = au.diagnose(posterior, pairs)
    assert found.n_pairs <= 512
    assert found.kappa_pos in (4.0, 8.0, 16.0, 32.0, 64.0)
    assert found.information > 1.5
    again = au.diagnose(posterior.to(torch.float64), pairs)
    assert again.information == pytest.approx(found.information, abs=1e-3)


def problems_of(posterior, pairs, match):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = au.diagnose(posterior, pairs, kappa_pos=KAPPA_POS)
    assert [str(w.message) for w in seen] == list(found.problems)
    assert all(issubclass(w.category, AureoleWarning) for w in seen)
    assert any(re.search(match, problem) for problem in found.problems), found.problems
    assert all(problem in repr(found) for problem in found.problems)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (
            au.diagnose(posterior, pairs, kappa_pos=KAPPA_POS, warn=False).problems
            == found.problems
        )
    return found


def test_what_is_wrong_is_said():
    posterior, pairs = pairs_of()
    mu, kappa = posterior.mu, posterior.kappa
    reverse = kappa.sort().values[kappa.argsort(descending=True).argsort()]
    found = problems_of(
        au.VonMisesFisher(mu, reverse), pairs, "kappa carries negative information.*PosteriorHead"
    )
    assert found.gain < 0
    assert found.agreement < 0
    problems_of(au.VonMisesFisher(mu, 20.0), pairs, "kappa is constant")
    problems_of(au.VonMisesFisher(mu, 1e-3 * kappa), pairs, "collapsed to 0")
    problems_of(au.VonMisesFisher(mu, 1e9 * kappa), pairs, "collapsed to infinity.*kappa_pos")
    spot = normalize(mu[:1] + 1e-3 * torch.randn_like(mu))
    problems_of(au.VonMisesFisher(spot, kappa), pairs, "mu has collapsed")
    wrong = torch.stack([pairs[:, 0], pairs[:, 1].roll(1)], 1)
    found = problems_of(posterior, wrong, "posteriors carry negative information.*pairs match")
    assert found.information < 0


@pytest.mark.parametrize("kappa", [0.0, math.inf])
def test_extreme_kappas_give_numbers(kappa):
    posterior, pairs = pairs_of(50)
    found = au.diagnose(
        au.VonMisesFisher(posterior.mu, kappa), pairs, kappa_pos=KAPPA_POS, warn=False
    )
    assert math.isfinite(found.information)
    assert found.problems


def test_without_pairs_there_are_statistics_only():
    posterior = au.VonMisesFisher(torch.eye(4), torch.tensor([1.0, 2.0, 4.0, 8.0]))
    found = au.diagnose(posterior)
    assert found.mean_length == 0.5
    assert found.kappa_median == 3
    assert math.isnan(found.information)
    assert "information" not in repr(found)
    mixture = au.MixtureVMF(torch.ones(4, 2), torch.eye(4).view(2, 2, 4).repeat(2, 1, 1), 3.0)
    assert au.diagnose(mixture).problems


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, p: (q[0], p), "batch shape"),
        (lambda q, p: (q[:, None], p), "batch shape"),
        (lambda q, p: (q, np.arange(7)), "one group label"),
        (lambda q, p: (q, p + 500), "row"),
        (lambda q, p: (q, p[:0]), "pair"),
        (lambda q, p: (q, p[:1]), "negatives"),
        (lambda q, p: (q, np.arange(len(q))), "no two"),
        (lambda q, p: (q, [[1, 1]]), "itself"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    with pytest.raises(InvalidInputError, match=message):
        au.diagnose(*change(*pairs_of()))
