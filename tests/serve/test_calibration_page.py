"""The calibration in the page: coverage, the conformal switch, and the banner of galleries without one."""

import os

import pytest
import torch

pytest.importorskip("playwright")
pytest.importorskip("fastapi")
pytest.importorskip("lance")

from aureole.caps import ConformalMass, CredibleIndex, SearchOptions
from aureole.caps._conformal import coverage_curve
from aureole.distributions import VonMisesFisher
from aureole.engines import Origin
from aureole.sphere import normalize
from tests.web.visit import Visit, browser, chromium, serving

PAGE = pytest.mark.skipif(chromium() is None, reason="needs Chromium")
KAPPA_POS = 20.0


def gallery(folder, pairs):
    """A gallery of 300 items; its conformal calibration is from so many pairs, of a model that is too confident."""
    rng = torch.Generator().manual_seed(0)
    mu = normalize(torch.randn(300, 8, generator=rng))
    posterior = VonMisesFisher(mu, torch.rand(300, generator=rng) * 40 + 20)
    ids = [f"item {i}" for i in range(300)]
    labels = ["one", "two", "three"] * 100
    path = folder / f"{pairs}.lance"
    index = CredibleIndex.create(path, posterior, ids, {"label": labels})
    index.origin = Origin(KAPPA_POS)
    if pairs:
        wide = VonMisesFisher(mu[:pairs], 8.0).sample(generator=rng)
        partner = VonMisesFisher(wide, 30.0)
        index.conformal = ConformalMass.fit(posterior[:pairs], partner, KAPPA_POS)
    return path, index


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    return gallery(tmp_path_factory.mktemp("calibrated"), 200)


def environment():
    return {k: v for k, v in os.environ.items() if k != "AUREOLE_API_KEY"}


def test_the_curve_counts_the_held_out_pairs(calibrated):
    _, calibrated = calibrated
    found = coverage_curve(calibrated.conformal)
    scores = calibrated.conformal.scores
    assert found["pairs"] == 200
    for point in found["curve"]:
        share = sum(u <= point["claimed"] for u in scores) / 200
        assert point["measured"] == pytest.approx(share)
    at = {point["claimed"]: point for point in found["curve"]}
    assert at[0.9]["measured"] < 0.9  # the caps are too small
    assert at[0.9]["level"] == scores[181 - 1] > 0.9  # ceil(201 * 0.9) = 181
    assert at[0.99]["level"] == scores[199 - 1]


@pytest.mark.slow
@PAGE
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_the_page_shows_the_coverage_and_searches_with_the_guarantee(
    calibrated, tmp_path, width, scheme
):
    path, calibrated = calibrated
    options = ["--index", str(path), "--label-column", "label"]
    own = calibrated.fetch(["item 7"])[0][0]
    model = SearchOptions(kind="predictive")
    conformal = SearchOptions(kind="predictive", guarantee="conformal")
    found = [calibrated.search(own, 0.9, options=o) for o in (model, conformal)]
    counts = [len(hits) - 1 for hits in found]  # all but the item itself
    assert counts[0] < counts[1]
    with (
        serving(options, log=tmp_path / "log", env=environment()) as address,
        browser() as chrome,
        Visit(chrome, address, width=width, color_scheme=scheme) as visit,
    ):
        visit.load()
        visit.go("#/calibration")
        visit.page.locator(".calibration .curve").wait_for()
        assert visit.page.locator(".calibration .spot").count() == 20
        measured = coverage_curve(calibrated.conformal)["curve"][17]["measured"]
        row = visit.page.locator(".calibration tr", has_text="90 %").first.inner_text()
        assert f"{100 * measured:.0f}\u00a0%" in row  # without a line break
        assert visit.overflow() <= 0
        visit.page.screenshot(path=tmp_path / "calibration.png", full_page=True)
        visit.go("#/item/item%207")
        visit.settle()
        visit.page.locator("input[value=predictive]").check(force=True)
        visit.move_mass(90)
        assert visit.members()[0] == counts[0]
        claim = visit.page.locator(".holds", has_text=f"about {100 * measured:.0f} %").inner_text()
        assert claim.startswith("By the model, the circle contains the direction of a match")
        assert "of 200 held-out pairs" in claim
        assert visit.page.locator(".banner").count() == 0
        with visit.page.expect_response(lambda answer: answer.url.endswith("/v1/search")):
            visit.page.locator(".conformal input").check()
        visit.page.locator(".summary strong", has_text=str(counts[1])).wait_for()
        assert visit.members()[0] == counts[1]
        assert "in at least 90" in visit.page.locator(".holds").inner_text()
        visit.page.locator("input[value=credible]").check(force=True)
        visit.page.locator(".holds", has_text="its own latent").wait_for()
        assert "held-out" not in visit.page.locator(".holds").inner_text()
        assert visit.errors == []


@pytest.mark.slow
@PAGE
def test_a_gallery_without_calibration_says_what_to_do(tmp_path):
    path, _ = gallery(tmp_path, 0)
    options = ["--index", str(path), "--label-column", "label"]
    with (
        serving(options, log=tmp_path / "log", env=environment()) as address,
        browser() as chrome,
        Visit(chrome, address, width=390) as visit,
    ):
        visit.load()
        visit.go("#/item/item%207")
        banner = visit.page.locator(".banner")
        banner.wait_for()
        assert "not calibrated" in banner.inner_text()
        claim = visit.page.locator(".holds").inner_text()
        assert claim.startswith("By the model, ")
        assert claim.endswith("with a probability of 95\u00a0%.")
        assert visit.page.locator(".conformal").count() == 0
        banner.get_by_role("link").click()
        visit.page.get_by_text("--conformal held-out.parquet").wait_for()
        assert visit.overflow() <= 0
        assert visit.errors == []
