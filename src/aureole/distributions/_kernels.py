"""Functions of several posteriors: expected positivity, the product, and divergences for torch.distributions."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import register_kl

from aureole import sphere
from aureole.distributions._mixture import MixtureVMF
from aureole.distributions._von_mises_fisher import SphereUniform, VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.sphere import log_positivity
from aureole.sphere._bessel import log_hyp0f1
from aureole.sphere._geometry import unit_cosine
from aureole.sphere._normalizer import mean_resultant_complement

Posterior = VonMisesFisher | MixtureVMF


def expected_positivity(
    first: Posterior, second: Posterior, kappa_pos: Tensor | float
) -> Float[Tensor, "..."]:
    r"""Return the rate of two things as a positive pair, relative to chance: :math:`S\,h`.

    The exponential of ``log_expected_positivity``; it can overflow where that cannot.

    Examples
    --------
    >>> q = VonMisesFisher(torch.eye(10)[:2], 30.0)
    >>> expected_positivity(q, VonMisesFisher(torch.eye(10)[0], 30.0), kappa_pos=20.0)
    tensor([2.0337e+02, 3.6062e-02])
    """
    return log_expected_positivity(first, second, kappa_pos).exp()


def log_expected_positivity(
    first: Posterior, second: Posterior, kappa_pos: Tensor | float
) -> Float[Tensor, "..."]:
    r"""The log of :math:`S \iint Q_1(z)\,Q_2(z^+)\,\mathrm{vMF}(z^+; z, \kappa_{pos})\,dz\,dz^+`; batches broadcast.

    In closed form (:mod:`aureole.sphere._positivity`), bilinear in the weights of mixtures, and differentiable in them
    down to 0.

    Examples
    --------
    >>> q = VonMisesFisher(torch.eye(3), 1e4)
    >>> log_expected_positivity(q, q, kappa_pos=200.0)
    tensor([5.9522, 5.9522, 5.9522])
    """
    _check_dims(first.dim, second.dim)
    if isinstance(first, VonMisesFisher) and isinstance(second, VonMisesFisher):
        cosine = unit_cosine(first.mu, second.mu)
        value = log_positivity(cosine, first.kappa, second.kappa, kappa_pos, first.dim)
        return value.to(torch.promote_types(first.mu.dtype, second.mu.dtype))
    (weights1, mu1, kappa1), (weights2, mu2, kappa2) = (_components(q) for q in (first, second))
    cosine = unit_cosine(mu1.unsqueeze(-2), mu2.unsqueeze(-3))
    each = log_positivity(cosine, kappa1.unsqueeze(-1), kappa2.unsqueeze(-2), kappa_pos, first.dim)
    dtype = torch.promote_types(mu1.dtype, mu2.dtype)
    return _log_weighted_sum(each.to(dtype), weights1.to(dtype), weights2.to(dtype))


def _log_weighted_sum(each: Tensor, weights1: Tensor, weights2: Tensor) -> Tensor:
    r"""The log of :math:`\sum_{ab} w_a w'_b e^{v_{ab}}` over the last two dimensions.

    The log of a weight of 0 has no slope, but the sum has: :math:`\sum_b w'_b e^{v_{ab}}`. It comes from a linear term
    that is 0 itself, and ends below the largest float.
    """
    absent1, absent2 = weights1 == 0, weights2 == 0
    log1, log2 = (
        torch.where(absent, -torch.inf, torch.where(absent, 1.0, w).log())
        for w, absent in ((weights1, absent1), (weights2, absent2))
    )
    first, second = each + log2.unsqueeze(-2), each + log1.unsqueeze(-1)
    total = torch.logsumexp(first + log1.unsqueeze(-1), (-2, -1))
    value, largest = total, math.log(torch.finfo(total.dtype).max) - 1
    for weights, absent, terms, axis in (
        (weights1, absent1, first, -1),
        (weights2, absent2, second, -2),
    ):
        if bool(absent.any()):
            rest = torch.logsumexp(terms, axis) - total.unsqueeze(-1)
            slope = torch.where(absent & torch.isfinite(rest), rest, -torch.inf)
            value = value + (weights * slope.clamp(max=largest).exp()).sum(-1)
    return value


def _components(posterior: Posterior) -> tuple[Tensor, Tensor, Tensor]:
    """(weights [*batch, k], mu [*batch, k, D], kappa [*batch, k]) of a mixture, or of a vMF as a mixture of one."""
    if isinstance(posterior, MixtureVMF):
        return posterior.weights, posterior.mu, posterior.kappa
    kappa = posterior.kappa.unsqueeze(-1)
    return torch.ones_like(kappa), posterior.mu.unsqueeze(-2), kappa


def fuse(*posteriors: VonMisesFisher, axis: int | None = None) -> VonMisesFisher:
    r"""The normalised product of vMF posteriors, itself a vMF: :math:`\kappa\mu = \sum_i \kappa_i\mu_i`.

    Views that agree add their concentrations; views that contradict each other cancel, down to kappa = 0 (where mu is
    that of the first). Points, kappa = inf, outweigh all others: the result is the point in their mean direction.

    Parameters
    ----------
    posteriors
        Posteriors whose batch shapes broadcast; or one posterior, whose batch dimension ``axis`` runs over the views
        (negative ones count from the end).

    Examples
    --------
    >>> front = VonMisesFisher(torch.tensor([1.0, 0.0]), 30.0)
    >>> side = VonMisesFisher(torch.tensor([0.0, 1.0]), 40.0)
    >>> both = fuse(front, side)
    >>> both.mu, both.kappa
    (tensor([0.6000, 0.8000]), tensor(50.))
    """
    if (axis is None) == (len(posteriors) == 1) or not posteriors:
        raise InvalidInputError(
            "fuse takes either several posteriors, fuse(q1, q2), or one with the axis of its batch that runs "
            f"over the views, fuse(q, axis=0); got {len(posteriors)} and axis={axis}."
        )
    if axis is None:
        dims = {q.dim for q in posteriors}
        if len(dims) > 1:
            raise InvalidInputError(
                f"posteriors on different spheres cannot be fused: R^D with D in {sorted(dims)}."
            )
        shape = torch.broadcast_shapes(*(q.batch_shape for q in posteriors))
        mu = torch.stack([q.mu.expand(*shape, q.dim) for q in posteriors])
        kappa = torch.stack([q.kappa.expand(shape) for q in posteriors])
        axis = 0
    else:
        (posterior,) = posteriors
        n_axes = len(posterior.batch_shape)
        if not -n_axes <= axis < n_axes:
            raise InvalidInputError(
                f"fuse needs an axis of the batch, whose shape is {tuple(posterior.batch_shape)}, but got axis={axis}"
                + (": one posterior alone holds no views." if n_axes == 0 else ".")
            )
        if posterior.batch_shape[axis] == 0:
            raise InvalidInputError(
                f"fuse needs one view or more, but axis {axis} of the batch {tuple(posterior.batch_shape)} is empty."
            )
        axis = axis % n_axes
        mu, kappa = posterior.mu, posterior.kappa
    point = torch.isinf(kappa)
    any_point = point.any(axis, keepdim=True)
    weight = torch.where(any_point, point.to(kappa.dtype), torch.where(point, 0.0, kappa))
    # the largest weight is divided out: weights of 1e300 do not overflow when squared
    scale = weight.amax(axis, keepdim=True)
    scale = torch.where(scale > 0, scale, 1.0).detach()
    resultant = ((weight / scale).unsqueeze(-1) * mu).sum(axis)
    nonzero = (resultant != 0).any(-1, keepdim=True)
    safe = torch.where(nonzero, resultant, 1.0)
    length = torch.linalg.vector_norm(safe, dim=-1, keepdim=True)
    direction = torch.where(nonzero, safe / length, mu.select(axis, 0))
    total = torch.where(nonzero, length, 0.0).squeeze(-1) * scale.squeeze(axis)
    total = torch.where(any_point.squeeze(axis), torch.inf, total)
    return VonMisesFisher(direction, total)


@register_kl(VonMisesFisher, VonMisesFisher)
def _kl_vmf_vmf(p: VonMisesFisher, q: VonMisesFisher) -> Tensor:
    r"""Log C(k_p) - log C(k_q) + A(k_p) (k_p - k_q mu_p.mu_q); inf if either is a point.

    Written with k + log C, 1 - A and |mu_p - mu_q|^2, so that nothing large cancels.
    """
    _check_dims(p.dim, q.dim)
    points = torch.isinf(p.kappa) | torch.isinf(q.kappa)
    # in float64: at high D the two normalisers agree in most digits of float32
    kp, kq = (torch.where(points, 1.0, k.double()) for k in (p.kappa, q.kappa))
    dim = p.dim
    gap = 0.5 * (p.mu.double() - q.mu.double()).square().sum(-1)
    value = (
        sphere.log_scaled_normalizer(kp, dim)
        - sphere.log_scaled_normalizer(kq, dim)
        + (kq - kp) * mean_resultant_complement(kp, dim)
        + kq * sphere.mean_resultant_length(kp, dim) * gap
    )
    dtype = torch.promote_types(p.kappa.dtype, q.kappa.dtype)
    return torch.where(points, torch.inf, value).to(dtype)


@register_kl(VonMisesFisher, SphereUniform)
def _kl_vmf_uniform(p: VonMisesFisher, q: SphereUniform) -> Tensor:
    """The information of p: k A(k) - log F(k)."""
    _check_dims(p.dim, q.dim)
    value = sphere.information(p.kappa, p.dim)
    return value.expand(torch.broadcast_shapes(p.batch_shape, q.batch_shape))


@register_kl(SphereUniform, VonMisesFisher)
def _kl_uniform_vmf(p: SphereUniform, q: VonMisesFisher) -> Tensor:
    """Log F(k), since mu.z is 0 on average."""
    _check_dims(p.dim, q.dim)
    value = log_hyp0f1(q.dim / 2 - 1, q.kappa)
    return value.expand(torch.broadcast_shapes(p.batch_shape, q.batch_shape))


@register_kl(SphereUniform, SphereUniform)
def _kl_uniform_uniform(p: SphereUniform, q: SphereUniform) -> Tensor:
    _check_dims(p.dim, q.dim)
    return torch.zeros(
        torch.broadcast_shapes(p.batch_shape, q.batch_shape), dtype=p.dtype, device=p.device
    )


def _check_dims(dim_p: int, dim_q: int) -> None:
    if dim_p != dim_q:
        raise InvalidInputError(
            f"distributions on different spheres cannot be compared: R^{dim_p} and R^{dim_q}."
        )
