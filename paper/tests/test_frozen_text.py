"""Frozen text: the experiment with bags of words for an encoder."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from aureole.sphere import normalize
from aureole_paper.frozen_text import (
    SETTINGS,
    FrozenTextSetting,
    evaluate,
    photo_hits,
    train,
    views_of,
)

TINY = FrozenTextSetting("tiny", dim=8, kappa_pos=16.0, width=32, steps=60, items=128, photos=400)


def bag_of_words(sentences, name):
    """A vector per word, by its hash; a sentence is the sum of its words: an encoder of its own kind."""
    words = {word for sentence in sentences for word in sentence.lower().split()}
    vectors = {}
    for word in words:
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "little")
        vectors[word] = np.random.default_rng(seed).standard_normal(24)
    empty = np.ones(24)
    rows = [sum((vectors[w] for w in s.lower().split()), empty) for s in sentences]
    return np.array(rows, dtype=np.float32)


@pytest.mark.slow
def test_figures_of_a_head_on_bags_of_words(shared_data):
    head = train(TINY, 0, bag_of_words, folder=shared_data)
    found = evaluate(head, bag_of_words, folder=shared_data)
    assert found["recall_at_1"] > 0.03  # of a thousand photos
    assert set(found["gains"]) == {"kappa", "words", "characters", "norm"}
    assert len(found["rejection"]) == 10
    assert found["rejection"][0] == pytest.approx(found["recall_at_1"])
    assert len(found["kappa_by_caption"]) == 5
    assert found["ambient"]["pairs"] > found["ambient"]["pairs_of_equal_length"] > 100
    value, low, high = found["ambient"]["kappa"]["equal_length"]
    assert low <= value <= high
    assert found["ambient"]["words"]["equal_length"] == [0.5, 0.5, 0.5]  # ties
    assert found["chaos"]["snli"]["pairs"] == 1514
    assert found["coverage"]["0.9"] > 0.5
    assert found["extremes"]["highest"][0][1] >= found["extremes"]["lowest"][0][1]


def test_views_share_the_groups_of_their_photos(shared_data):
    by_name = {}
    for setting in SETTINGS:
        parts = by_name[setting.views] = views_of(replace(setting, photos=50), shared_data)
        for _, sentences, groups in parts:
            assert len(sentences) == len(groups)
        assert len(parts[0][1]) == 250
    _, halves, groups = by_name["dropped"][1]
    captions = by_name["dropped"][0][1]
    for half, group in zip(halves, groups, strict=True):
        own = [set(c.split()) for c in captions[5 * group : 5 * group + 5]]
        assert any(set(half.split()) <= words for words in own)
    assert by_name["stsb"][1][2].min() == 50


def test_hits_against_a_loop():
    rng = torch.Generator().manual_seed(0)
    vectors = normalize(torch.randn(30, 4, generator=rng))
    found = photo_hits(vectors)
    for k, vector in enumerate(vectors):
        photo, place = divmod(k, 5)
        others = [[5 * p + j for j in range(5) if j != place] for p in range(6)]
        cosines = [float(vector @ normalize(vectors[rows].sum(0))) for rows in others]
        assert bool(found[k]) == (cosines.index(max(cosines)) == photo)
