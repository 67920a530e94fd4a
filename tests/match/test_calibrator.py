"""MatchCalibrator: calibrated probabilities, thresholds that keep their guarantee, statistics by brute force."""

import json

import numpy as np
import pytest

import aureole as au
from aureole.errors import AureoleWarning, InvalidInputError, MissingInputError
from aureole.match import MatchFilter
from aureole.match._fitting import nearest

DIM, ITEMS = 16, 400


def labelled(n, seed, gallery):
    """Queries around one or two items each, some vague; a common direction makes hubs."""
    rng = np.random.default_rng(seed)
    rows = [rng.choice(len(gallery), rng.integers(1, 3), replace=False) for _ in range(n)]
    noise = rng.uniform(0.2, 1.3, (n, 1)) * rng.standard_normal((n, DIM))
    centres = np.stack([gallery[group].mean(0) for group in rows])
    return centres + noise, [group.tolist() for group in rows]


@pytest.fixture(scope="module")
def gallery():
    rng = np.random.default_rng(0)
    shared = 1.5 * rng.random((ITEMS, 1)) * np.eye(DIM)[0]
    return rng.standard_normal((ITEMS, DIM)) + shared


@pytest.fixture(scope="module")
def calibrator(gallery):
    return au.MatchCalibrator().fit(*_around(gallery, labelled(1200, 1, gallery)))


@pytest.fixture(scope="module")
def new(gallery):
    queries, matches = labelled(1500, 2, gallery)
    cosines, rows = nearest(queries, gallery, 100)
    labels = np.stack([np.isin(r, m) for r, m in zip(rows, matches, strict=True)])
    return queries, matches, cosines, rows, labels


def _around(gallery, pairs):
    queries, matches = pairs
    return queries, gallery, matches


def average_precision(scores, labels, matches):
    right = np.cumsum(labels.ravel()[np.argsort(-scores.ravel(), kind="stable")])
    hits = np.diff(right, prepend=0) > 0
    return (right / np.arange(1, right.size + 1))[hits].sum() / sum(map(len, matches))


def test_probabilities_are_calibrated(calibrator, new):
    _, _, cosines, rows, labels = new
    p = calibrator.probability(cosines, rows)
    for low in np.arange(0.1, 0.9, 0.2):
        inside = (p >= low) & (p < low + 0.2)
        error = np.sqrt(p[inside].mean() * (1 - p[inside].mean()) / inside.sum())
        assert abs(p[inside].mean() - labels[inside].mean()) < 0.03 + 4 * error


def test_probabilities_order_pairs_of_different_queries_better_than_cosines(calibrator, new):
    _, matches, cosines, rows, labels = new
    p = calibrator.probability(cosines, rows)
    raw = average_precision(cosines, labels, matches)
    assert average_precision(p, labels, matches) > raw + 0.03


def test_few_labels_stay_close_to_csls(gallery, new):
    _, matches, cosines, rows, labels = new
    small = au.MatchCalibrator().fit(*_around(gallery, labelled(50, 3, gallery)))
    csls = 2 * cosines - small.level(cosines)[:, None] - small.hubness_[rows]
    ours = average_precision(small.probability(cosines, rows), labels, matches)
    assert ours > average_precision(csls, labels, matches) - 0.01


@pytest.mark.parametrize("precision", [0.5, 0.7])
def test_precision_is_kept(calibrator, new, precision):
    _, _, cosines, rows, labels = new
    p = calibrator.probability(cosines, rows)
    kept = p >= calibrator.threshold(precision=precision)
    kept &= np.argsort(np.argsort(-p, axis=1), axis=1) < calibrator.limit
    assert labels[kept].mean() > precision - 0.02
    assert kept.sum() > 200


@pytest.mark.parametrize("recall", [0.5, 0.8])
def test_recall_is_kept(calibrator, new, recall):
    _, matches, cosines, rows, labels = new
    kept = calibrator.probability(cosines, rows) >= calibrator.threshold(recall=recall)
    shares = (kept & labels).sum(1) / [len(group) for group in matches]
    assert recall - 0.02 < shares.mean() < recall + 0.1


def test_f1_balances_both(calibrator):
    best = calibrator.threshold(f1=True)
    quality = calibrator.quality(best)
    low, high = quality.precision_interval
    assert low < quality.precision < high
    assert quality.queries == 600

    def f1(threshold):
        q = calibrator.quality(threshold, bootstrap=2)
        return 2 * q.precision * q.recall / (q.precision + q.recall)

    assert f1(best) > max(f1(best / 3), f1((1 + best) / 2)) - 0.01


def test_too_few_queries_are_reported(gallery):
    small = au.MatchCalibrator().fit(*_around(gallery, labelled(30, 4, gallery)))
    with pytest.warns(AureoleWarning, match="15 held-out queries do not show precision 0.95"):
        assert small.threshold(precision=0.95) == 1
    with pytest.warns(AureoleWarning, match="every result is returned"):
        assert small.threshold(recall=0.99) == 0


def test_the_radius_holds_every_item_above_the_threshold(calibrator, new):
    _, _, cosines, rows, _ = new
    level = calibrator.level(cosines)
    for threshold in (0.1, 0.5):
        radius = calibrator.radius(threshold, level)
        kept = calibrator.probability(cosines, rows) >= threshold
        assert (cosines >= radius[:, None] - 1e-6)[kept].all()


def test_the_probability_increases_with_the_cosine(calibrator):
    cosines = np.linspace(-1, 1, 200)
    p = calibrator.probability(cosines, np.full(200, 7), level=0.5)
    assert (np.diff(p[p < 1]) > 0).all()
    assert (p < 1).sum() > 100


def test_levels_and_hubness_by_brute_force(gallery):
    queries, matches = labelled(60, 5, gallery)
    calibrator = au.MatchCalibrator(neighbours=4, seed=3).fit(queries, gallery, matches)
    held, fitted = np.split(np.random.default_rng(3).permutation(60), [30])
    unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)  # noqa: E731
    table = unit(gallery) @ unit(queries).T
    for row in (0, 7, 399):
        others = [table[row, i] for i in fitted if row not in matches[i]]
        assert calibrator.hubness_[row] == pytest.approx(np.mean(sorted(others)[-4:]), abs=1e-5)
    level = calibrator.level(table[:, held[:5]].T)
    assert level == pytest.approx(np.sort(table[:, held[:5]].T)[:, -4:].mean(1), abs=1e-6)


def test_copies_of_an_item_do_not_exceed_the_limit():
    rng = np.random.default_rng(13)
    gallery = np.repeat(rng.standard_normal((40, DIM)), 50, axis=0)  # each item fifty times
    rows = rng.integers(40, size=400) * 50
    queries = gallery[rows] + 0.3 * rng.standard_normal((400, DIM))
    matches = [list(range(row, row + 50)) for row in rows]
    calibrator = au.MatchCalibrator().fit(queries, gallery, matches)
    threshold = calibrator.threshold(precision=0.9)
    assert 0 < threshold < 1


def test_queries_without_a_match_get_uniform_p_values(calibrator, gallery):
    queries, matches = labelled(600, 7, gallery)
    cosines, rows = nearest(queries, gallery, 100)
    right = np.stack([np.isin(r, m) for r, m in zip(rows, matches, strict=True)])
    p = calibrator.no_match_p_value(np.where(right, -1.0, cosines))
    assert abs((p < 0.05).mean() - 0.05) < 0.035
    assert abs((p < 0.5).mean() - 0.5) < 0.08
    assert (calibrator.no_match_p_value(cosines) < 0.05).mean() > 0.2


def test_save_and_load(calibrator, new, tmp_path):
    _, _, cosines, rows, _ = new
    calibrator.save(tmp_path / "c")
    again = au.MatchCalibrator.load(tmp_path / "c")
    assert np.array_equal(again.probability(cosines, rows), calibrator.probability(cosines, rows))
    assert again.threshold(precision=0.5) == calibrator.threshold(precision=0.5)
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [
        "match.json",
        "match.safetensors",
    ]


@pytest.mark.parametrize("fault", ["format", "json", "arrays", "weights"])
def test_damaged_files_raise_one_error(calibrator, tmp_path, fault):
    calibrator.save(tmp_path)
    described = json.loads((tmp_path / "match.json").read_text())
    if fault == "format":
        described["format"] = "other"
    if fault == "weights":
        described["weights"] = {"cosine": "x"}
    (tmp_path / "match.json").write_text("{" if fault == "json" else json.dumps(described))
    if fault == "arrays":
        (tmp_path / "match.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(InvalidInputError, match="holds no valid calibrator"):
        au.MatchCalibrator.load(tmp_path)


def test_a_missing_folder(tmp_path):
    with pytest.raises(MissingInputError, match=r"match\.json not found"):
        au.MatchCalibrator.load(tmp_path / "none")


def test_ids_and_appended_items(gallery):
    queries, matches = labelled(100, 8, gallery)
    names = [f"item {row}" for row in range(ITEMS)]
    named = au.MatchCalibrator().fit(
        queries, gallery, [[names[row] for row in group] for group in matches], ids=names
    )
    plain = au.MatchCalibrator().fit(queries, gallery, matches)
    cosines, rows = nearest(queries[:3], gallery, 20)
    by_name = named.probability(cosines, np.array(names)[rows])
    assert np.array_equal(by_name, plain.probability(cosines, rows))
    plain.append(gallery[:2] + 0.1)
    named.append(gallery[:2] + 0.1, ["new", "newer"])
    assert named.hubness_[-2:] == pytest.approx(plain.hubness_[-2:])
    assert named.probability(cosines[0], np.array(["new"] * 20)).shape == (20,)
    with pytest.raises(InvalidInputError, match="'stranger' is not in the gallery"):
        named.probability(cosines[0], np.array(["stranger"] * 20))


def test_other_queries_change_the_hubness_only_by_more_cosines(gallery):
    queries, matches = labelled(100, 9, gallery)
    extra, _ = labelled(500, 10, gallery)
    plain = au.MatchCalibrator().fit(queries, gallery, matches)
    more = au.MatchCalibrator().fit(queries, gallery, matches, other_queries=extra)
    assert (more.hubness_ >= plain.hubness_ - 1e-6).all()


def test_queries_of_another_kind_are_reported(calibrator, gallery):
    rng = np.random.default_rng(11)
    cosines, rows = nearest(rng.standard_normal((200, DIM)) - 3 * np.eye(DIM)[0], gallery, 20)
    with pytest.warns(AureoleWarning, match="may be of another kind or another encoder"):
        calibrator.probability(cosines, rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queries": np.zeros((40, DIM))}, "row 0 of queries is zero"),
        ({"queries": np.full((40, DIM), np.nan)}, "zero or not finite"),
        ({"queries": np.ones((40, 3))}, "queries have dimension 3, but the gallery has 16"),
        ({"queries": np.ones(5)}, r"must be numbers of shape \(n, dim\)"),
        ({"matches": [[1]] * 39}, "39 lists and 40 queries"),
        ({"matches": [[ITEMS]] * 40}, "is not in the gallery"),
        ({"matches": [["a"]] * 40}, "'a' is not in the gallery"),
        ({"matches": [[]] * 40}, "none of the candidates"),
        ({"ids": ["x"] * ITEMS}, "1 of them distinct"),
    ],
)
def test_wrong_inputs(gallery, change, message):
    queries, matches = labelled(40, 12, gallery)
    inputs = {"queries": queries, "gallery": gallery, "matches": matches} | change
    with pytest.raises(InvalidInputError, match=message):
        au.MatchCalibrator().fit(**inputs)


OUT_OF_RANGE = [
    *(("confidence", value, "between 0 and 1") for value in (0.0, 1.0, 90)),
    *((name, 0, "integer of at least 1") for name in ("neighbours", "candidates", "limit")),
    *((name, 2.5, "integer of at least 1") for name in ("neighbours", "candidates", "limit")),
]


def with_option(calibrator, name, value):
    """A calibrator with an option of any type, which the annotations do not check here."""
    setattr(calibrator, name, value)
    return calibrator


@pytest.mark.parametrize(("name", "value", "message"), OUT_OF_RANGE)
def test_options_out_of_range_are_named(gallery, calibrator, tmp_path, name, value, message):
    queries, matches = labelled(40, 12, gallery)
    with pytest.raises(InvalidInputError, match=f"{name} .*{message}"):
        with_option(au.MatchCalibrator(), name, value).fit(queries, gallery, matches)
    calibrator.save(tmp_path)
    saved = json.loads((tmp_path / "match.json").read_text())
    saved["options"][name] = value
    (tmp_path / "match.json").write_text(json.dumps(saved))
    with pytest.raises(InvalidInputError, match="holds no valid calibrator"):
        au.MatchCalibrator.load(tmp_path)


def test_wrong_cosines(calibrator):
    with pytest.raises(InvalidInputError, match="Convert distances first"):
        calibrator.probability([1.7] * 10, np.arange(10))
    with pytest.raises(InvalidInputError, match="needs its 10 highest cosines, but got 3"):
        calibrator.probability([0.5] * 3, np.arange(3))
    with pytest.raises(InvalidInputError, match="same shape"):
        calibrator.probability([0.5] * 10, np.arange(9))
    with pytest.raises(InvalidInputError, match="exactly one of"):
        calibrator.threshold(precision=0.5, recall=0.5)
    with pytest.raises(InvalidInputError, match="item '400' is not in the gallery"):
        calibrator.probability([0.5] * 10, np.arange(395, 405))


def test_a_query_map_finds_more_and_leaves_the_gallery_alone(gallery, tmp_path):
    """Queries of another space than the gallery: turned by a rotation that can be learned."""
    rng = np.random.default_rng(7)
    small = np.linalg.qr(np.eye(DIM) + 0.15 * rng.standard_normal((DIM, DIM)))[0]
    queries, matches = labelled(1500, 5, gallery)
    queries = queries @ (small * np.sign(np.diag(small)))
    plain, mapped = (
        au.MatchCalibrator(query_map=use).fit(queries[:1200], gallery, matches[:1200])
        for use in (False, True)
    )
    found = []
    for each in (plain, mapped):
        _, rows = nearest(each.map_queries(queries[1200:]), gallery, 1)
        found.append(
            np.mean([row[0] in group for row, group in zip(rows, matches[1200:], strict=True)])
        )
    assert found[1] > found[0] + 0.05
    mapped.save(tmp_path)
    again = au.MatchCalibrator.load(tmp_path)
    assert (again.map_queries(queries[:5]) == mapped.map_queries(queries[:5])).all()
    with pytest.raises(InvalidInputError, match="dimension 3, but the calibrator was fitted on 16"):
        again.map_queries(np.ones((1, 3)))


def test_reliability_bins_hold_all_held_out_candidates(calibrator):
    bins = calibrator.reliability()
    assert sum(count for *_, count in bins) == calibrator.held_out_.labels.size
    for predicted, observed, count in bins:
        assert abs(predicted - observed) < 0.02 + 4 * (predicted / count) ** 0.5


def test_the_filter_keeps_probable_matches_in_order(calibrator, gallery, new):
    queries, _, cosines, rows, _ = new
    searches = MatchFilter(calibrator, lambda v, k: brute(v, gallery, k), threshold=0.3)
    for i in range(20):
        found = searches(queries[i])
        p = calibrator.probability(cosines[i], rows[i])
        wanted = rows[i][np.argsort(-p, kind="stable")][: int((p >= 0.3).sum())][: calibrator.limit]
        assert found.ids == wanted.tolist()
        assert (np.diff(found.probabilities) <= 0).all()
        assert not found.abstained
    strict = MatchFilter(calibrator, searches.search, threshold=0.0, abstain=0.05, limit=3)
    results = [strict(q) for q in queries[:200]]
    assert {len(r) for r in results} == {0, 3}
    assert all(r.abstained == (r.p_value > 0.05) == (len(r) == 0) for r in results)


def brute(vector, gallery, k):
    cosines, rows = nearest(vector[None], gallery, k)
    return cosines[0], rows[0]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"threshold": 1.5}, "threshold must be between 0 and 1"),
        ({"threshold": 0.5, "abstain": -1.0}, "abstain must be between 0 and 1"),
        ({"threshold": 0.5, "k": 3}, "k must be at least 10"),
    ],
)
def test_options_of_the_filter_are_checked(calibrator, options, match):
    with pytest.raises(InvalidInputError, match=match):
        MatchFilter(calibrator, lambda vector, k: ([], []), **options)


@pytest.mark.parametrize("aim", [{"f1": True}, {"recall": 0.5}])
def test_matches_that_are_far_from_all_others_keep_a_threshold_below_one(aim):
    rng = np.random.default_rng(0)
    gallery = rng.standard_normal((40, 64))
    right = rng.integers(40, size=60)
    queries = gallery[right] + 0.01 * rng.standard_normal((60, 64))
    fitted = au.MatchCalibrator().fit(queries, gallery, [[row] for row in right])
    threshold = fitted.threshold(**aim)
    assert 0 < threshold < 1
    quality = fitted.quality(threshold)
    assert quality.precision == 1
    assert quality.recall >= 0.5
