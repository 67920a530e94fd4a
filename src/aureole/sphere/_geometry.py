r"""Unit vectors: normalising, tangents turned to a pole, and two point sets aligned up to an orthogonal map."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from aureole._validation import first_index
from aureole.errors import InvalidInputError

_BLOCK = 2**20  # entries of a block of samples in the gradient on a CPU


def unit_tolerance(dtype: torch.dtype) -> float:
    """How far from 1 the norm of a unit vector may lie: 1e-4 in float32, 1e-8 in float64.

    Examples
    --------
    >>> unit_tolerance(torch.float32)
    0.0001
    """
    return 1e-8 if dtype == torch.float64 else 1e-4


def normalize(vectors: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
    """The vectors scaled to norm 1. Zero, infinite or NaN vectors raise an error that names the first.

    The largest entry is divided out first, so norms from 1e-300 to 1e300 neither under- nor overflow.

    Examples
    --------
    >>> normalize(torch.tensor([[3.0, 4.0], [0.0, -1e-30]]))
    tensor([[ 0.6000,  0.8000],
            [ 0.0000, -1.0000]])
    >>> normalize(torch.zeros(2, 3))
    Traceback (most recent call last):
    aureole.errors.InvalidInputError: cannot normalize vectors[0] of shape (2, 3): it is zero. ...
    """
    largest = vectors.detach().abs().amax(-1, keepdim=True)
    bad = ~(torch.isfinite(largest) & (largest > 0)).squeeze(-1)
    if bool(bad.any()):
        where = first_index(bad)
        value = largest[..., 0][bad][0].item()
        kind = "zero" if value == 0 else "infinite" if value == float("inf") else "NaN"
        raise InvalidInputError(
            f"cannot normalize vectors{where} of shape {tuple(vectors.shape)}: it is {kind}. "
            f"A direction needs a finite, nonzero vector ({int(bad.sum())} of {bad.numel()} are not): "
            "drop these rows or mend what produced them."
        )
    scaled = vectors / largest
    return scaled / torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)


def unit_cosine(
    first: Float[Tensor, "... dim"], second: Float[Tensor, "... dim"]
) -> Float[Tensor, "..."]:
    """The cosine between unit vectors in float64, between -1 and 1; batches broadcast.

    The vectors' own norms, which are 1 only to rounding, are divided out. So it is as exact as the directions
    given, and its gradient is tangential.

    Examples
    --------
    >>> unit_cosine(torch.tensor([0.6, 0.8]), torch.tensor([1.0, 0.0]))
    tensor(0.6000, dtype=torch.float64)
    """
    # widened once each: of two gradients that cancel, each must not be rounded to float32 alone
    first, second = first.double(), second.double()
    first, second = (v / torch.linalg.vector_norm(v, dim=-1, keepdim=True) for v in (first, second))
    return (first * second).sum(-1).clamp(-1, 1)


def reflect(
    points: Float[Tensor, "... dim"], mu: Float[Tensor, "... dim"]
) -> Float[Tensor, "... dim"]:
    r"""The points under a symmetric orthogonal map that takes e1 to mu.

    With s = sign(mu_1) and u = e1 + s mu the map is :math:`-s (I - u u^T/(1 + |\mu_1|))`. The divisor is at least
    1, so the map is smooth at mu = e1 and at mu = -e1, where the usual reflection along e1 - mu is 0/0.
    No such map can be continuous everywhere (the hairy ball theorem); this one jumps where mu_1 = 0.

    Examples
    --------
    >>> mu = torch.tensor([0.6, 0.8])
    >>> reflect(torch.tensor([1.0, 0.0]), mu)
    tensor([0.6000, 0.8000])
    """
    first, rest = mu[..., :1], mu[..., 1:]
    sign = torch.where(first < 0, -1.0, 1.0)
    inner = (points[..., 1:] * rest).sum(-1, keepdim=True)
    along = points[..., :1] + sign * inner / (1 + first.abs())
    return torch.cat(
        [first * points[..., :1] + inner, along * rest - sign * points[..., 1:]], dim=-1
    )


def wrap(
    normals: Float[Tensor, "*sample_batch tangent"],
    angle: Float[Tensor, "*sample_batch"],
    mu: Float[Tensor, "... dim"],
) -> Float[Tensor, "*sample_batch dim"]:
    r"""The points at the given angles from mu, in the directions of the normals: normals to sphere.

    Equals ``reflect([cos(angle), sin(angle) normals / |normals|], mu)`` with D - 1 normals each, in few passes over
    memory and with a gradient in angle and mu that never divides by sin(angle). The normals are taken as
    constants; a zero vector among them stands for the first tangent direction. mu broadcasts to the angles.

    Examples
    --------
    >>> wrap(torch.tensor([[2.0], [-0.1]]), torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]))
    tensor([[ 0.8776, -0.4794],
            [ 0.8776,  0.4794]])
    """
    batch = angle.shape[max(0, angle.dim() - mu.dim() + 1) :]
    fits = len(batch) == mu.dim() - 1
    if not fits or any(own not in (1, n) for own, n in zip(mu.shape[:-1], batch, strict=True)):
        raise InvalidInputError(
            f"mu of shape {tuple(mu.shape)} does not broadcast to the angles of shape {tuple(angle.shape)}."
        )
    # broadcast here, where autograd sums the gradient back
    return _Wrap.apply(normals, angle, mu.expand(*batch, mu.shape[-1]))[0]


def place(
    normals: Float[Tensor, "*sample_batch tangent"],
    norm: Float[Tensor, "*sample_batch"],
    cosine: Float[Tensor, "*sample_batch"],
    sine: Float[Tensor, "*sample_batch"],
    mu: Float[Tensor, "*batch dim"],
    empty: Float[Tensor, "*sample_batch"] | None = None,
) -> tuple[Float[Tensor, "*sample_batch dim"], Float[Tensor, "*sample_batch"]]:
    """(Points of ``wrap``, the products of the normals with mu's last coordinates), given the normals' norms.

    Without a gradient. ``empty`` is 1 where the normals are all zero and stand for the first tangent direction.

    Examples
    --------
    >>> place(torch.tensor([2.0]), torch.tensor(2.0), torch.tensor(0.6), torch.tensor(0.8), torch.eye(2)[0])[0]
    tensor([ 0.6000, -0.8000])
    """
    first, rest = mu[..., 0], mu[..., 1:]
    sign = torch.where(first < 0, -1.0, 1.0).to(mu.dtype)
    scale = sine / norm
    inner = torch.einsum("...d,...d->...", normals, rest)
    if empty is not None:
        inner = inner + empty * rest[..., 0]
    along = cosine + sign / (1 + first.abs()) * scale * inner
    points = normals.new_empty(*cosine.shape, mu.shape[-1])
    points[..., 0] = first * cosine + scale * inner
    tangent = points[..., 1:]
    torch.mul(normals, (-sign * scale).unsqueeze(-1), out=tangent)
    tangent.addcmul_(along.unsqueeze(-1), rest)
    if empty is not None:
        tangent[..., 0] -= sign * scale * empty
    return points, inner


def align(source: Float[Tensor, "n dim"], target: Float[Tensor, "..."]) -> Float[Tensor, "dim dim"]:
    r"""The orthogonal matrix R that minimises :math:`\sum_i |R\,\mathrm{source}_i - \mathrm{target}_i|^2`.

    Orthogonal Procrustes: R = U V^T from the singular value decomposition of target^T source. A map may
    reflect as well as rotate. Apply it to row vectors as ``source @ R.T``.

    Examples
    --------
    >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    >>> points = torch.eye(2)
    >>> align(points, points @ turn.T)
    tensor([[ 0., -1.],
            [ 1.,  0.]])
    """
    if source.shape != target.shape or source.dim() != 2:
        raise InvalidInputError(
            "align needs two point sets of one shape (n, dim), row i of one belonging to row i of the other, "
            f"but got {tuple(source.shape)} and {tuple(target.shape)}."
        )
    left, _, right = torch.linalg.svd(target.T.double() @ source.double())
    return (left @ right).to(source.dtype)


class _Wrap(torch.autograd.Function):
    """The map of ``wrap``.

    With g the normals, s = sign(mu_1), b = s / (1 + |mu_1|), a = sin / |g| and m = mu_rest . g:
    z_1 = mu_1 cos + a m and z_rest = c mu_rest - s a g, where c = cos + b a m.
    """

    @staticmethod
    def forward(
        normals: Tensor, angle: Tensor, mu: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        with torch.autocast(mu.device.type, enabled=False):
            norm = torch.linalg.vector_norm(normals, dim=-1)
            # 1 where the normals are all zero: there, and as if normals[..., 0] were 1
            empty = (norm == 0).to(norm.dtype)
            norm = norm + empty
            first, rest = mu[..., 0], mu[..., 1:]
            sign = torch.where(first < 0, -1.0, 1.0).to(mu.dtype)
            cosine, scale = torch.cos(angle), torch.sin(angle) / norm
            inner = torch.einsum("...d,...d->...", normals, rest) + empty * rest[..., 0]
            along = cosine + sign / (1 + first.abs()) * scale * inner
            points = normals.new_zeros(*angle.shape, mu.shape[-1])
            points[..., 0] = first * cosine + scale * inner
            tangent = points[..., 1:]
            tangent.addcmul_(normals, (-sign * scale).unsqueeze(-1))
            tangent.addcmul_(along.unsqueeze(-1), rest)
            tangent[..., 0] -= sign * scale * empty
        return points, norm, inner, empty

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs, *output[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        normals, angle, mu, norm, inner, empty = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives, in differentiable operations
            return None, *_plain_wrap_gradient(normals, angle, mu, norm, empty, grads[0])
        with torch.autocast(mu.device.type, enabled=False):
            return None, *_wrap_gradient(normals, angle, mu, norm, inner, empty, grads[0])


def _filled(normals: Tensor, empty: Tensor) -> Tensor:
    """The normals, those that are all zero replaced by the first tangent direction."""
    return torch.cat([(normals[..., 0] + empty).unsqueeze(-1), normals[..., 1:]], -1)


def _plain_wrap_gradient(
    normals: Tensor, angle: Tensor, mu: Tensor, norm: Tensor, empty: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of ``_Wrap`` in angle and mu in differentiable operations."""
    g, first, rest = _filled(normals, empty), mu[..., 0], mu[..., 1:]
    grad_first, grad_rest = grad[..., 0], grad[..., 1:]
    sign = torch.where(first < 0, -1.0, 1.0).to(mu.dtype)
    shrink = 1 / (1 + first.abs())
    sine, cosine, m = torch.sin(angle), torch.cos(angle), (g * rest).sum(-1)
    p, q, a = (grad_rest * rest).sum(-1), (g * grad_rest).sum(-1), sine / norm
    turn = grad_first * m + sign * (shrink * m * p - q)
    grad_angle = cosine * turn / norm - sine * (first * grad_first + p)
    along = cosine + sign * shrink * a * m
    top = cosine * grad_first - a * m * shrink.square() * p
    weight = a * (grad_first + sign * shrink * p)
    tail = along.unsqueeze(-1) * grad_rest + weight.unsqueeze(-1) * g
    grad_mu = torch.cat([top.unsqueeze(-1), tail], -1)
    return grad_angle, grad_mu.sum_to_size(mu.shape)


def _wrap_gradient(
    normals: Tensor,
    angle: Tensor,
    mu: Tensor,
    norm: Tensor,
    inner: Tensor,
    empty: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of ``_Wrap`` in angle and mu, by blocks of samples whose temporaries fit the cache."""
    batch = mu.shape[:-1]
    lead = angle.shape[: angle.dim() - len(batch)]
    n_samples = math.prod(lead)
    normals, grad = (x.reshape(n_samples, *batch, x.shape[-1]) for x in (normals, grad))
    angle_, norm, inner, empty = (x.reshape(n_samples, *batch) for x in (angle, norm, inner, empty))
    first, rest = mu[..., 0], mu[..., 1:]
    sign = torch.where(first < 0, -1.0, 1.0).to(mu.dtype)
    shrink = 1 / (1 + first.abs())
    grad_angle = torch.empty_like(angle_)
    grad_mu = torch.zeros_like(mu)
    step = max(1, _BLOCK // max(1, mu.numel())) if mu.device.type == "cpu" else max(1, n_samples)
    for start in range(0, n_samples, step):
        block = slice(start, start + step)
        g, grad_first, grad_rest = normals[block], grad[block][..., 0], grad[block][..., 1:]
        sine, cosine, m = torch.sin(angle_[block]), torch.cos(angle_[block]), inner[block]
        p = torch.einsum("...d,...d->...", grad_rest, rest)
        q = (g * grad_rest).sum(-1) + empty[block] * grad_rest[..., 0]
        turn = grad_first * m + sign * (shrink * m * p - q)
        grad_angle[block] = cosine * turn / norm[block] - sine * (first * grad_first + p)
        a = sine / norm[block]
        along = cosine + sign * shrink * a * m
        grad_mu[..., 0] += (cosine * grad_first - a * m * shrink.square() * p).sum(0)
        weight = a * (grad_first + sign * shrink * p)
        update = along.unsqueeze(-1) * grad_rest
        grad_mu[..., 1:] += update.addcmul_(weight.unsqueeze(-1), g).sum(0)
        grad_mu[..., 1] += (weight * empty[block]).sum(0)
    return grad_angle.reshape(angle.shape), grad_mu
