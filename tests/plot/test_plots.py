"""Plots: the data of their lines against the functions that compute it, and slow oracles."""

import math

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")

import matplotlib as mpl
from matplotlib.figure import Figure

import aureole as au
from aureole.errors import InvalidInputError
from aureole.plot import LIGHT, canvas, kappa_colours


@pytest.fixture
def ax():
    return Figure().subplots()


def posteriors(n, dim=8, seed=0):
    rng = torch.Generator().manual_seed(seed)
    mu = au.sphere.normalize(torch.randn(n, dim, generator=rng, dtype=torch.float64))
    return au.VonMisesFisher(mu, torch.rand(n, generator=rng, dtype=torch.float64) * 90 + 10)


def lines(ax):
    return {line.get_label(): line.get_xydata() for line in ax.lines}


def test_rejection_is_a_slow_loop(ax):
    q = posteriors(400)
    correct = torch.rand(400, generator=torch.Generator().manual_seed(1)) < q.kappa / 100
    assert au.plot.rejection(q, correct, ax=ax) is ax
    drawn = lines(ax)["by κ"]
    order = sorted(range(400), key=lambda i: -float(q.kappa[i]))
    right = [bool(correct[i]) for i in order]
    for share, kept in drawn[:75:5]:
        k = round(400 * (1 - share))
        assert kept == pytest.approx(sum(right[:k]) / k)
    best = dict(map(tuple, lines(ax)["best order"].round(9)))
    assert best[0.5] == pytest.approx(min(1, sum(right) / 200))
    assert np.isnan(drawn[-1, 1])  # fewer than 30 items
    assert ax.get_xlabel() == "share of items rejected"


def test_coverage_is_that_of_evaluation(ax):
    q, p = posteriors(300), posteriors(300, seed=3)
    near = au.VonMisesFisher(q.sample(generator=torch.Generator().manual_seed(2)), p.kappa)
    ax = au.plot.coverage(q, near, kappa_pos=30.0, masses=(0.2, 0.7), ax=ax)
    share = au.evaluation.predictive_coverage(q, near, kappa_pos=30.0, masses=(0.2, 0.7))
    expected = [(100 * mass, 100 * value) for mass, value in share.items()]
    np.testing.assert_allclose(lines(ax)["measured"], expected)
    with pytest.raises(InvalidInputError, match="kappa_pos"):
        au.plot.coverage(q, near, ax=ax)


def test_the_histogram_counts_every_row_and_marks_the_median(ax):
    q = posteriors(501)
    au.plot.kappa_histogram(q, ax=ax)
    assert sum(bar.get_height() for bar in ax.patches) == 501
    assert lines(ax)[f"median {q.kappa.median():.3g}"][0, 0] == pytest.approx(
        q.kappa.median().item()
    )
    with pytest.raises(InvalidInputError, match="positive and finite"):
        au.plot.kappa_histogram(torch.tensor([1.0, math.inf]), ax=ax)


def test_rings_have_the_radius_of_the_caps(ax):
    q = posteriors(3)
    au.plot.caps(q, 0.8, ax=ax, gallery=posteriors(50, seed=5).mu)
    radius = torch.rad2deg(torch.acos(q.credible_cosine(0.8))).tolist()
    rings = [line.get_xydata() for line in ax.lines if line.get_label().startswith("κ")]
    for ring, expected in zip(rings, radius, strict=True):
        np.testing.assert_allclose(np.hypot(*ring.T), expected)


def test_circles_on_the_sphere_are_at_the_cap_cosine(ax):
    mu = torch.eye(3, dtype=torch.float64)
    q = au.VonMisesFisher(mu, torch.tensor([5.0, 20.0, 80.0], dtype=torch.float64))
    au.plot.caps(q, 0.9, ax=ax, labels=["a", "b", "c"])
    centre = mu.mean(0) / mu.mean(0).norm()
    for i, cosine in enumerate(q.credible_cosine(0.9).tolist()):
        front, back, star = (line.get_xydata() for line in ax.lines[3 * i : 3 * i + 3])
        # seen from the mean of mu: both parts together are an ellipse around the cap's centre
        points = np.concatenate([front, back])
        points = points[~np.isnan(points[:, 0])]
        middle = cosine * star[0]
        np.testing.assert_allclose((points.max(0) + points.min(0)) / 2, middle, atol=1e-3)
        tilt = float(mu[i] @ centre)
        assert np.hypot(*(points - middle).T).max() == pytest.approx(
            math.sqrt(1 - cosine**2), abs=1e-3
        )
        assert np.hypot(*star[0]) == pytest.approx(math.sqrt(1 - tilt**2))


def test_too_many_caps_or_labels_are_refused(ax):
    with pytest.raises(InvalidInputError, match="1 to 12"):
        au.plot.caps(posteriors(13), ax=ax)
    with pytest.raises(InvalidInputError, match="as many labels"):
        au.plot.caps(posteriors(2), labels=["a"], ax=ax)


def test_settings_of_matplotlib_are_restored_and_colours_follow_the_page():
    before = dict(mpl.rcParams)
    with canvas("test", 1) as drawing:
        au.plot.kappa_histogram(posteriors(50), ax=drawing.axes[0])
    assert dict(mpl.rcParams) == before
    assert f"var(--accent, {LIGHT['accent']})" in drawing.svg
    for colour in ("#000000", "#ffffff", "#0072b2"):
        assert f": {colour}" not in drawing.svg


def test_the_colormap_goes_from_low_to_high():
    colours = kappa_colours()
    assert mpl.colors.to_hex(colours(0.0)) == LIGHT["s0"]
    assert mpl.colors.to_hex(colours(1.0)) == LIGHT["s4"]
