"""The calibration in the page: coverage, the conformal switch, and the banner of galleries without one."""

import pytest
import torch

from aureole.caps import ConformalMass, CredibleIndex, SearchOptions
from aureole.caps._conformal import coverage_curve
from aureole.distributions import VonMisesFisher
from aureole.engines import Origin
from aureole.sphere import normalize
from tests.serve.conftest import PAGE, page_of
from tests.web.visit import Visit

pytest.importorskip("lance")
pytestmark = PAGE
KAPPA_POS = 20.0


def gallery(folder, pairs):
    """A gallery of 300 items; its conformal calibration is from so many pairs, of a model that is too confident."""
    rng = torch.Generator().manual_seed(0)
    mu = normalize(torch.randn(300, 8, generator=rng))
    posterior = VonMisesFisher(mu, torch.rand(300, generator=rng) * 40 + 20)
    ids = [f"item {i}" for i in range(300)]
    labels = ["one", "two", "three"] * 100
    index = CredibleIndex.create(folder / f"{pairs}.lance", posterior, ids, {"label": labels})
    index.origin = Origin(KAPPA_POS)
    if pairs:
        wide = VonMisesFisher(mu[:pairs], 8.0).sample(generator=rng)
        partner = VonMisesFisher(wide, 30.0)
        index.conformal = ConformalMass.fit(posterior[:pairs], partner, KAPPA_POS)
    return index


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    return gallery(tmp_path_factory.mktemp("calibrated"), 200)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_the_page_shows_the_coverage_and_searches_with_the_guarantee(
    calibrated, chrome, width, scheme
):
    own = calibrated.fetch(["item 7"])[0][0]
    model = SearchOptions(kind="predictive")
    conformal = SearchOptions(kind="predictive", guarantee="conformal")
    found = [calibrated.search(own, 0.9, options=o) for o in (model, conformal)]
    counts = [len(hits) - 1 for hits in found]  # all but the item itself
    assert counts[0] < counts[1]
    with (
        page_of(calibrated, label_column="label") as address,
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


def test_a_gallery_without_calibration_says_what_to_do(chrome, tmp_path):
    with (
        page_of(gallery(tmp_path, 0), label_column="label") as address,
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
