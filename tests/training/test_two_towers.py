"""Heads on the vectors of two encoders, whose posteriors can be searched across."""

import json

import numpy as np
import pytest
import torch

import aureole as au
from aureole.caps import CredibleIndex, Hits
from aureole.errors import InvalidInputError, NotFittedError
from aureole.evaluation import predictive_coverage, spearman
from aureole.training import FrozenHead, TwoTowerHead, _two_towers as towers
from aureole.training._two_towers import cross_pairs


def draw(n, seed, features=(12, 9)):
    """Two noisy views of n things through different maps; the first entry of a view shows how noisy it is."""
    rng, fixed = (torch.Generator().manual_seed(s) for s in (seed, 77))
    things = torch.randn(n, 6, generator=rng)
    noise = 0.1 + 0.9 * torch.rand(2, n, 1, generator=rng)
    views = []
    for level, size in zip(noise, features, strict=True):
        turn = torch.randn(6, size - 1, generator=fixed)
        seen = (things + level * torch.randn(n, 6, generator=rng)) @ turn
        views.append(5 + 3 * torch.cat([level, seen], 1))
    return views[0], views[1], noise[..., 0]


def small(**changes):
    return TwoTowerHead(**({"dim": 6, "steps": 120, "items": 256, "width": 64} | changes))


@pytest.fixture(scope="module")
def data():
    return draw(2000, 0)


@pytest.fixture(scope="module")
def head(data):
    left, right, _ = data
    return small().fit(left, right)


@pytest.fixture(scope="module")
def unseen():
    return draw(1000, 1)


def found_first(query, gallery):
    """Which queries have their partner, the same row, as the nearest of the gallery."""
    return (query.mu @ gallery.mu.T).argmax(1) == torch.arange(len(query))


def test_both_kappas_rank_the_noise_of_unseen_vectors(head, unseen):
    left, right, noise = unseen
    found = head.predict(left, right)
    for posterior, level in zip(found, noise, strict=True):
        assert isinstance(posterior, au.VonMisesFisher)
        assert posterior.mu.shape == (1000, 6)
        assert spearman(posterior.kappa, -level) > 0.8


def test_partners_are_found_across_and_confident_queries_find_them_more_often(head, unseen):
    left, right, _ = unseen
    one, two = head.predict(left, right)
    for query, gallery in ((one, two), (two, one)):
        hits = found_first(query, gallery).float()
        by_kappa = hits[query.kappa.argsort()]
        assert hits.mean() > 0.1  # by chance 0.001
        assert by_kappa[500:].mean() > 1.5 * by_kappa[:500].mean()


def test_predictive_caps_contain_the_share_of_unseen_partners_that_they_promise(head, unseen):
    left, right, _ = unseen
    assert head.coverage_[0.9] == pytest.approx(0.9, abs=0.03)
    one, two = head.predict(left, right)
    found = predictive_coverage(one, two, kappa_pos=head.kappa_pos_, masses=[0.5, 0.9])
    assert found[0.9] == pytest.approx(0.9, abs=0.06)  # calibrated on 100 pairs


def test_an_index_of_one_side_is_searched_with_the_other(head, unseen):
    left, right, _ = unseen
    one, two = head.predict(left, right)
    cosines = one.mu @ two.mu.T
    with CredibleIndex.create("faiss://", two, [str(row) for row in range(len(two))]) as index:
        for row in (0, 7):
            hits = index.search(one[row], mass=0.9, limit=3)
            assert isinstance(hits, Hits)
            nearest = cosines[row].topk(len(hits.ids)).indices.tolist()
            assert [int(name) for name in hits.ids] == nearest


def test_a_seed_decides_everything():
    left, right, _ = draw(400, 2)
    one, two, other = (
        small(steps=4, seed=seed).fit(left, right).predict(left, right) for seed in (0, 0, 1)
    )
    for side in (0, 1):
        assert torch.equal(one[side].mu, two[side].mu)
        assert torch.equal(one[side].kappa, two[side].kappa)
        assert not torch.equal(one[side].kappa, other[side].kappa)


def test_rows_with_several_partners_are_never_on_two_sides_of_a_split():
    left, right = torch.randn(200, 5), torch.randn(100, 5)
    pairs = cross_pairs([[row, row // 2] for row in range(200)], left, right)
    assert len(pairs.group.unique()) == 100
    kept, held = pairs.split(0.2, torch.Generator().manual_seed(0))
    assert len(held.pairs) == 40
    for column in (0, 1):
        assert not set(kept.pairs[:, column].tolist()) & set(held.pairs[:, column].tolist())
    batch = kept.draw((left, right), 500, torch.Generator().manual_seed(0))
    assert len(batch.anchor) == 80  # one pair of a group, so that partners are no negatives
    assert len(batch.positive.unique(dim=0)) == 80


def test_a_graph_of_one_component_is_split_by_pairs():
    rows = torch.arange(99)
    chain = torch.cat([torch.stack([rows, rows], 1), torch.stack([rows + 1, rows], 1)])
    pairs = cross_pairs(chain, torch.randn(100, 3), torch.randn(99, 3))
    assert len(pairs.group.unique()) == len(chain)


def test_folds_are_disjoint_and_complete():
    left, right = torch.randn(200, 5), torch.randn(100, 5)
    pairs = cross_pairs([[row, row // 2] for row in range(200)], left, right)
    folds = list(pairs.folds(3, torch.Generator().manual_seed(0)))
    assert len(folds) == 3
    assert sorted(torch.cat([fold.pairs[:, 0] for _, fold in folds]).tolist()) == list(range(200))
    for rest, fold in folds:
        assert not set(rest.group.tolist()) & set(fold.group.tolist())
        assert len(rest.pairs) + len(fold.pairs) == 200
    few = cross_pairs(None, left[:5], right[:5])
    assert list(few.folds(3, torch.Generator().manual_seed(0))) == []


def test_kappa_is_trained_with_the_mu_of_maps_that_have_not_seen_the_pairs(monkeypatch):
    left, right, _ = draw(120, 8)
    seen, train_kappa = {}, towers._Plan.train_kappa
    start = towers.start_towers

    def noted_start(sides, pairs, dim, **options):
        made = start(sides, pairs, dim, **options)
        seen[len(seen)] = set(pairs.pairs[:, 0].tolist())
        return made

    def noted_kappa(plan, maps, folds, path):
        assert len(folds) == 3
        for number, (fold, _) in enumerate(folds):
            assert not set(fold.pairs[:, 0].tolist()) & seen[number + 1]
        return train_kappa(plan, maps, folds, path)

    monkeypatch.setattr(towers, "start_towers", noted_start)
    monkeypatch.setattr(towers._Plan, "train_kappa", noted_kappa)
    small(steps=2).fit(left, right)
    assert len(seen) == 4  # the maps that are kept, and three more


def test_pairs_say_which_rows_match(unseen):
    left, right, noise = draw(1500, 3)
    order = torch.randperm(1500, generator=torch.Generator().manual_seed(0))
    pairs = torch.stack([torch.argsort(order), torch.arange(1500)], 1)
    head = small().fit(left[order], right, pairs)
    one, two = head.predict(*unseen[:2])
    assert found_first(one, two).float().mean() > 0.1
    assert spearman(one.kappa, -unseen[2][0]) > 0.7
    assert noise.shape == (2, 1500)


@pytest.mark.filterwarnings("ignore::aureole.errors.AureoleWarning")  # there is little to learn
@pytest.mark.parametrize("count", [4, 12, 30])
def test_a_few_pairs_are_enough(count):
    left, right, _ = draw(count, 4)
    head = small(steps=3).fit(left, right)
    for posterior in head.predict(left, right):
        assert bool(torch.isfinite(posterior.kappa).all())


def test_auto_takes_the_dim_with_the_most_information():
    left, right, _ = draw(400, 5, (20, 30))
    head = small(dim="auto", steps=20).fit(left, right)
    assert head.dim_ in head.dims_
    assert set(head.dims_) <= {8, 16}
    assert head.kappa_pos_ == 2.0 * head.dim_


def test_a_stopped_fit_resumes(tmp_path):
    left, right, _ = draw(300, 6)
    whole = small(steps=10).fit(left, right).predict(left, right)

    def stop(step, total, phase, loss, state):
        if step >= 4:
            raise KeyboardInterrupt

    path = tmp_path / "towers.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aureole.training._fit.time.monotonic", iter(range(10**6)).__next__)
        with pytest.raises(KeyboardInterrupt):
            small(steps=10).fit(left, right, checkpoint=path, observer=stop)
    assert path.exists()
    resumed = small(steps=10).fit(left, right, checkpoint=path).predict(left, right)
    for one, two in zip(whole, resumed, strict=True):
        torch.testing.assert_close(one.kappa, two.kappa)


def test_a_saved_head_is_the_same_head(head, unseen, tmp_path):
    left, right, _ = unseen
    folder = head.save(tmp_path / "towers")
    files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    names = ("README.md", "config.json", "weights.safetensors")
    assert files == [f"{side}/{name}" for side in ("left", "right") for name in names]
    again = TwoTowerHead.load(folder)
    for name in ("dim_", "kappa_pos_", "information_", "profile_", "calibration_", "coverage_"):
        assert getattr(again, name) == getattr(head, name)
    for one, two in zip(head.predict(left, right), again.predict(left, right), strict=True):
        assert torch.equal(one.mu, two.mu)
        assert torch.equal(one.kappa, two.kappa)
    alone = FrozenHead.load(folder / "right").predict(right)
    assert torch.equal(alone.kappa, head.predict(left, right)[1].kappa)
    assert again.summary() == head.summary()


def test_damaged_and_mixed_folders_are_refused(head, tmp_path):
    folder = head.save(tmp_path / "towers")
    config = folder / "left" / "config.json"
    kept = config.read_text()
    config.write_text(json.dumps(json.loads(kept) | {"kappa_pos": 5.0}))
    with pytest.raises(InvalidInputError, match="not the two sides of one fit"):
        TwoTowerHead.load(folder)
    config.write_text(kept)
    weights = folder / "right" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(InvalidInputError, match="cannot be read"):
        TwoTowerHead.load(folder)


def test_summary_and_repr_give_sizes_information_and_coverage(head):
    changed = "dim=6, width=64, steps=120, items=256"
    assert repr(small()) == f"TwoTowerHead({changed})"
    assert repr(head) == f"TwoTowerHead({changed}, fitted: 12 and 9 -> 6 dimensions)"
    text = head.summary()
    assert "vectors of 12 and 9 dimensions to posteriors of 6" in text
    assert f"{head.kappa_pos_:g}: {head.profile_[head.kappa_pos_]:.3f}" in text
    assert f"90%: {head.coverage_[0.9]:.1%}" in text


def broken(x, row, value):
    copy = x.clone()
    copy[row, 1] = value
    return copy


WRONG = {
    "rows": (lambda a, b: (a, b[1:]), "50 rows on the left and 49 on the right"),
    "left empty": (lambda a, b: (a[:0], b), r"left side: .*\[n, d\], but have \(0, 12\)"),
    "right empty": (lambda a, b: (a, b[:, :0]), r"right side: .*\(50, 0\)"),
    "one vector": (lambda a, b: (a[0], b), r"left side: .*\(12,\)"),
    "a list": (lambda a, b: (a, b.tolist()), "right side: .* but are list"),
    "NaN": (lambda a, b: (a, broken(b, 7, torch.nan)), r"right side: vectors\[7\] contains NaN"),
    "infinity": (lambda a, b: (broken(a, 3, torch.inf), b), r"left side: vectors\[3\]"),
    "two pairs": (lambda a, b: (a, b, [[0, 0], [1, 1]]), "2 pairs are too few"),
    "triples": (lambda a, b: (a, b, [[0, 0, 0]] * 9), r"whole numbers \[p, 2\]"),
    "fractions": (lambda a, b: (a, b, np.full((9, 2), 0.5)), "are float64"),
    "no pairs": (lambda a, b: (a, b, []), r"shape \(0,\)"),
    "outside": (lambda a, b: (a, b, [[0, 0], [1, 50]]), r"pairs\[1\] is \[1, 50\]"),
    "negative": (lambda a, b: (a, b, [[0, 0], [-1, 5]]), r"pairs\[1\] is \[-1, 5\]"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_inputs_are_named_in_one_line(kind):
    change, message = WRONG[kind]
    left, right, _ = draw(50, 7)
    with pytest.raises(InvalidInputError, match=message) as caught:
        small(steps=1).fit(*change(left, right))
    assert "\n" not in str(caught.value)


def test_wrong_sizes_and_unfitted_heads_are_named(head, unseen, tmp_path):
    left, right, _ = unseen
    with pytest.raises(InvalidInputError, match="right side: dim must be between 2 and 9"):
        small(dim=10, steps=1).fit(left, right)
    with pytest.raises(InvalidInputError, match=r"left side: .* of 12 dimensions, not 9"):
        head.predict(right, left)
    with pytest.raises(InvalidInputError, match=r"right side: vectors\[4\] contains NaN"):
        head.predict(left, broken(right, 4, torch.nan))
    for call in (lambda: small().predict(left, right), small().summary):
        with pytest.raises(NotFittedError, match="call fit"):
            call()
    with pytest.raises(NotFittedError):
        small().save(tmp_path / "none")
