"""Heads fitted to votes: batches, held-out items, kappa against the truth, and what is refused."""

import numpy as np
import pytest
import torch

from aureole.data import Votes
from aureole.errors import InvalidInputError
from aureole.evaluation import spearman
from aureole.sphere import log_positivity
from aureole.training import FrozenHead, _frozen_head as frozen
from aureole.training._voted_items import VotedItems

CLASSES = 4


def draw(n, annotators, seed=0):
    """(Vectors, votes, the true entropy of the labels): a vector is near one class, or between two of them."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, CLASSES, n)
    second = (first + rng.integers(1, CLASSES, n)) % CLASSES
    mix = np.where(rng.random(n) < 0.5, 0.0, rng.uniform(0, 0.5, n))
    truth = np.zeros((n, CLASSES))
    truth[np.arange(n), second] = mix
    truth[np.arange(n), first] += 1 - mix
    centres = np.random.default_rng(99).normal(size=(CLASSES, 12))
    vectors = truth @ centres + 0.15 * rng.normal(size=(n, 12))
    counts = np.stack([rng.multinomial(annotators, row) for row in truth])
    entropy = -(truth * np.log(truth, where=truth > 0, out=np.zeros_like(truth))).sum(1)
    return torch.from_numpy(vectors).float(), Votes.of(counts), torch.from_numpy(entropy)


def small(**changes):
    return FrozenHead(**({"dim": 4, "steps": 60, "items": 128, "width": 32, "lr": 1e-2} | changes))


@pytest.fixture(scope="module")
def head():
    vectors, votes, _ = draw(1200, 8)
    return small().fit(vectors, votes=votes)


def test_kappa_follows_the_true_entropy_on_new_items(head):
    vectors, votes, entropy = draw(800, 2, seed=1)
    kappa = head.predict(vectors).kappa.double()
    rank = spearman(kappa, -entropy)
    two_votes = spearman(votes.agreement, -entropy)
    assert rank > 0.65
    assert rank > two_votes + 0.03


def test_a_voted_head_scores_saves_and_summarises_as_one_of_groups(head, tmp_path):
    vectors, votes, _ = draw(800, 8, seed=1)
    assert head.score(vectors, votes=votes) == pytest.approx(head.information_, abs=0.3)
    assert head.score(vectors, votes=votes) > 0.3
    assert list(head.profile(vectors, votes=votes)) == list(head.profile_)
    # a kappa_pos of few classes is low, so that the caps of partners are wide
    assert 0.85 < head.coverage(vectors, votes=votes)[0.9] < 0.99
    assert "held-out information" in head.summary()
    again = FrozenHead.load(head.save(tmp_path / "head"))
    torch.testing.assert_close(again.predict(vectors).kappa, head.predict(vectors).kappa)
    chosen = max(head.fit_.curve, key=lambda point: point["held_out"])
    assert head.information_ == chosen["information"]
    assert chosen["held_out"] == pytest.approx(chosen["information"] - chosen["agreement"])


def test_single_votes_are_learned_from_the_neighbours():
    vectors, votes, _ = draw(1200, 1)
    head = small().fit(vectors, votes=votes)
    new, _, truth = draw(800, 1, seed=1)
    assert spearman(head.predict(new).kappa.double(), -truth) > 0.45


def test_the_target_is_the_agreement_with_annotators_and_neighbours():
    vectors, votes, _ = draw(60, 3)
    counts = votes.counts.clone()
    counts[5] = torch.tensor([0, 1, 0, 0])
    votes = Votes.of(counts)
    items = VotedItems.of(votes, vectors)
    rows = torch.tensor([5, 7, 30])
    centred = torch.nn.functional.normalize(vectors - vectors.mean(0))
    for row, target in zip(rows.tolist(), items.agreement(rows).tolist(), strict=True):
        cosine = centred @ centred[row]
        cosine[row] = -2
        near = cosine.argsort(descending=True)[:10]
        expected = (votes.probabilities[near] @ votes.probabilities[row]).mean().item()
        if row != 5:
            expected = 0.6 * votes.agreement[row].item() + 0.4 * expected
        assert target == pytest.approx(expected)
    assert VotedItems.of(votes).agreement(rows) is None


def test_items_without_votes_are_not_used():
    vectors, votes, _ = draw(300, 5)
    counts = votes.counts.clone()
    counts[::3] = 0
    spoiled = vectors.clone()
    spoiled[::3] = torch.nan  # read, they would raise
    head = small(steps=3, items=64).fit(spoiled, votes=Votes.of(counts))
    assert torch.isfinite(head.predict(vectors).kappa).all()


def test_an_interrupted_fit_resumes_to_the_same_head(tmp_path):
    vectors, votes, _ = draw(300, 5)

    def stop(step, *_):
        if step >= 4:
            raise KeyboardInterrupt

    checkpoint = tmp_path / "checkpoint.safetensors"
    plain = small(steps=6, items=64).fit(vectors, votes=votes)
    with pytest.raises(KeyboardInterrupt):
        small(steps=6, items=64).fit(vectors, votes=votes, checkpoint=checkpoint, observer=stop)
    assert checkpoint.is_file()
    resumed = small(steps=6, items=64).fit(vectors, votes=votes, checkpoint=checkpoint)
    torch.testing.assert_close(plain.predict(vectors).kappa, resumed.predict(vectors).kappa)


def test_a_batch_has_pairs_in_proportion_to_the_rates_and_the_expected_number():
    vectors, votes, _ = draw(40, 6)
    items = VotedItems.of(votes, vectors)
    rng = torch.Generator().manual_seed(0)
    total, sums, expected = torch.zeros(40, 40, dtype=torch.float64), [], 0.0
    for _ in range(400):
        batch = items.batch(vectors, 40, rng)
        total.index_put_(tuple(batch.pairs.T), batch.weights, accumulate=True)
        sums.append(batch.weights.sum())
        expected = batch.expected_pairs
    rates = votes.rates().fill_diagonal_(0) * 6 / 39
    torch.testing.assert_close(total / 400, rates, atol=0.12, rtol=0.05)
    assert torch.stack(sums).mean().item() == pytest.approx(expected, rel=0.08)
    torch.testing.assert_close(batch.agreement, items.agreement(torch.arange(40)))


def test_sampled_pairs_draw_a_class_and_then_an_item():
    votes = Votes.of([[4, 0], [2, 2], [0, 4], [1, 0]])
    items, rng = VotedItems.of(votes), torch.Generator().manual_seed(0)
    seen = torch.zeros(4, 4)
    for _ in range(800):
        left, right = items.sample_pairs(16, rng)
        seen.index_put_((left, right), torch.ones(len(left)), accumulate=True)
    shares = votes.probabilities
    chance = shares @ (shares / shares.sum(0)).T / 4
    off = chance.fill_diagonal_(0) / chance.sum()
    torch.testing.assert_close((seen / seen.sum()).double(), off, atol=0.01, rtol=0)


def test_held_out_items_are_disjoint_and_halves_work():
    _, votes, _ = draw(200, 3)
    rng = torch.Generator().manual_seed(0)
    kept, held = VotedItems.of(votes).split(0.2, rng)
    assert (len(kept.members), len(held.members)) == (160, 40)
    assert sorted([*kept.members.tolist(), *held.members.tolist()]) == list(range(200))
    first, second = frozen.halves(held, rng)
    assert not set(first.members.tolist()) & set(second.members.tolist())
    rows, pairs = first.draw(10, rng)
    assert len(rows) == 10
    assert (pairs[:, 0] != pairs[:, 1]).all()


def test_what_cannot_be_learned_from_is_refused():
    vectors, votes, _ = draw(50, 3)

    def refused(match, **given):
        with pytest.raises(InvalidInputError, match=match) as caught:
            small(steps=1).fit(vectors, **given)
        assert "\n" not in str(caught.value)

    refused("either groups", votes=votes, groups=torch.zeros(50))
    refused("either groups")
    refused("counts", votes=torch.full((50, 3), -1))
    refused(
        "50 vectors need one row of votes each, but got votes on 49",
        votes=votes.take(torch.arange(49)),
    )
    refused("all votes are for 2", votes=Votes.of(np.eye(4, dtype=int)[np.full(50, 2)]))
    refused("no two of the 50 items", votes=Votes.of(np.eye(50, dtype=int)))
    few = np.zeros((50, 2), int)
    few[:3] = [[1, 1], [2, 0], [0, 3]]
    refused("3 items cannot be split: at least four", votes=Votes.of(few))


def test_hard_labels_give_the_pairs_of_classes():
    labels = torch.arange(400) % 4
    votes = Votes.from_table(range(400), labels)
    rows, pairs = VotedItems.of(votes).draw(128, torch.Generator().manual_seed(0))
    assert (labels[rows[pairs[:, 0]]] == labels[rows[pairs[:, 1]]]).all()
    assert len(pairs) == pytest.approx(6 * 128, rel=0.15)


def test_kappa_pos_is_the_effective_number_of_classes():
    """Points that coincide match as often, against random ones, as two items of one of c equal classes: c times."""
    for dim, count in ((8, 8), (16, 10), (64, 3)):
        items = VotedItems.of(Votes.of(torch.eye(count, dtype=torch.int64).repeat(4, 1)))
        point = torch.full((1,), torch.inf, dtype=torch.float64)
        one = torch.ones(1, dtype=torch.float64)
        found = log_positivity(one, point, point, items.kappa_pos(dim), dim).exp().item()
        assert found == pytest.approx(count, rel=1e-6)
