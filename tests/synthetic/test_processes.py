"""The processes: pairs against the law they promise."""

import math

import pytest
import torch

import aureole as au
from aureole.data import poisson_pairs
from aureole.errors import InvalidInputError
from aureole.synthetic import (
    ControlledProcess,
    draw_generator,
)


@pytest.fixture(scope="module")
def generator():
    return draw_generator(5, (8.0, 32.0), kind="whitened", seed=4)


def test_generators_span_the_range_and_do_not_collapse(generator):
    mu, kappa = generator(generator.inputs(4000, torch.Generator().manual_seed(1)))
    assert 6.0 < kappa.min() < 10.0
    assert 24.0 < kappa.max() < 40.0
    assert torch.linalg.eigvalsh(mu.T @ mu / len(mu))[0] > 0.3 / 5
    again = draw_generator(5, (8.0, 32.0), kind="whitened", seed=4)
    x = generator.inputs(5)
    assert torch.equal(again(x)[0], generator(x)[0])
    points = draw_generator(5, (math.inf, math.inf), kind="whitened", seed=4)
    assert bool(torch.isinf(points(x)[1]).all())
    with pytest.raises(InvalidInputError, match="kappa_range"):
        draw_generator(5, (8.0, math.inf), seed=4)


@pytest.mark.slow
def test_the_papers_generator_is_spread_but_has_a_weak_direction():
    found = draw_generator(10, (16.0, 32.0), seed=4)
    mu, _ = found(found.inputs(2000, torch.Generator().manual_seed(0)))
    assert (mu @ mu.T).min() < 0.5
    assert torch.linalg.eigvalsh(mu.T @ mu / 2000)[0] < 1e-3


def test_vmf_intensity_is_expected_positivity(generator):
    process = ControlledProcess(generator, kappa_pos=12.0)
    x = process.inputs(20)
    mu, kappa = generator(x)
    q = au.VonMisesFisher(mu.unsqueeze(1), kappa.unsqueeze(1))
    wanted = au.expected_positivity(q, au.VonMisesFisher(mu, kappa), 12.0)
    assert torch.allclose(process.intensity(x, x), wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("reference", [0, 256])
def test_pairs_of_batches_follow_their_law(generator, reference):
    """The share of pairs by cosine, against the intensity itself, over many batches of the same process."""
    process = ControlledProcess(generator, kappa_pos=6.0, reference=reference)
    rng = torch.Generator().manual_seed(0)
    edges = torch.linspace(-1, 1, 9)
    seen, wanted, total = torch.zeros(8), torch.zeros(8), 0
    for _ in range(60):
        batch = process.batch(128, 2000.0, generator=rng)
        mu, _ = generator(batch.inputs)
        cosine = mu @ mu.T
        i, j = batch.pairs.T
        assert bool((i != j).all())
        seen += torch.histogram(cosine[i, j], edges).hist
        rate = process.intensity(batch.inputs, batch.inputs)
        if reference:
            rate = rate / process._anchor_density(batch.inputs).unsqueeze(1)
        rate = (rate * 2000 / process._mean_intensity / (128 * 127)).fill_diagonal_(0)
        wanted += torch.histogram(cosine, edges, weight=rate).hist
        total += len(batch.pairs)
    assert bool(((seen - wanted).abs() < 5 * wanted.sqrt() + 1).all())
    assert total / 60 == pytest.approx(2000, rel=0.1)


@pytest.mark.parametrize("reference", [0, 256])
def test_self_pairs_have_the_rate_of_pairs_times_their_weight(generator, reference):
    """The number of self-pairs by kappa, against pairs of different inputs at the same constant."""
    process = ControlledProcess(generator, kappa_pos=6.0, reference=reference)
    rng = torch.Generator().manual_seed(0)
    edges = torch.tensor([0.0, 12.0, 16.0, 22.0, 100.0])
    seen, wanted, total, expected = torch.zeros(4), torch.zeros(4), 0, 0.0
    for _ in range(40):
        batch = process.batch(64, 500.0, self_weight=3.0, generator=rng)
        _, kappa = generator(batch.inputs)
        i, j = batch.pairs.T
        seen += torch.histogram(kappa[i[i == j]], edges).hist
        rate = process.intensity(batch.inputs, batch.inputs) / process._mean_intensity
        if reference:
            rate = rate / process._anchor_density(batch.inputs).unsqueeze(1)
        own = 3.0 * rate.diagonal() * 500 / (64 * 63)
        wanted += torch.histogram(kappa, edges, weight=own).hist
        total += len(batch.pairs)
        expected += batch.expected_pairs
        assert batch.self_weight == 3.0
    assert bool(((seen - wanted).abs() < 5 * wanted.sqrt() + 1).all())
    assert bool((wanted > 20).all())
    assert total == pytest.approx(expected, rel=0.1)


def test_half_of_the_pairs_are_self_pairs_at_the_balanced_weight(generator):
    process = ControlledProcess(generator, kappa_pos=6.0)
    weight = process.balanced_self_weight(128)
    rng = torch.Generator().manual_seed(0)
    batches = [process.batch(128, 1000.0, self_weight=weight, generator=rng) for _ in range(10)]
    pairs = torch.cat([batch.pairs for batch in batches])
    assert (pairs[:, 0] == pairs[:, 1]).float().mean().item() == pytest.approx(0.5, abs=0.03)
    assert batches[0].expected_pairs == pytest.approx(2000.0)


def test_agreement_is_the_share_of_tests_that_match(generator):
    process = ControlledProcess(generator, kappa_pos=6.0)
    batch = process.batch(50, 100.0, trials=4000, generator=torch.Generator().manual_seed(0))
    assert batch.agreement is not None
    rng = torch.Generator().manual_seed(1)
    first, second = (process.latents(batch.inputs, 4000, generator=rng) for _ in range(2))
    matches = torch.exp(6.0 * ((first * second).sum(-1) - 1))
    error = torch.sqrt(0.25 / 4000 + matches.var(0) / 4000)
    assert bool(((batch.agreement - matches.mean(0)).abs() < 4.5 * error).all())
    certain = draw_generator(5, (math.inf, math.inf), kind="whitened", seed=4)
    process = ControlledProcess(certain, kappa_pos=6.0)
    sure = process.batch(8, 20.0, trials=5).agreement
    assert sure is not None
    assert bool((sure == 1).all())


@pytest.mark.parametrize("weight", [-1.0, math.inf, math.nan])
def test_a_self_weight_must_be_a_weight(generator, weight):
    with pytest.raises(InvalidInputError, match="self_weight must be at least 0"):
        ControlledProcess(generator).batch(16, 20.0, self_weight=weight)


def test_trials_need_the_exact_rule(generator):
    with pytest.raises(InvalidInputError, match="trials must be 0 or more"):
        ControlledProcess(generator).batch(16, 20.0, trials=-1)
    with pytest.raises(InvalidInputError, match="trials need rule='exact'"):
        ControlledProcess(generator, rule="paper").batch(16, 20.0, trials=3)


@pytest.mark.parametrize("rule", ["exact", "paper"])
def test_separate_pairs_follow_the_same_law(generator, rule):
    process = ControlledProcess(generator, kappa_pos=6.0, rule=rule)
    rng = torch.Generator().manual_seed(0)
    x, partner = process.pairs(4000, rng)
    cosine = (generator(x)[0] * generator(partner)[0]).sum(-1)
    batches = [process.batch(256, 2000.0, generator=rng) for _ in range(4)]
    among = torch.cat([(generator(b.inputs)[0][b.pairs]).prod(1).sum(-1) for b in batches])
    # the exact rule of pairs() sees all anchors equally often, that of batches in proportion to their density
    assert cosine.mean().item() == pytest.approx(among.mean().item(), abs=0.06)
    assert cosine.mean() > 0.2


def test_the_papers_rule_saturates(generator):
    exact, paper = (
        ControlledProcess(generator, kappa_pos=20.0, rule=r) for r in ("exact", "paper")
    )
    cosine = torch.tensor([0.0, 0.9, 1.0])
    ratio = paper._match(cosine) / exact._match(cosine)
    assert ratio[0] == pytest.approx(1.0, rel=0.02)
    assert ratio[2] < 0.01
    assert paper._match(cosine)[2] == pytest.approx(1.0, abs=0.01)


def test_poisson_pairs_have_the_rates():
    rate = torch.tensor([[9.0, 1.0, 0.0], [0.5, 9.0, 2.0], [1.5, 1.0, 9.0]])
    pairs = poisson_pairs(rate, 60_000.0, generator=torch.Generator().manual_seed(0))
    counts = torch.zeros(3, 3).index_put(
        (pairs[:, 0], pairs[:, 1]), torch.ones(len(pairs)), accumulate=True
    )
    wanted = (rate * 10_000).fill_diagonal_(0)
    assert bool(((counts - wanted).abs() <= 5 * wanted.sqrt()).all())


def test_networks_of_deficient_rank_are_drawn_again():
    """The first network of this seed cannot be whitened."""
    generator = draw_generator(16, (16.0, 32.0), kind="whitened", seed=4)
    outputs = generator.location(generator.inputs(10_000))
    assert torch.linalg.eigvalsh(torch.cov(outputs.T))[0] > 0.05


@pytest.mark.parametrize("kind", ["paper", "whitened"])
def test_a_shared_truth_spans_its_range_with_a_head_on_mus_network(kind, monkeypatch):
    monkeypatch.setattr("aureole.synthetic._processes._SHAPING_STEPS", 20)
    generator = draw_generator(5, (8.0, 32.0), kind=kind, shared=True, seed=4)
    x = generator.inputs(4000)
    _, kappa = generator(x)
    assert 8.0 < kappa.quantile(0.02) < 14.0
    assert 18.0 < kappa.quantile(0.98) < 32.0
    raw = torch.nn.functional.softplus(generator.certainty(generator.location(x))).squeeze(-1)
    share = (raw - generator.low) * generator.gain
    torch.testing.assert_close(kappa, 8.0 * 4.0**share)
