"""The conformal promise on models that are right and models that are wrong; saved with every engine."""

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as st

import aureole as au
from aureole import sphere
from aureole.caps import ConformalMass, CredibleIndex, SearchOptions
from aureole.errors import AureoleWarning, InvalidInputError
from tests.engines.conftest import assert_exact, brute_force, names, posteriors

DIM, KAPPA_POS = 4, 12.0
CONFORMAL = SearchOptions(kind="predictive", guarantee="conformal")


def pairs(n, seed, *, believed=1.0):
    """Posteriors of n pairs; the model believes in ``believed`` times the true kappa."""
    rng = torch.Generator().manual_seed(seed)
    mu = sphere.normalize(torch.randn(n, DIM, generator=rng))
    kappa, other = (4 + 26 * torch.rand(n, generator=rng) for _ in range(2))
    z = sphere.normalize(au.VonMisesFisher(mu, kappa).sample(generator=rng))
    z = sphere.normalize(au.VonMisesFisher(z, KAPPA_POS).sample(generator=rng))
    partner = sphere.normalize(au.VonMisesFisher(z, other).sample(generator=rng))
    first, second = ((mu, kappa), (partner, other))
    return tuple(au.VonMisesFisher(m, believed * k) for m, k in (first, second))


@pytest.mark.parametrize("believed", [1.0, 20.0, 0.1])
def test_caps_hold_partners_as_promised(believed):
    """On 1,500 pairs, calibrated by 400: an overconfident and a timid model keep the promise too."""
    calibration = ConformalMass.fit(
        *pairs(400, 0, believed=believed), KAPPA_POS, kappa_other=15.0 * believed
    )
    fresh = ConformalMass.fit(
        *pairs(1500, 1, believed=believed), KAPPA_POS, kappa_other=15.0 * believed
    )
    for mass in (0.5, 0.9):
        held = sum(u <= calibration.level(mass) for u in fresh.scores) / 1500
        spread = math.sqrt(mass * (1 - mass) * (1 / 1500 + 1 / 400))
        assert abs(held - mass) < 4 * spread + 1 / 400
        naive = sum(u <= mass for u in fresh.scores) / 1500
        if believed != 1:
            assert abs(naive - mass) > 0.04  # uncalibrated, the promise is broken


@given(st.integers(1, 60), st.floats(0.01, 0.99), st.integers(0, 10**6))
def test_level_is_the_conformal_quantile(n, mass, seed):
    rng = random.Random(seed)
    scores = sorted(rng.random() for _ in range(n))
    rank = math.ceil(round((n + 1) * mass, 9))
    calibration = ConformalMass(scores, 1.0, 1.0)
    if rank > n:
        with pytest.warns(AureoleWarning, match="every item is returned"):
            assert calibration.level(mass) == 1
    else:
        assert calibration.level(mass) == scores[rank - 1]


def test_scores_are_the_masses_of_the_pairs():
    """One pair at a time, in the order of their masses; partners have the median concentration of all of them."""
    first, second = pairs(70, 5)
    calibration = ConformalMass.fit(first, second, KAPPA_POS)
    median = second.kappa.median()
    assert calibration.kappa_other == float(median)
    assert calibration.kappa_pos == KAPPA_POS
    angles = torch.acos((first.mu.double() * second.mu.double()).sum(-1))
    expected = [
        float(
            sphere.predictive_mass(
                angle[None], kappa[None].double(), median.double(), KAPPA_POS, DIM
            )
        )
        for angle, kappa in zip(angles, first.kappa, strict=True)
    ]
    assert calibration.scores == pytest.approx(sorted(expected), abs=1e-5)
    assert ConformalMass.fit(first, second, KAPPA_POS, kappa_other=3.0).kappa_other == 3.0


def test_levels_at_the_ends_and_coverage_with_ties():
    calibration = ConformalMass([0.2, 0.4, 0.4, 0.9], 1.0, 1.0)
    assert calibration.level(0.0) == 0.0
    assert calibration.level(0.2) == 0.2  # ceil(5 * 0.2) = 1, whatever the rounding of 0.2
    assert calibration.level(0.8) == 0.9
    assert [calibration.coverage(mass) for mass in (0.1, 0.2, 0.4, 0.89, 1.0)] == [
        0,
        0.25,
        0.75,
        0.75,
        1,
    ]
    with pytest.warns(AureoleWarning, match="No number of pairs is enough"):
        assert calibration.level(1.0) == 1.0
    with pytest.warns(AureoleWarning, match=r"mass 0.95.* 19 or more"):
        calibration.level(0.95)
    assert calibration.level(0.95, quiet=True) == 1.0
    assert math.isnan(ConformalMass([], 1.0, 1.0).coverage(0.5))
    again = ConformalMass.from_json(calibration.to_json())
    assert again == calibration


def test_too_few_pairs_give_everything(tmp_path):
    gallery, ids = posteriors(50, DIM), names(50)
    index = CredibleIndex.create("faiss://", gallery, ids)
    index.conformal = ConformalMass([0.1, 0.2, 0.3], KAPPA_POS, 10.0)
    query = au.VonMisesFisher(gallery.mu[0], 40.0)
    with pytest.warns(
        AureoleWarning, match=r"3 held-out pairs cannot guarantee mass 0.9.* 9 or more"
    ):
        hits = index.search(query, 0.9, options=CONFORMAL)
    assert len(hits) == 50


def test_calibrations_are_saved_with_the_index(durable):
    where = durable()
    gallery, ids = posteriors(80, DIM), names(80)
    index = CredibleIndex.create(where, gallery, ids)
    assert index.conformal is None
    query = au.VonMisesFisher(gallery.mu[0], 9.0)
    with pytest.raises(InvalidInputError, match="no calibration"):
        index.search(query, options=CONFORMAL)
    calibration = ConformalMass.fit(*pairs(60, 3, believed=5.0), KAPPA_POS)
    index.conformal = calibration
    again = CredibleIndex.open(where)
    assert again.conformal == calibration
    hits = again.search(query, 0.8, options=CONFORMAL)
    cap = {"kappa_pos": KAPPA_POS, "kappa_other": calibration.kappa_other, "kind": "predictive"}
    assert_exact(hits, brute_force(gallery, ids, query, calibration.level(0.8), **cap))
    with pytest.raises(InvalidInputError, match="calibration was made with kappa_pos"):
        again.search(query, 0.8, options=replace(CONFORMAL, kappa_pos=3.0))
    with pytest.raises(InvalidInputError, match="kind='predictive'"):
        SearchOptions(kind="credible", guarantee="conformal")
    again.append(posteriors(2, DIM, seed=8), ["a", "b"])
    assert again.conformal == calibration
    index.close()
    again.close()


def test_hostile_calibrations():
    first, second = pairs(3, 0)
    with pytest.raises(InvalidInputError, match="distinct groups"):
        ConformalMass.fit(first, second, 5.0, groups=["a", "b", "a"])
    for groups in ([1, 2], [1, 2, 3, 4]):
        with pytest.raises(InvalidInputError, match="distinct groups"):
            ConformalMass.fit(first, second, 5.0, groups=groups)
    with pytest.raises(InvalidInputError, match="one partner"):
        ConformalMass.fit(first, second.expand((2, 3)), 5.0)
    with pytest.raises(InvalidInputError, match="one partner"):
        ConformalMass.fit(first.expand((2, 3)), second.expand((2, 3)), 5.0)
    for kappa_pos in (-1.0, math.nan):
        with pytest.raises(InvalidInputError, match="kappa_pos must be at least 0"):
            ConformalMass([0.5], kappa_pos, 5.0)
    assert len(ConformalMass.fit(first, second, 5.0, groups=[1, 2, 3]).scores) == 3
    for kappa_other in (math.inf, math.nan, -1.0):
        with pytest.raises(InvalidInputError, match="kappa_other finite and at least 0"):
            ConformalMass([0.5], 5.0, kappa_other)
    for text in ("", "[]", "{}", '{"format": "aureole-conformal-1"}',
                 '{"format": "aureole-conformal-1", "scores": [2], "kappa_pos": 1, "kappa_other": 1}',
                 '{"format": "aureole-conformal-1", "scores": [0.5, 0.1], "kappa_pos": 1, "kappa_other": 1}',
                 '{"format": "aureole-conformal-1", "scores": [NaN], "kappa_pos": 1, "kappa_other": 1}'):  # fmt: skip
        with pytest.raises(InvalidInputError):
            ConformalMass.from_json(text)
