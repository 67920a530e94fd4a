"""Backbones of transformers."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import aureole as au
from aureole.errors import InvalidInputError
from aureole.models import KappaFromNorm, PosteriorEncoder, TextFeatures
from aureole.models._feature_extractors import mean_pool


def pooled_by_a_loop(states, mask):
    rows = []
    for row, kept in zip(states, mask, strict=True):
        total, count = torch.zeros(states.shape[-1], dtype=states.dtype), 0
        for state, keep in zip(row, kept, strict=True):
            if keep:
                total, count = total + state, count + 1
        rows.append(total / count)
    return torch.stack(rows)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_the_mean_over_a_mask_matches_a_loop(dtype):
    states = torch.randn(6, 9, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(6, 9) < 0.5
    mask[:, 3] = True
    found, expected = mean_pool(states, mask.to(dtype)), pooled_by_a_loop(states, mask)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    one, two = (torch.autograd.grad((v * weights).sum(), states)[0] for v in (found, expected))
    torch.testing.assert_close(one, two)


def test_padding_does_not_enter_whatever_it_holds():
    states = torch.randn(2, 3, 4)
    states[0, 1:] = torch.nan
    states[1, 2] = torch.inf
    states.requires_grad_()
    found = mean_pool(states, torch.tensor([[1, 0, 0], [1, 1, 0]]))
    torch.testing.assert_close(found[0], states[0, 0])
    found.sum().backward()
    assert bool(torch.isfinite(states.grad).all())
    assert bool((states.grad[0, 1:] == 0).all())


def test_masks_that_are_none_are_refused():
    states = torch.randn(3, 2, 4)
    with pytest.raises(InvalidInputError, match="row 1 selects no token"):
        mean_pool(states, torch.tensor([[1, 0], [0, 0], [1, 1]]))
    with pytest.raises(InvalidInputError, match=r"shape \(3, 3\)"):
        mean_pool(states, torch.ones(3, 3))
    with pytest.raises(InvalidInputError, match="only 0 and 1"):
        mean_pool(states, torch.full((3, 2), 0.5))


def test_halves_are_averaged_in_full_precision():
    states = torch.full((1, 4096, 1), 0.1, dtype=torch.bfloat16)
    found = mean_pool(states, torch.ones(1, 4096, dtype=torch.long))
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(states[0, 0, 0].item(), rel=1e-4)


@pytest.fixture(scope="module")
def bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=12,
    )
    torch.manual_seed(0)
    return transformers.BertModel(config).eval()


@pytest.fixture
def batch():
    rng = torch.Generator().manual_seed(0)
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3, [1] * 2 + [0] * 6])
    return {"input_ids": torch.randint(0, 50, (3, 8), generator=rng), "attention_mask": mask}


def test_a_transformers_model_is_a_backbone(bert, batch):
    encoder = PosteriorEncoder(TextFeatures(bert), KappaFromNorm(16, 4))
    q = encoder(batch)
    assert isinstance(q, au.VonMisesFisher)
    assert q.mu.shape == (3, 4)
    by_keywords = encoder(**batch)
    assert torch.equal(q.kappa, by_keywords.kappa)
    states = bert(**batch).last_hidden_state
    expected = pooled_by_a_loop(states, batch["attention_mask"])
    torch.testing.assert_close(encoder.backbone(batch), expected)
    longer = {  # more padding changes nothing
        name: torch.cat([value, torch.zeros(3, 4, dtype=torch.long)], 1)
        for name, value in batch.items()
    }
    torch.testing.assert_close(encoder(longer).mu, q.mu, atol=1e-5, rtol=1e-5)


def test_gradients_reach_the_model(bert, batch):
    encoder = PosteriorEncoder(TextFeatures(bert), KappaFromNorm(16, 4))
    au.ClosedFormInfoNCE(10.0)(encoder(batch), encoder(batch)).backward()
    assert bert.embeddings.word_embeddings.weight.grad.abs().max() > 0
    bert.zero_grad()


def test_a_text_encoder_is_saved_and_loaded(bert, batch, tmp_path):
    encoder = PosteriorEncoder(TextFeatures(bert), KappaFromNorm(16, 4)).eval()
    folder = encoder.save(tmp_path)
    with pytest.raises(InvalidInputError, match="class 'TextFeatures'"):
        PosteriorEncoder.load(folder)
    fresh = type(bert)(bert.config)
    again = PosteriorEncoder.load(folder, backbone=TextFeatures(fresh))
    assert torch.equal(again(batch).kappa, encoder(batch).kappa)


def test_wrong_texts_are_explained(bert, batch):
    with pytest.raises(InvalidInputError, match=r"BaseModelOutput.*TextFeatures"):
        PosteriorEncoder(bert, KappaFromNorm(16, 4))(**batch)
    with pytest.raises(InvalidInputError, match="no attention_mask"):
        TextFeatures(bert)(input_ids=batch["input_ids"])
    with pytest.raises(InvalidInputError, match=r"no config\.hidden_size"):
        TextFeatures(nn.Linear(3, 4))


def test_neither_library_is_imported():
    code = (
        "import sys, aureole.models\n"
        "assert not {'timm', 'transformers', 'torchvision', 'huggingface_hub'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
