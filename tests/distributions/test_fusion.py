"""The product of posteriors."""

import pytest
import torch

import aureole as au
from aureole import sphere
from aureole.errors import InvalidInputError


def test_the_product_of_densities_is_the_fused_density():
    mus = sphere.normalize(torch.randn(3, 4, 6, dtype=torch.float64))
    kappas = 30 * torch.rand(3, 4, dtype=torch.float64)
    views = [au.VonMisesFisher(mu, kappa) for mu, kappa in zip(mus, kappas, strict=True)]
    fused = au.fuse(*views)
    z = sphere.normalize(torch.randn(50, 4, 6, dtype=torch.float64))
    product = sum(q.log_prob(z) for q in views) - fused.log_prob(z)
    assert torch.allclose(product, product[:1].expand_as(product), atol=1e-10)  # a constant in z
    stacked = au.fuse(au.VonMisesFisher(mus, kappas), axis=0)
    assert torch.allclose(stacked.mu, fused.mu)
    assert torch.allclose(stacked.kappa, fused.kappa)


def test_agreement_adds_and_contradiction_cancels():
    e1 = torch.eye(3, dtype=torch.float64)[0]
    a, b = au.VonMisesFisher(e1, 5.0), au.VonMisesFisher(-e1, 5.0)
    assert au.fuse(a, a, a).kappa == 15
    cancelled = au.fuse(a, b)
    assert cancelled.kappa == 0
    assert torch.equal(cancelled.mu, e1)
    flat = au.VonMisesFisher(-e1, 0.0)
    assert torch.equal(au.fuse(a, flat).mu, e1)


def test_points_outweigh_all_and_huge_kappas_do_not_overflow():
    eye = torch.eye(3, dtype=torch.float64)
    point, vague = au.VonMisesFisher(eye[0], torch.inf), au.VonMisesFisher(eye[1], 1e300)
    fused = au.fuse(vague, point)
    assert torch.equal(fused.mu, eye[0])
    assert fused.kappa == torch.inf
    assert au.fuse(vague, vague).kappa.item() == pytest.approx(2e300)


def test_gradients_are_finite_even_where_views_cancel():
    kappa = torch.tensor([5.0, 5.0], dtype=torch.float64, requires_grad=True)
    e1 = torch.eye(3, dtype=torch.float64)[0]
    fused = au.fuse(au.VonMisesFisher(torch.stack([e1, -e1]), kappa), axis=0)
    (grad,) = torch.autograd.grad(fused.kappa + fused.mu.sum(), kappa)
    assert torch.isfinite(grad).all()
    mu = sphere.normalize(torch.randn(2, 3, dtype=torch.float64)).requires_grad_()

    def natural(mu, kappa):
        q = au.fuse(au.VonMisesFisher(mu, kappa, validate_args=False), axis=0)
        return q.kappa, q.mu

    assert torch.autograd.gradcheck(natural, (mu, kappa))


def test_wrong_calls_are_explained():
    q = au.VonMisesFisher(torch.eye(3), 1.0)
    other = au.VonMisesFisher(torch.eye(4)[:3], 1.0)
    for posteriors, axis in (((), None), ((q,), None), ((q, q), 0), ((q, other), None)):
        with pytest.raises(InvalidInputError, match="fuse"):
            au.fuse(*posteriors, axis=axis)


@pytest.mark.parametrize(("shape", "axis"), [((4, 3), 2), ((4, 3), -3), ((4, 3), 5), ((), 0)])
def test_an_axis_that_the_batch_does_not_have_is_refused(shape, axis):
    q = au.VonMisesFisher(torch.eye(3)[0].expand(*shape, 3), 2.0)
    with pytest.raises(InvalidInputError, match=rf"axis of the batch.*axis={axis}"):
        au.fuse(q, axis=axis)


def test_negative_axes_count_from_the_end_and_no_views_are_refused():
    q = au.VonMisesFisher(sphere.normalize(torch.randn(4, 3, 5)), torch.rand(4, 3))
    for axis in (0, 1):
        ahead, behind = au.fuse(q, axis=axis), au.fuse(q, axis=axis - 2)
        assert torch.equal(ahead.mu, behind.mu)
        assert torch.equal(ahead.kappa, behind.kappa)
        assert ahead.batch_shape == ((3,), (4,))[axis]
    with pytest.raises(InvalidInputError, match="one view or more"):
        au.fuse(au.VonMisesFisher(torch.ones(0, 3, 5), 1.0), axis=0)
