"""The quickstart's parts: unseen pictures, the query by its rule, and figures against slow ones."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from aureole.errors import InvalidInputError
from aureole.explorer._quickstart import (
    QuickstartSetting,
    choose_query,
    draw,
    measure,
    train,
    two_searches,
    write_gallery,
)
from aureole.explorer._quickstart_page import count_labels, two_caps_figure
from aureole.records import file_hash, read_record
from aureole.synthetic import drawn_shapes

SMALL = QuickstartSetting(pictures=200, held_out=160, gallery=40, steps=3, items=32)


@pytest.fixture(scope="module")
def trained():
    shapes = draw(SMALL, 0)
    return shapes, train(SMALL, shapes.train, 0)[0]


def test_no_picture_is_both_trained_on_and_checked():
    shapes = draw(QuickstartSetting(pictures=400, held_out=400), 3)
    seen = {picture.numpy().tobytes() for picture in shapes.train.pictures}
    assert not any(picture.numpy().tobytes() in seen for picture in shapes.held_out.pictures)


def test_training_repeats_and_leaves_the_global_generator_alone(trained):
    shapes, encoder = trained
    torch.manual_seed(5)
    again = train(SMALL, shapes.train, 0)[0]
    assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(5)))
    for one, other in zip(encoder.parameters(), again.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_figures_are_those_of_scipy_and_a_loop(trained):
    shapes, encoder = trained
    posterior, found = measure(encoder, shapes.held_out)
    kappa, entropy = posterior.kappa.numpy(), shapes.held_out.entropy.numpy()
    assert found["entropy_rank"] == pytest.approx(spearmanr(-kappa, entropy).statistic, abs=1e-6)
    best = spearmanr(np.argsort(np.argsort(entropy, kind="stable")), entropy).statistic
    assert found["entropy_rank_best"] == pytest.approx(best, abs=1e-6)
    mu, labels = posterior.mu.double().numpy(), shapes.held_out.labels.numpy()
    cosine = mu @ mu.T - 9 * np.eye(len(mu))
    right = labels[cosine.argmax(1)] == labels
    assert found["recall_at_1"] == pytest.approx(right.mean())
    sure = np.argsort(-kappa)[: len(kappa) // 2]
    assert found["recall_at_1_sure_half"] == pytest.approx(right[sure].mean())


def test_the_query_is_the_median_clear_star_outside_of_the_gallery(trained):
    shapes, _ = trained
    kappa = torch.rand(160, generator=torch.Generator().manual_seed(0))
    number = choose_query(shapes.held_out, kappa, SMALL)
    assert number >= SMALL.gallery
    stars = [i for i in range(40, 160) if shapes.held_out.probabilities[i, 3] == 1]
    assert number in stars
    below = sum(bool(kappa[i] < kappa[number]) for i in stars)
    assert below == len(stars) // 2
    with pytest.raises(InvalidInputError, match="no clear star"):
        choose_query(drawn_shapes(3), kappa[:3], SMALL)


def test_searches_hold_all_in_the_cap_and_nothing_else(trained, tmp_path):
    shapes, encoder = trained
    posterior, _ = measure(encoder, shapes.held_out)
    encoder.save(tmp_path / "encoder")
    gallery = write_gallery(tmp_path, tmp_path / "encoder", shapes.held_out, posterior, SMALL)
    found = two_searches(gallery, encoder, shapes.held_out, 50, SMALL)
    for search in found:
        inside = {i for i, angle in enumerate(search.angles) if angle <= search.degrees}
        assert inside == set(search.members)
        angles = [search.angles[i] for i in search.members]
        assert angles == sorted(angles)
    assert not torch.equal(found[0].picture, found[1].picture)
    again = write_gallery(tmp_path, tmp_path / "encoder", shapes.held_out, posterior, SMALL)
    assert again == gallery  # what an interrupted run left is replaced
    labels = [shapes.held_out.names[i] for i in shapes.held_out.labels[:40]]
    svg = two_caps_figure(found, shapes.held_out.pictures[:40], labels)
    for search in found:
        assert f"κ = {search.kappa:.0f}, cap of {search.degrees:.0f}°" in svg


def test_labels_are_counted_with_their_plurals():
    assert count_labels([]) == ""
    assert count_labels(["cross", "cross", "star"]) == "2 crosses, 1 star"


def test_the_picture_in_the_docs_is_that_of_the_record():
    root = Path(__file__).parents[2]
    record = read_record(root / "results" / "quickstart" / "seed-0.json")
    picture = root / "docs" / "pictures" / "caps.svg"
    assert record.data["caps.svg"] == file_hash(picture)
    assert picture.stat().st_size < 300_000
    for search in record.metrics["searches"]:
        assert f"{search['members']} pictures in the cap" in picture.read_text()
