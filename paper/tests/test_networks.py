"""The networks of the CIFAR-10H experiments."""

import pytest
import torch

from aureole.models import KappaFromNorm
from aureole_paper.networks import KappaFromPrototypes, ResNet18


def test_a_resnet18_has_512_features():
    network = ResNet18().eval()
    assert network(torch.rand(2, 3, 32, 32)).shape == (2, network.n_out) == (2, 512)


def test_variances_of_two_doubts_add():
    head = KappaFromPrototypes(6, 16, n_prototypes=10)
    features = torch.randn(40, 6)
    head.initialise(features, kappa=20.0)
    shares = torch.softmax(head.votes(features) / 4.0, -1)
    mean = shares @ torch.nn.functional.normalize(head.prototypes, dim=-1)
    r = mean.norm(dim=-1)
    by_norm = KappaFromNorm.forward(head, features).kappa
    expected = 1 / (1 / by_norm + (1 - r**2) / (r * (16 - r**2)))
    torch.testing.assert_close(head(features).kappa, expected)


def test_votes_for_one_prototype_leave_the_norms_kappa():
    head = KappaFromPrototypes(6, 16, n_prototypes=3)
    with torch.no_grad():
        head.votes.weight.zero_()
        head.votes.bias.copy_(torch.tensor([0.0, 400.0, 0.0]))
    features = torch.randn(8, 6, requires_grad=True)
    found = head(features)
    torch.testing.assert_close(found.kappa, KappaFromNorm.forward(head, features).kappa)
    found.kappa.sum().backward()
    assert bool(features.grad.isfinite().all())


def test_a_prototype_heads_gradient():
    head = KappaFromPrototypes(3, 4, n_prototypes=6).double()
    features = torch.randn(3, 3, dtype=torch.float64)

    def kappa(scale, weight):
        head.log_scale.data, head.log_weight.data = scale.detach(), weight.detach()
        seen = torch.func.functional_call(
            head, {"log_scale": scale, "log_weight": weight}, features
        )
        return seen.kappa

    start = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.3, -0.2)]
    with pytest.MonkeyPatch.context() as patch:  # the head works in float32; check it in float64
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        assert torch.autograd.gradcheck(kappa, start)
