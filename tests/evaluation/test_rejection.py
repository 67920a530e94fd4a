"""Rejection against the mean over all orders of ties, scipy's Mann-Whitney, and identities."""

import math
from fractions import Fraction
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.stats import mannwhitneyu

import aureole as au
from aureole._rank_correlation import average_ranks
from aureole.errors import InvalidInputError
from aureole.evaluation import aurc, r_auroc, rejection_curve
from aureole.evaluation._rejection import (
    area_under_rejection,
    check_outcomes,
    kappa_rejection,
    oracle_area,
)

FIGURES = (area_under_rejection, aurc, r_auroc)
items = st.lists(st.tuples(st.integers(-2, 2), st.booleans()), min_size=1, max_size=6)
many = st.lists(st.tuples(st.integers(-9, 9), st.booleans()), min_size=1, max_size=60)


def tensors(drawn):
    uncertainty, correct = zip(*drawn, strict=True)
    return torch.tensor(uncertainty, dtype=torch.float64), torch.tensor(correct)


def orders(drawn):
    """The correctness of the items in every order that the uncertainty allows, as often as it occurs."""
    for order in permutations(drawn):
        if all(a[0] <= b[0] for a, b in pairwise(order)):
            yield [int(correct) for _, correct in order]


def mean_over_orders(drawn, figure):
    found = [figure(order) for order in orders(drawn)]
    return float(sum(found, Fraction(0)) / len(found))


def kept_share(order, k):
    return Fraction(sum(order[:k]), k)


@settings(max_examples=60)
@given(items)
def test_areas_are_means_over_all_orders_of_ties(drawn):
    uncertainty, correct = tensors(drawn)
    n = len(drawn)

    def area(order):
        return sum(kept_share(order, k) for k in range(1, n + 1)) / n

    def risk(order):
        return sum(1 - kept_share(order, k) for k in range(1, n + 1)) / n

    for figure, slow in ((area_under_rejection, area), (aurc, risk)):
        assert figure(uncertainty, correct) == pytest.approx(
            mean_over_orders(drawn, slow), abs=1e-12
        )
    rejected, kept = rejection_curve(uncertainty, correct, points=n + 1)
    assert rejected.tolist() == pytest.approx([j / n for j in range(n + 1)])
    for k in range(1, n + 1):
        wanted = mean_over_orders(drawn, lambda order, k=k: kept_share(order, k))
        assert kept[n - k].item() == pytest.approx(wanted, abs=1e-12)
    first = correct[uncertainty == uncertainty.min()]
    assert kept[-1].item() == pytest.approx(first.double().mean().item())


@given(many)
def test_figures_agree_with_each_other(drawn):
    uncertainty, correct = tensors(drawn)
    n, right = len(drawn), correct.double().mean().item()
    area, auroc = area_under_rejection(uncertainty, correct), r_auroc(uncertainty, correct)
    assert aurc(uncertainty, correct) == pytest.approx(1 - area, abs=1e-12)
    assert area <= oracle_area(correct) + 1e-12
    constant = torch.zeros(n)
    assert area_under_rejection(constant, correct) == pytest.approx(right)
    if right in (0.0, 1.0):
        assert math.isnan(auroc)
    else:
        assert r_auroc(constant, correct) == 0.5
        assert r_auroc(-uncertainty, correct) == pytest.approx(1 - auroc)


@given(many, st.randoms(use_true_random=False))
def test_only_the_order_of_uncertainties_matters(drawn, random):
    uncertainty, correct = tensors(drawn)
    shuffled, shuffled_correct = tensors(random.sample(drawn, len(drawn)))
    for figure in FIGURES:
        wanted = pytest.approx(figure(uncertainty, correct), abs=1e-12, nan_ok=True)
        assert figure(uncertainty.exp(), correct) == wanted
        assert figure(average_ranks(uncertainty), correct) == wanted
        assert figure(torch.where(uncertainty == 9, math.inf, uncertainty), correct) == wanted
        assert figure(shuffled, shuffled_correct) == wanted
    curve = rejection_curve(uncertainty, correct, points=17)[1]
    assert torch.allclose(
        rejection_curve(shuffled, shuffled_correct, points=17)[1], curve, atol=1e-12
    )


@pytest.mark.parametrize("decimals", [0, 1, 8])
def test_auroc_matches_mann_whitney(decimals):
    correct = torch.rand(2000) < 0.7
    uncertainty = (torch.randn(2000, dtype=torch.float64) + ~correct).round(decimals=decimals)
    wrong, right = (uncertainty[mask].numpy() for mask in (~correct, correct))
    wanted = mannwhitneyu(wrong, right).statistic / (len(wrong) * len(right))
    assert r_auroc(uncertainty, correct) == pytest.approx(wanted, abs=1e-12)


def test_oracle_has_the_best_order():
    correct = torch.rand(300) < 0.5
    c = int(correct.sum())
    wanted = sum(min(k, c) / k for k in range(1, 301)) / 300
    assert oracle_area(correct) == pytest.approx(wanted, abs=1e-12)
    best = torch.rand(300) + (~correct).float()
    assert area_under_rejection(best, correct) == pytest.approx(wanted, abs=1e-12)
    assert r_auroc(best, correct) == 1.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_curve_between_items_is_straight_in_the_number_of_correct_ones(dtype):
    uncertainty = torch.rand(40).to(dtype)  # with ties in bfloat16
    correct = torch.rand(40) < 0.6
    rejected, kept = rejection_curve(uncertainty, correct)
    assert len(rejected) == len(kept) == 101
    assert (rejected[0], rejected[-1]) == (0, 1)
    assert kept[0].item() == pytest.approx(correct.double().mean().item())
    ends, counts = [0], [0]
    for threshold in uncertainty.unique().tolist():
        ends.append(int((uncertainty <= threshold).sum()))
        counts.append(int((correct & (uncertainty <= threshold)).sum()))
    k = 40 * (1 - rejected[:-1].numpy())
    assert np.allclose(kept[:-1].numpy(), np.interp(k, ends, counts) / k, atol=1e-12)


def test_one_item_has_a_curve_but_no_pair():
    one = torch.tensor([3.0])
    for right in (True, False):
        correct = torch.tensor([right])
        assert area_under_rejection(one, correct) == oracle_area(correct) == float(right)
        assert aurc(one, correct) == float(not right)
        assert math.isnan(r_auroc(one, correct))
        assert rejection_curve(one, correct, points=2)[1].tolist() == [float(right)] * 2


@pytest.mark.parametrize("figure", [*FIGURES, rejection_curve])
def test_hostile_input_is_refused(figure):
    uncertainty, correct = torch.rand(4), torch.tensor([True, False, True, True])
    with pytest.raises(InvalidInputError, match="at least 1"):
        figure(uncertainty[:0], correct[:0])
    with pytest.raises(InvalidInputError, match=r"shapes \(4,\) and \(3,\)"):
        figure(uncertainty, correct[:3])
    with pytest.raises(InvalidInputError, match=r"shapes \(4,\) and \(4, 1\)"):
        figure(uncertainty, correct.unsqueeze(1))
    uncertainty[2] = math.nan
    with pytest.raises(InvalidInputError, match=r"uncertainty\[2\] is NaN.*1 of 4"):
        figure(uncertainty, correct)


def test_refusals_of_single_functions():
    with pytest.raises(InvalidInputError, match="at least 1"):
        oracle_area(torch.zeros(0, dtype=torch.bool))
    with pytest.raises(InvalidInputError, match="at least 2, but is 1"):
        rejection_curve(torch.rand(4), torch.ones(4, dtype=torch.bool), points=1)
    with pytest.raises(InvalidInputError, match="must be boolean, but is"):
        check_outcomes(torch.rand(4), torch.ones(4, dtype=torch.long))


def gallery(n=20):
    rng = torch.Generator().manual_seed(5)
    mu = au.sphere.normalize(torch.randn(n, 3, generator=rng, dtype=torch.float64))
    kappa = torch.randperm(n, generator=rng).double() + 0.5
    labels = [("a", "b", None)[i] for i in torch.randint(3, (n,), generator=rng).tolist()]
    return au.VonMisesFisher(mu, kappa), labels


def right(q, labels):
    """Whether each item's nearest other has its label."""
    found = []
    for i in range(len(labels)):
        others = [j for j in range(len(labels)) if j != i]
        nearest = max(others, key=lambda j: float(q.mu[i] @ q.mu[j]))
        found.append(labels[nearest] == labels[i])
    return found


def test_the_curve_by_kappa_is_the_loop_over_the_most_certain():
    q, labels = gallery()
    correct = right(q, labels)
    assert 0 < sum(correct) < 20
    order = sorted(range(20), key=lambda i: -q.kappa[i].item())
    curve = kappa_rejection(q, labels, points=21)
    assert len(curve) == 20  # nothing is kept of the last point
    for kept, point in zip(range(20, 0, -1), curve, strict=True):
        assert point["kept"] == pytest.approx(kept / 20)
        assert point["threshold"] == q.kappa[order[kept - 1]].item()
        assert point["score"] == pytest.approx(sum(correct[i] for i in order[:kept]) / kept)
        assert sum((q.kappa >= point["threshold"]).tolist()) == kept


def test_items_of_one_kappa_have_the_mean_over_their_orders():
    q, labels = gallery()
    kappa = (q.kappa / 5).floor()  # four blocks of five
    correct = torch.tensor(right(q, labels)).double()
    curve = kappa_rejection(au.VonMisesFisher(q.mu, kappa), labels, points=21)
    for kept, point in zip(range(20, 0, -1), curve, strict=True):
        edge = kappa.sort(descending=True).values[kept - 1]
        assert point["threshold"] == edge.item()
        above, block = kappa > edge, kappa == edge
        share = (kept - int(above.sum())) / int(block.sum())
        wanted = (correct[above].sum() + share * correct[block].sum()) / kept
        assert point["score"] == pytest.approx(wanted.item())
