"""Posterior encoders: learning rates and precision."""

import pytest
import torch

from aureole.errors import InvalidInputError
from aureole.models import (
    CifarResNet,
    KappaFromNorm,
    MixtureHead,
    PosteriorEncoder,
)


def test_an_encoder_trains_its_head_faster_and_both_parts_at_once():
    encoder = PosteriorEncoder(torch.nn.Linear(4, 6), KappaFromNorm(6, 3), head_rate=3.0)
    rates = [(len(group["params"]), group["lr"]) for group in encoder.parameter_groups(0.01)]
    assert rates == [(2, 0.01), (3, pytest.approx(0.03))]
    encoder.backbone.requires_grad_(False)
    assert len(list(encoder.parameter_groups(0.01))) == 1
    encoder.enter("joint")
    with pytest.raises(InvalidInputError, match="jointly"):
        encoder.enter("mu")


@pytest.mark.parametrize("backbone", [CifarResNet(8), torch.nn.Flatten()], ids=["cnn", "flat"])
def test_an_encoder_in_double_precision_has_posteriors_in_double_precision(backbone):
    n_in = 64 if isinstance(backbone, CifarResNet) else 3 * 32 * 32
    images = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    for head in (
        KappaFromNorm(n_in, 5),
        MixtureHead(n_in, 5, n_components=2),
    ):
        posterior = PosteriorEncoder(backbone, head).double()(images)
        assert posterior.mu.dtype == posterior.kappa.dtype == torch.float64
        torch.testing.assert_close(
            posterior.mu.norm(dim=-1), torch.ones_like(posterior.kappa), rtol=0, atol=1e-14
        )
