"""Posteriors pooled over views and ensemble members."""

import pytest
import torch

from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.models import (
    CifarResNet,
    KappaFromNorm,
    PosteriorEncoder,
)
from aureole_paper.pooled import Ensemble, MirroredViews, pool


def test_views_that_agree_keep_kappa_and_views_that_do_not_lose_it():
    q = VonMisesFisher(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), 5.0)
    same = pool([q, q])
    torch.testing.assert_close(same.kappa, q.kappa)
    torch.testing.assert_close(same.mu, q.mu)
    other = VonMisesFisher(q.mu.flip(0), 5.0)
    torch.testing.assert_close(pool([q, other]).kappa, torch.full((2,), 5.0 / 2**0.5))


def test_one_view_stays_as_it_is():
    only = VonMisesFisher(torch.eye(3)[0], 5.0)
    assert pool([only]) is only
    with pytest.raises(InvalidInputError):
        pool([])


def test_mirrored_views_see_an_image_and_its_mirror_image_alike():
    encoder = PosteriorEncoder(CifarResNet(8), KappaFromNorm(64, 3)).eval()
    views = MirroredViews(encoder)
    images = torch.rand(4, 3, 32, 32)
    one, two = views(images), views(images.flip(-1))
    torch.testing.assert_close(one.kappa, two.kappa)
    assert not torch.allclose(one.kappa, encoder(images).kappa)


def test_an_ensemble_turns_its_members_to_the_first():
    head, features = KappaFromNorm(6, 3), torch.randn(200, 6)
    twin = KappaFromNorm(6, 3)
    turn = torch.linalg.qr(torch.randn(3, 3))[0]
    with torch.no_grad():
        twin.linear.weight.copy_(turn @ head.linear.weight)
        twin.linear.bias.copy_(turn @ head.linear.bias)
    pooled, single = Ensemble([head, twin], features)(features), head(features)
    torch.testing.assert_close(pooled.mu, single.mu, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(pooled.kappa, single.kappa)
