"""Normalising, reflecting, wrapping and aligning."""

import functools

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from aureole import sphere
from aureole.errors import InvalidInputError
from aureole.sphere._geometry import reflect, wrap


def directions(n, dim, dtype=torch.float64):
    """Random unit vectors and both poles."""
    poles = torch.eye(dim, dtype=dtype)[:1]
    return torch.cat([sphere.normalize(torch.randn(n, dim, dtype=dtype)), poles, -poles])


@pytest.mark.parametrize(
    ("bad", "kind"), [(0.0, "zero"), (float("inf"), "infinite"), (float("nan"), "NaN")]
)
def test_normalize_names_the_vector_without_direction(bad, kind):
    vectors = torch.ones(4, 3, 2)
    vectors[2, 1] = bad
    with pytest.raises(InvalidInputError, match=rf"vectors\[2, 1\].*it is {kind}.*1 of 12"):
        sphere.normalize(vectors)


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1.0, 1e30, 1e300])
def test_normalize_keeps_huge_and_tiny_vectors(scale):
    vectors = torch.randn(5, 7, dtype=torch.float64)
    expected = vectors / vectors.norm(dim=-1, keepdim=True)
    assert torch.allclose(sphere.normalize(vectors * scale), expected, rtol=1e-14)


def test_normalize_gradient():
    assert gradcheck(sphere.normalize, (torch.randn(3, 4, dtype=torch.float64).requires_grad_(),))


@pytest.mark.parametrize("dim", [2, 3, 10])
def test_reflect_is_orthogonal_symmetric_and_takes_e1_to_mu(dim):
    mu = directions(20, dim)
    matrix = reflect(torch.eye(dim, dtype=torch.float64), mu.unsqueeze(-2))
    assert torch.allclose(matrix[:, 0], mu, atol=1e-15)
    assert torch.allclose(matrix, matrix.mT, atol=1e-15)
    assert torch.allclose(matrix @ matrix, torch.eye(dim, dtype=torch.float64), atol=1e-14)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_reflect_is_smooth_at_the_poles(sign):
    """Close to either pole the map moves by no more than mu does."""
    mu = torch.tensor([sign, 0.0, 0.0], dtype=torch.float64)
    near = sphere.normalize(mu + 1e-9 * torch.randn(100, 3, dtype=torch.float64))
    point = sphere.normalize(torch.randn(3, dtype=torch.float64))
    moved = reflect(point.expand(100, 3), near) - reflect(point, mu)
    assert moved.norm(dim=-1).max() < 1e-8
    mu.requires_grad_()
    assert gradcheck(functools.partial(reflect, point), (mu,))


@pytest.mark.parametrize("dim", [2, 3, 10])
def test_wrap_is_the_reflection_of_angle_and_normals(dim):
    mu = directions(4, dim).requires_grad_()
    angle = (torch.rand(5, 6, dtype=torch.float64) * 3).requires_grad_()
    normals = torch.randn(5, 6, dim - 1, dtype=torch.float64)
    normals[2, 3] = 0  # stands for the first tangent direction
    points = wrap(normals, angle, mu)
    filled = normals.clone()
    filled[2, 3, 0] = 1
    tangent = filled / filled.norm(dim=-1, keepdim=True)
    flat = torch.cat([angle.cos().unsqueeze(-1), angle.sin().unsqueeze(-1) * tangent], dim=-1)
    assert torch.allclose(points, reflect(flat, mu), atol=1e-14)
    assert torch.allclose((points * mu).sum(-1), angle.cos(), atol=1e-14)
    fixed = functools.partial(wrap, normals)
    assert gradcheck(fixed, (angle, mu))
    assert gradgradcheck(fixed, (angle, mu))


@pytest.mark.parametrize("needs", ["angle", "mu"])
def test_second_derivatives_where_only_one_needs_a_gradient(needs):
    normals = torch.randn(5, 3, 2, dtype=torch.float64)
    given = {"angle": torch.rand(5, 3, dtype=torch.float64) + 0.2, "mu": directions(1, 3)}
    leaf = given[needs].requires_grad_()

    def points(x):
        return wrap(normals, **{**given, needs: x})

    assert gradgradcheck(points, (leaf,))
    (first,) = torch.autograd.grad(points(leaf).pow(3).sum(), leaf, create_graph=True)
    assert torch.autograd.grad(first.square().sum(), leaf)[0].abs().max() > 0


@pytest.mark.parametrize("shape", [(), (1,), (3,), (4, 1), (1, 3), (5, 1, 1), (1, 4, 3)])
def test_wrap_broadcasts_mu_forward_and_back(shape):
    normals = torch.randn(5, 4, 3, 2, dtype=torch.float64)
    angle = (torch.rand(5, 4, 3, dtype=torch.float64) + 0.2).requires_grad_()
    mu = sphere.normalize(torch.randn(*shape, 3, dtype=torch.float64)).requires_grad_()
    wide = wrap(normals, angle, mu.expand(5, 4, 3, 3))
    assert torch.equal(wrap(normals, angle, mu), wide)
    assert gradcheck(functools.partial(wrap, normals), (angle, mu))
    assert gradgradcheck(functools.partial(wrap, normals), (angle, mu))


@pytest.mark.parametrize("shape", [(2, 3), (4, 3), (2, 5, 3)])
def test_wrap_names_a_mu_that_does_not_fit(shape):
    with pytest.raises(InvalidInputError, match="does not broadcast to the angles"):
        wrap(torch.randn(5, 2), torch.rand(5), torch.ones(shape))


def test_wrap_gradient_by_blocks_is_the_whole_gradient(monkeypatch):
    normals = torch.randn(7, 3, 4)
    angle, mu = torch.rand(7, 3, requires_grad=True), directions(1, 5, torch.float32)
    mu.requires_grad_()
    weight = torch.randn(7, 3, 5)

    def gradients():
        return torch.autograd.grad((wrap(normals, angle, mu) * weight).sum(), (angle, mu))

    whole = gradients()
    monkeypatch.setattr("aureole.sphere._geometry._BLOCK", 30)
    for a, b in zip(whole, gradients(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_wrap_gradient_is_finite_at_angle_zero_and_pi():
    mu = directions(2, 6).requires_grad_()
    angle = torch.tensor([0.0, 1e-12, torch.pi, 1.0], dtype=torch.float64, requires_grad=True)
    points = wrap(torch.randn(4, 5, dtype=torch.float64), angle, mu)
    for grad in torch.autograd.grad((points * torch.randn_like(points)).sum(), (angle, mu)):
        assert torch.isfinite(grad).all()


@pytest.mark.parametrize("flip", [1.0, -1.0])
def test_align_finds_the_orthogonal_map(flip):
    truth, _ = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))
    truth[0] *= flip
    source = sphere.normalize(torch.randn(200, 6, dtype=torch.float64))
    target = sphere.normalize(source @ truth.T + 0.01 * torch.randn(200, 6, dtype=torch.float64))
    found = sphere.align(source, target)
    assert torch.allclose(found @ found.T, torch.eye(6, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(found, truth, atol=0.01)


def test_align_rejects_unequal_sets():
    with pytest.raises(InvalidInputError, match=r"\(3, 2\) and \(4, 2\)"):
        sphere.align(torch.ones(3, 2), torch.ones(4, 2))
