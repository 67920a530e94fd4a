"""The uniform distribution on the sphere."""

import pytest
import torch

import aureole as au
from aureole import sphere
from aureole.errors import InvalidInputError


@pytest.mark.parametrize("dim", [2, 3, 4096])
def test_it_is_the_vmf_with_kappa_zero(dim):
    u = au.SphereUniform(dim, (3,), dtype=torch.float64)
    flat = au.VonMisesFisher(sphere.normalize(torch.randn(3, dim, dtype=torch.float64)), 0.0)
    z = u.sample((5,))
    assert z.shape == (5, 3, dim)
    assert u.log_prob(z).shape == (5, 3)
    assert torch.allclose(u.log_prob(z), flat.log_prob(z))
    assert torch.allclose(u.entropy(), flat.entropy())
    assert torch.allclose(u.variance, flat.variance)
    assert torch.allclose(u.mean, flat.mean)
    assert u.expand((2, 3)).sample().shape == (2, 3, dim)
    assert u.expand((2, 3)).log_prob(z[0]).shape == (2, 3)


def test_wrong_input_is_named():
    with pytest.raises(InvalidInputError, match="at least 2"):
        au.SphereUniform(1)
    with pytest.raises(InvalidInputError, match="norm 2"):
        au.SphereUniform(2).log_prob(torch.tensor([2.0, 0.0]))
    assert sphere.log_sphere_area(2) == pytest.approx(1.8378770664)
