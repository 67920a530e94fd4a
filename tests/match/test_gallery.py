"""Match probabilities in a gallery: the calibrator's own numbers, what is refused, and why a set is empty."""

import numpy as np
import pytest
import torch

from aureole import MatchCalibrator, VonMisesFisher
from aureole.caps import CredibleIndex
from aureole.distributions import MixtureVMF
from aureole.engines import Origin, parse_filter
from aureole.errors import AureoleWarning, EncoderError, InvalidInputError
from aureole.match import GalleryMatcher, MatchOptions
from aureole.match._gallery import UnknownItemError
from aureole.sphere import normalize

pytest.importorskip("faiss")

N, DIM = 300, 12
IDS = [f"item {i}" for i in range(N)]


def directions(seed=0):
    rng = np.random.default_rng(seed)
    mu = rng.standard_normal((N, DIM))
    mu = (mu / np.linalg.norm(mu, axis=1, keepdims=True)).astype(np.float32)
    right = rng.integers(N, size=500)
    queries = mu[right] + rng.uniform(0.05, 0.3, (500, 1)) * rng.standard_normal((500, DIM))
    return mu, queries.astype(np.float32), right


MU, QUERIES, RIGHT = directions()


def fitted(ids=None, encoder=None, **options):
    names = range(N) if ids is None else ids
    matches = [[names[row]] for row in RIGHT[:400]]
    return MatchCalibrator(**options).fit(QUERIES[:400], MU, matches, ids=ids, encoder=encoder)


def gallery(ids=IDS, origin=None, rows=N):
    posterior = VonMisesFisher(torch.from_numpy(MU[:rows]), torch.linspace(5, 90, rows))
    payload = {"size": list(range(rows))}
    index = CredibleIndex.create("faiss://", posterior, ids[:rows], payload)
    if origin is not None:
        index.origin = origin
    return index


@pytest.fixture(scope="module")
def matcher():
    with gallery() as index:
        yield GalleryMatcher(fitted(IDS), index)


def by_hand(calibrator, query, threshold, limit):
    """Ids and probabilities from all cosines."""
    unit = calibrator.map_queries(query[None])[0].astype(np.float64)
    cosines = MU.astype(np.float64) @ unit
    nearest = np.argsort(-cosines)[:100]
    probability = calibrator.probability(cosines[nearest], np.array(IDS, object)[nearest])
    order = np.argsort(-probability, kind="stable")
    kept = [i for i in order if probability[i] >= threshold][:limit]
    return [IDS[nearest[i]] for i in kept], probability[kept]


@pytest.mark.parametrize("query_map", [False, True])
def test_matches_are_those_of_the_calibrator(query_map):
    calibrator = fitted(IDS, query_map=query_map)
    with gallery() as index:
        matcher = GalleryMatcher(calibrator, index)
        for query in QUERIES[400:420]:
            found = matcher.match(query, MatchOptions(threshold=0.02, limit=5), columns=["size"])
            ids, probability = by_hand(calibrator, query, 0.02, 5)
            assert found.hits.ids == ids
            assert found.probabilities == pytest.approx(probability, abs=1e-5)
            assert [f"item {size}" for size in found.hits.payload["size"]] == ids
            assert found.threshold == 0.02
            posterior = VonMisesFisher(torch.from_numpy(query / np.linalg.norm(query)), 7.0)
            same = matcher.match(posterior, MatchOptions(threshold=0.02, limit=5))
            assert same.hits.ids == ids


def test_an_item_is_not_a_match_of_itself(matcher):
    found = matcher.match("item 7", MatchOptions(threshold=0.0, limit=N))
    assert len(found) == N - 1
    assert "item 7" not in found.hits.ids
    assert (np.diff(found.probabilities) <= 0).all()


def test_thresholds_are_those_of_the_calibrator(matcher):
    own = matcher.calibrator
    for options, aim in (
        (MatchOptions(), {"f1": True}),
        (MatchOptions(precision=0.5), {"precision": 0.5}),
        (MatchOptions(recall=0.5), {"recall": 0.5}),
    ):
        assert matcher.threshold(options) == (own.threshold(**aim), None)
        assert matcher.match(QUERIES[401], options).threshold == own.threshold(**aim)
    value, note = matcher.threshold(MatchOptions(precision=0.9999))
    assert value == 1
    assert "held-out queries do not show precision" in note
    empty = matcher.match(QUERIES[401], MatchOptions(precision=0.9999))
    assert len(empty) == 0
    assert "no item reaches the probability 1" in empty.reason
    with pytest.raises(InvalidInputError, match="at most 10 results"):
        matcher.match(QUERIES[401], MatchOptions(precision=0.5, limit=11))


def test_recall_returns_everything_above_its_threshold(matcher):
    everything = matcher.match(QUERIES[400], MatchOptions(recall=0.99))
    assert "every result is returned" in everything.note
    assert len(everything) == N > matcher.calibrator.limit
    options = MatchOptions(recall=0.9)
    assert matcher.match(QUERIES[400], options).note is None
    cut = matcher.match(QUERIES[400], MatchOptions(recall=0.9, limit=1))
    assert len(cut) == 1
    assert cut.note == "only the 1 most probable match is returned, so recall is not guaranteed."


def test_an_empty_set_has_a_reason(matcher):
    far = -MU.mean(0)
    abstained = matcher.match(far, MatchOptions(threshold=0.0, abstain=0.05))
    assert abstained.abstained
    assert len(abstained) == 0
    assert abstained.p_value > 0.05
    assert abstained.reason.startswith("abstained: the highest cosine")
    assert "\n" not in abstained.reason
    kept = matcher.match(far, MatchOptions(threshold=0.0, abstain=1.0))
    assert (kept.abstained, kept.reason, len(kept)) == (False, None, 10)
    unlikely = matcher.match(far, MatchOptions(threshold=0.99))
    assert (unlikely.abstained, len(unlikely)) == (False, 0)
    assert "no item reaches the probability 0.99" in unlikely.reason


def test_filters_keep_the_level_of_the_unfiltered_search(matcher):
    query = QUERIES[403]
    everything = matcher.match(query, MatchOptions(threshold=0.0, limit=N))
    known = dict(zip(everything.hits.ids, everything.probabilities, strict=True))
    conditions = parse_filter(["size=10..14"], matcher.index.schema)
    found = matcher.match(query, MatchOptions(threshold=0.0), filter=conditions)
    assert sorted(found.hits.ids) == [f"item {i}" for i in range(10, 15)]
    for name, probability in zip(found.hits.ids, found.probabilities, strict=True):
        assert probability == pytest.approx(known[name])
    nothing = matcher.match(query, filter=parse_filter(["size=1000..2000"], matcher.index.schema))
    assert (len(nothing), nothing.reason) == (0, "the search found no items.")


def test_drift_is_reported_once():
    rng = np.random.default_rng(5)
    far = rng.standard_normal((60, DIM)) - 3 * np.eye(DIM)[0]
    with gallery() as index:
        usual = GalleryMatcher(fitted(IDS), index)
        for query in QUERIES[400:500]:
            usual.match(query)
        strangers = GalleryMatcher(usual.calibrator, index)
        for name in IDS[:60]:  # an item is no query of the calibrator's kind
            strangers.match(name)
        with pytest.warns(AureoleWarning, match="highest cosines of these queries") as caught:
            found = [strangers.match(query) for query in far]
    assert len(caught) == 1
    assert {one.note for one in found} == {None}


def test_another_model_or_dimension_is_refused():
    head = Origin(20.0, "weights of the head", "the encoder")
    assert (head.fingerprint, Origin(encoder="e").fingerprint) == ("weights of the head", "e")
    with gallery(origin=head) as index:
        for encoder in ("weights of the head", None):
            GalleryMatcher(fitted(IDS, encoder), index)
        with pytest.raises(EncoderError, match=r"the directions of a head\. Fit it on the mu"):
            GalleryMatcher(fitted(IDS, "the encoder"), index)
        with pytest.raises(EncoderError, match="the calibrator was fitted on vectors of another"):
            GalleryMatcher(fitted(IDS, "something else"), index)
    with gallery(origin=Origin(encoder="the encoder")) as index:
        GalleryMatcher(fitted(IDS, "the encoder"), index)
    other = MatchCalibrator().fit(QUERIES[:400, :5], MU[:, :5], [[row] for row in RIGHT[:400]])
    with gallery() as index, pytest.raises(EncoderError, match=r"dimension 5, but .* 12\."):
        GalleryMatcher(other, index)


@pytest.mark.parametrize("numbers", [None, list(range(N))])
def test_ids_are_compared_as_text(numbers):
    with gallery(ids=[str(i) for i in range(N)]) as index:
        matcher = GalleryMatcher(fitted(numbers), index)
        found = matcher.match(QUERIES[405], MatchOptions(threshold=0.0, limit=3))
        assert str(RIGHT[405]) in found.hits.ids


def test_items_that_the_calibrator_does_not_know():
    with gallery() as index:
        for calibrator in (fitted(), fitted([f"other {i}" for i in range(N)])):
            with pytest.raises(UnknownItemError, match=r"such as 'item .*MatchCalibrator\.append"):
                GalleryMatcher(calibrator, index).match(QUERIES[0])
    calibrator = fitted(IDS)
    with gallery() as index:
        new = VonMisesFisher(normalize(torch.from_numpy(QUERIES[:1])), torch.ones(1))
        index.append(new, ["new"], {"size": [0]})
        with pytest.raises(
            UnknownItemError, match="1 of these items of the gallery, such as 'new'"
        ):
            GalleryMatcher(calibrator, index).match(QUERIES[0])
        calibrator.append(QUERIES[:1], ["new"])
        found = GalleryMatcher(calibrator, index).match(QUERIES[0], MatchOptions(threshold=0.0))
        assert "new" in found.hits.ids
    for hostile in ("-1", "٣", "1e1", "0x1", "01", "9" * 30, " 1", ""):
        with pytest.raises(UnknownItemError), gallery() as index:
            GalleryMatcher(fitted(), index).rows_of([hostile])


def test_a_gallery_with_fewer_items_than_neighbours():
    with gallery(rows=4) as index:
        found = GalleryMatcher(fitted(IDS), index).match("item 1", MatchOptions(threshold=0.0))
    assert sorted(found.hits.ids) == ["item 0", "item 2", "item 3"]


def test_what_cannot_be_asked(matcher):
    for options in (
        {"threshold": 0.5, "precision": 0.5},
        {"precision": 0.5, "recall": 0.5},
        {"threshold": 1.5},
        {"threshold": float("nan")},
        {"abstain": -0.1},
        {"limit": 0},
    ):
        with pytest.raises(InvalidInputError):
            MatchOptions(**options)
    for options in ({"precision": 1.0}, {"recall": 0.0}):
        with pytest.raises(InvalidInputError):
            matcher.match(QUERIES[0], MatchOptions(**options))
    mixture = MixtureVMF(torch.ones(2) / 2, torch.from_numpy(MU[:2]), torch.ones(2))
    with pytest.raises(InvalidInputError, match="mixture"):
        matcher.match(mixture)
    with pytest.raises(InvalidInputError, match="dimension 3"):
        matcher.match(np.ones(3))
    with pytest.raises(InvalidInputError, match="does not exist"):
        matcher.match("nobody")
