"""What version 0.1.0 wrote still opens, and its names still import."""

import importlib
import json
import shutil
from pathlib import Path

import pytest
import torch

import aureole as au
from aureole.records import read_record

SAMPLES = Path(__file__).parent / "samples" / "v0_1"
EXPECTED = json.loads((SAMPLES / "expected.json").read_text())
# what the package __init__ files of 0.1.0 exported
NAMES = {
    "aureole": "ELK ClosedFormInfoNCE ConformalMass CredibleIndex FrozenHead HedgedInstance InfoNCE KappaFromNorm "
    "KappaFromPrototypes MCInfoNCE MixtureHead MixtureVMF PosteriorEncoder SphereUniform VonMisesFisher __version__ "
    "errors expected_positivity fuse log_expected_positivity losses models sphere",
    "aureole.cli": "main",
    "aureole.data": "DrawnShapes PairBatch Triplets drawn_shapes",
    "aureole.data.processes": "VMF BimodalProcess ControlledProcess Dirac Family Gaussian Generator Laplace Rule "
    "draw_generator",
    "aureole.distributions": "MixtureVMF SphereUniform VonMisesFisher expected_positivity fuse "
    "log_expected_positivity unit_sphere",
    "aureole.evaluation": "area_under_rejection augrc aurc average_ranks latent_coverage nearest_label_matches "
    "oracle_area partner_coverage r_auroc recall_at_1 recovery rejection_curve spearman split_half_rank vote_ceiling",
    "aureole.heads": "MINILM_CAPTIONS find_model",
    "aureole.losses": "ELK ClosedFormInfoNCE ContrastiveLoss HedgedInstance InfoNCE MCInfoNCE Negatives "
    "gather_posteriors profile_kappa_pos resolve_negatives",
    "aureole.models": "Card CifarResNet Ensemble ImageFeatures IndependentEncoder KappaFromNorm KappaFromPrototypes "
    "MirroredViews MixtureEncoder MixtureHead PaperEncoder PosteriorEncoder ResNet18 ResidualMLP SharedEncoder "
    "TextFeatures mean_pool model_card paper_mlp",
    "aureole.retrieval": "ConformalMass CredibleIndex Hits Recall cap_cosine class_entropy latent_in_cap "
    "positive_probability too_wide union_cosines",
    "aureole.scale": "EmbedReport Failure embed launch sweep",
    "aureole.serve": "Client ServiceError",
    "aureole.sphere": "align bessel_ratios cap_angle cap_height cap_mass cap_mass_slope cosine_cdf cosine_log_pdf "
    "cosine_quantile entropy information inverse_mean_resultant_length log_bessel_i log_normalizer "
    "log_pair_likelihood log_positivity log_scaled_normalizer log_sphere_area mean_resultant_complement "
    "mean_resultant_length mean_resultant_slope normalize pairwise_positivity predictive_angle predictive_log_pdf "
    "predictive_mass reflect transverse_variance unit_tolerance wrap",
    "aureole.training.adapters": "LightlyLoss MetricLearningLoss SentencePairLoss SentencePosterior encode_posterior "
    "load_pipeline minilm posterior_of save_pipeline",
    "aureole.training.adapters.sentence_transformers": "SentencePosterior",
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("module", NAMES)
def test_names_of_version_0_1_still_import(module):
    owner = importlib.import_module(module)
    assert [name for name in NAMES[module].split() if not hasattr(owner, name)] == []


def test_a_name_that_moved_warns_with_its_new_place():
    processes = importlib.import_module("aureole.data.processes")
    with pytest.warns(
        DeprecationWarning, match=r"is now aureole\.data\.Laplace; .* removed in 0\.3"
    ):
        assert processes.Laplace is au.data.Laplace
    with pytest.raises(AttributeError, match=r"aureole\.data has no 'nothing'"):
        processes.nothing  # noqa: B018


def test_a_head_opens():
    posterior = au.FrozenHead.load(SAMPLES / "head").predict(torch.tensor(EXPECTED["vectors"]))
    torch.testing.assert_close(posterior.mu, torch.tensor(EXPECTED["head_mu"]))
    torch.testing.assert_close(
        posterior.kappa, torch.tensor(EXPECTED["head_kappa"]), rtol=1e-4, atol=0
    )


def test_an_encoder_opens():
    encoder = au.PosteriorEncoder.load(SAMPLES / "encoder").eval()
    with torch.no_grad():
        posterior = encoder(torch.tensor(EXPECTED["inputs"]))
    torch.testing.assert_close(posterior.mu, torch.tensor(EXPECTED["encoder_mu"]))
    torch.testing.assert_close(posterior.kappa, torch.tensor(EXPECTED["encoder_kappa"]))


@pytest.mark.parametrize("engine", ["lance", "faiss"])
def test_a_gallery_opens(engine, tmp_path):
    address = shutil.copytree(SAMPLES / f"gallery.{engine}", tmp_path / f"gallery.{engine}")
    query = au.VonMisesFisher(
        torch.tensor(EXPECTED["head_mu"][:1]), torch.tensor(EXPECTED["head_kappa"][:1])
    )
    with au.CredibleIndex.open(str(address)) as index:
        (hits,) = index.search(query, mass=0.9)
    assert [str(name) for name in hits.ids] == EXPECTED["hits"][engine]


def test_a_record_opens():
    assert read_record(SAMPLES / "record.json").metrics == {"error": 0.25}
