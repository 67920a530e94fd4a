"""Near duplicates: planted copies are found, coincidences are not, and what is refused."""

import difflib
import math

import numpy as np
import pytest

from aureole.data import TextEditor, edit_picture, words_of
from aureole.errors import InvalidInputError
from aureole.retrieval import find_near_duplicates
from aureole.retrieval._copy_probability import coincidences, copy_shares, cut, decreasing
from aureole.retrieval._pair_closeness import changed_words

COPIED = 40


def vectors_with_copies(rng, rows=2000, dim=12, noise=0.02):
    """A gallery whose last rows are noisy copies of its first, and examples of such copies."""
    gallery = rng.standard_normal((rows, dim))
    gallery[-COPIED:] = gallery[:COPIED] + noise * rng.standard_normal((COPIED, dim))
    originals = rng.choice(np.arange(COPIED, rows - COPIED), 300, replace=False)
    copies = gallery[originals] + noise * rng.standard_normal((300, dim))
    return gallery, copies, originals


def planted(rows):
    return {(row, rows - COPIED + row) for row in range(COPIED)}


def sentences(rng, count, length=14, vocabulary=60):
    """Sentences in which some words are frequent, so that close pairs occur by chance."""
    share = 1 / np.arange(1, vocabulary + 1)
    draws = rng.choice(vocabulary, (count, length), p=share / share.sum())
    return [" ".join(f"w{word}" for word in row) for row in draws]


def bag_vectors(texts, vocabulary=60):
    """Counts of words: an encoder of these sentences."""
    out = np.full((len(texts), vocabulary), 0.01)
    for row, text in enumerate(texts):
        for word in words_of(text):
            out[row, int(word[1:])] += 1
    return out


def text_gallery(seed, each=30, count=1500):
    """(Texts with planted copies, the planted pairs by number of changed words)."""
    rng = np.random.default_rng(seed)
    texts = sentences(rng, count)
    kinds = {}
    for row in range(4 * each):
        words = texts[row].split()
        changed = row % 4
        for at in rng.choice(len(words), changed, replace=False):
            words[at] = f"w{(int(words[at][1:]) + 1 + rng.integers(58)) % 60}"
        kinds[row, len(texts)] = changed
        texts.append(" ".join(words))
    return texts, kinds


def found_in(texts, seed=0, **options):
    rng = np.random.default_rng(seed)
    editor = TextEditor(texts, rng)
    originals = rng.permutation(len(texts))[:800]
    copies = [editor.edit(texts[row], int(rng.integers(4))) for row in originals]
    return find_near_duplicates(
        bag_vectors(texts),
        bag_vectors(copies),
        originals,
        texts=texts,
        copy_texts=copies,
        **options,
    )


@pytest.mark.parametrize("seed", range(3))
def test_copies_of_vectors_are_found_and_nothing_else(seed):
    gallery, copies, originals = vectors_with_copies(np.random.default_rng(seed))
    found = find_near_duplicates(gallery, copies, originals)
    pairs = {tuple(pair) for pair in found.pairs.tolist()}
    assert len(pairs & planted(len(gallery))) >= 0.9 * COPIED
    assert len(pairs - planted(len(gallery))) <= 1
    assert found.edited_copies == pytest.approx(COPIED, abs=5)
    assert found.expected_precision >= 0.99
    assert not found.equal.any()


def test_a_gallery_without_copies_has_none():
    rng = np.random.default_rng(0)
    gallery, copies, originals = vectors_with_copies(rng)
    found = find_near_duplicates(gallery[:-COPIED], copies, originals)
    assert len(found.pairs) == 0
    assert found.groups == []
    assert found.edited_copies < 2
    assert math.isnan(found.expected_precision)


def test_equal_vectors_are_reported_and_grouped():
    rng = np.random.default_rng(0)
    gallery, copies, originals = vectors_with_copies(rng)
    gallery[[5, 700, 900]] = 3 * gallery[100]  # the length of a vector does not matter
    found = find_near_duplicates(gallery, copies, originals)
    assert [5, 100, 700, 900] in [group.tolist() for group in found.groups]
    equal = found.pairs[found.equal].tolist()
    assert [5, 100] in equal
    assert (found.probabilities[found.equal] == 1).all()


def test_a_thousand_equal_rows_are_one_group():
    rng = np.random.default_rng(0)
    gallery = np.concatenate([rng.standard_normal((500, 8)), np.ones((1000, 8))])
    copies = gallery[:50] + 0.01 * rng.standard_normal((50, 8))
    found = find_near_duplicates(gallery, copies, np.arange(50))
    assert len(found.groups[0]) == 1000


@pytest.mark.parametrize("seed", range(3))
def test_texts_keep_their_precision(seed):
    texts, kinds = text_gallery(seed)
    for asked in (0.99, 0.9):
        found = found_in(texts, precision=asked)
        edited = [tuple(pair) for pair in found.pairs[~found.equal].tolist()]
        right = np.mean([pair in kinds for pair in edited])
        assert right >= asked - 0.04
        assert found.expected_precision >= asked
        pairs = {tuple(pair) for pair in found.pairs.tolist()}
        recall = [np.mean([p in pairs for p in kinds if kinds[p] == k]) for k in range(4)]
        assert recall[0] == 1
        assert recall[1] > 0.9
    assert found.edited_copies == pytest.approx(90, abs=20)
    assert {level.limit for level in found.profile} == {1, 2, 3}


def test_texts_without_copies():
    found = found_in(sentences(np.random.default_rng(5), 1500))
    assert (~found.equal).sum() <= 1
    assert found.edited_copies < 5


def test_case_and_punctuation_do_not_count():
    texts, _ = text_gallery(0)
    texts = [*texts, texts[700].upper() + "!"]
    found = found_in(texts)
    assert [700, len(texts) - 1] in found.pairs[found.equal].tolist()
    assert (found.changed_words[found.equal] == 0).all()


def test_pairs_of_people_can_be_left_out():
    gallery, copies, originals = vectors_with_copies(np.random.default_rng(0))
    found = find_near_duplicates(gallery, copies, originals)
    one = found.pairs[:1]
    less = found.without(one[:, ::-1])
    assert len(less.pairs) == len(found.pairs) - 1
    assert one[0].tolist() not in less.pairs.tolist()
    assert len(less.groups) == len(found.groups) - 1
    assert len(found.without(np.zeros((0, 2), int)).pairs) == len(found.pairs)


def test_blocks_and_order_do_not_matter(monkeypatch):
    gallery, copies, originals = vectors_with_copies(np.random.default_rng(1))
    whole = find_near_duplicates(gallery, copies, originals)
    monkeypatch.setattr("aureole.retrieval._near_duplicates._BLOCK", 7 * len(gallery))
    done = []
    parts = find_near_duplicates(gallery, copies, originals, observer=done.append)
    assert parts.pairs.tolist() == whole.pairs.tolist()
    assert done[-1] == len(gallery)
    assert (np.diff(parts.probabilities) <= 0).all()


def slow_changes(one, two):
    """The same by a full table of longest common subsequences."""
    table = np.zeros((len(one) + 1, len(two) + 1), int)
    for i, a in enumerate(one):
        for j, b in enumerate(two):
            here = table[i, j] + 1 if a == b else 0
            table[i + 1, j + 1] = max(here, table[i, j + 1], table[i + 1, j])
    return max(len(one), len(two)) - table[-1, -1]


def test_changed_words_against_a_slow_loop():
    rng = np.random.default_rng(0)
    for _ in range(400):
        one, two = (list(rng.choice(list("abcd"), rng.integers(0, 9))) for _ in range(2))
        truth = slow_changes(one, two)
        for most in (0, 1, 3, 9):
            assert changed_words(one, two, most) == min(truth, most + 1)
    long = [str(i) for i in range(3000)]
    assert changed_words(long, [*long[:1500], "x", *long[1501:]], 3) == 1


def test_coincidences_against_a_grid():
    rng = np.random.default_rng(0)
    steps = np.arange(4)[:, None]
    counts = rng.poisson(np.array([3.0, 40.0, 9.0]) * np.exp(0.7 * steps)).astype(float)
    used = np.ones((4, 3), bool)
    used[2:, 0] = False

    def posterior(b):
        rate = np.exp(b * steps) * used
        level = (counts * used).sum(0) / rate.sum(0)
        log_rate = np.log(np.where(used, rate * level, 1.0))
        return (counts * used * log_rate).sum() - (rate * level).sum() - (b - 1) ** 2 / 2

    grid = np.linspace(0, 2, 20001)
    b, level = coincidences(counts, used)
    assert b == pytest.approx(grid[np.argmax([posterior(x) for x in grid])], abs=2e-4)
    assert (level > 0).all()


def test_shares_are_the_excess():
    observed, expected = np.array([[100], [50], [0], [3]]), np.array([[10.0], [50.0], [1.0], [9.0]])
    share, copies = copy_shares(observed, expected, np.ones((4, 1), int))
    np.testing.assert_allclose(share[:, 0], [0.9, 0, 0, 0], atol=0.03)
    assert copies == pytest.approx(90, abs=2)


def test_cut_and_decreasing():
    rng = np.random.default_rng(0)
    for _ in range(50):
        p = rng.choice([0.0, 0.2, 0.5, 0.8, 0.95, 1.0], 30)
        at = cut(p, 0.8)
        kept = p[(p >= at) & (p > 0)]
        assert len(kept) == 0 or kept.mean() >= 0.8 - 1e-9
        lower = sorted(x for x in set(p[p > 0]) if x < at)
        assert all(p[p >= x].mean() < 0.8 + 1e-9 for x in lower)
    assert cut(np.zeros(3), 0.5) == math.inf
    values = decreasing(np.array([0.1, 0.9, 0.4, 0.6]), np.array([1.0, 1.0, 2.0, 2.0]))
    np.testing.assert_allclose(values, [0.5, 0.5, 0.5, 0.5])


HOSTILE = {
    "precision": ({"precision": 1.0}, "precision must lie between 0 and 1"),
    "NaN precision": ({"precision": math.nan}, "precision must lie between"),
    "neighbours": ({"neighbours": 0}, "neighbours must be at least 1"),
    "texts alone": ({"texts": ["a"] * 2000}, "copy_texts are missing"),
    "too few texts": ({"texts": ["a"], "copy_texts": ["a"] * 300}, "texts has 1 entries"),
    "no strings": ({"texts": [None] * 2000, "copy_texts": ["a"] * 300}, "must be a string"),
    "no rows": ({"originals": np.full(300, 5000)}, "rows from 5000 to 5000"),
    "negative rows": ({"originals": np.full(300, -1)}, "rows from -1"),
    "real rows": ({"originals": np.full(300, 1.5)}, "one row number per copy"),
    "lengths": ({"originals": np.arange(3)}, "one row number per copy"),
    "NaN": ({"copies": np.full((300, 12), np.nan)}, "row 0 of copies is zero or not finite"),
    "dimension": ({"copies": np.ones((300, 5))}, "dimension 12, but copies have 5"),
    "one row": ({"vectors": np.ones((1, 12)), "originals": np.zeros(300, int)}, "has no pairs"),
    "few": ({"copies": np.ones((3, 12)), "originals": np.arange(3)}, "at least 20 examples"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_refused(name):
    gallery, copies, originals = vectors_with_copies(np.random.default_rng(0))
    given = {"vectors": gallery, "copies": copies, "originals": originals} | HOSTILE[name][0]
    with pytest.raises(InvalidInputError, match=HOSTILE[name][1]):
        find_near_duplicates(**given)


@pytest.mark.parametrize(
    "text", ["", "   ", "!!!", "a", "犬が走る", "\0\ud800", "x" * 50_000, '=1+1\n,"']
)
def test_edits_of_hostile_texts(text):
    editor = TextEditor([text, "some words to draw from"], np.random.default_rng(0))
    for words in range(4):
        for _ in range(20):
            copy = editor.edit(text, words)
            assert isinstance(copy, str)
            assert copy.strip() or not text.strip()
    words_of(text)


def test_edits_change_so_many_words():
    texts = sentences(np.random.default_rng(0), 50)
    editor = TextEditor(texts, np.random.default_rng(1))
    for words in range(4):
        for text in texts:
            one, two = words_of(text), words_of(editor.edit(text, words))
            assert changed_words(one, two, 5) <= words
            assert difflib.SequenceMatcher(None, one, two, autojunk=False).ratio() > 0.5
    one, other = (TextEditor(texts, np.random.default_rng(2)) for _ in range(2))
    words = other.rng.integers(4, size=len(texts)).tolist()
    assert one.edit_all(texts) == list(map(other.edit, texts, words))
    with pytest.raises(InvalidInputError, match="no words"):
        TextEditor(["", " "], np.random.default_rng(0))


@pytest.mark.parametrize("size", [(1, 1), (2, 300), (64, 48)])
def test_edits_of_pictures(size):
    pillow = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    picture = pillow.fromarray(rng.integers(0, 255, (*size, 3), np.uint8))
    for _ in range(10):
        copy = edit_picture(picture, rng)
        assert all(0.8 * a - 2 <= b <= a for a, b in zip(picture.size, copy.size, strict=True))
        assert copy.mode == "RGB"
    with pytest.raises(InvalidInputError):
        edit_picture(b"no picture", rng)
