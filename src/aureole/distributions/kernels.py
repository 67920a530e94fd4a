"""Divergences between posteriors, registered with torch.distributions.kl_divergence."""

import torch
from torch import Tensor
from torch.distributions import register_kl

from aureole.distributions.uniform import SphereUniform
from aureole.distributions.von_mises_fisher import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.sphere import bessel, normalizer

__all__: list[str] = []


@register_kl(VonMisesFisher, VonMisesFisher)
def _kl_vmf_vmf(p: VonMisesFisher, q: VonMisesFisher) -> Tensor:
    r"""Log C(k_p) - log C(k_q) + A(k_p) (k_p - k_q mu_p.mu_q); inf if either is a point.

    Written with k + log C, 1 - A and |mu_p - mu_q|^2, so that nothing large cancels.
    """
    _check_dims(p.dim, q.dim)
    points = torch.isinf(p.kappa) | torch.isinf(q.kappa)
    kp, kq = (torch.where(points, 1.0, k) for k in (p.kappa, q.kappa))
    dim = p.dim
    gap = 0.5 * (p.mu - q.mu).square().sum(-1)
    value = (
        normalizer.log_scaled_normalizer(kp, dim)
        - normalizer.log_scaled_normalizer(kq, dim)
        + (kq - kp) * normalizer.mean_resultant_complement(kp, dim)
        + kq * normalizer.mean_resultant_length(kp, dim) * gap
    )
    return torch.where(points, torch.inf, value)


@register_kl(VonMisesFisher, SphereUniform)
def _kl_vmf_uniform(p: VonMisesFisher, q: SphereUniform) -> Tensor:
    """The information of p: k A(k) - log F(k)."""
    _check_dims(p.dim, q.dim)
    value = normalizer.information(p.kappa, p.dim)
    return value.expand(torch.broadcast_shapes(p.batch_shape, q.batch_shape))


@register_kl(SphereUniform, VonMisesFisher)
def _kl_uniform_vmf(p: SphereUniform, q: VonMisesFisher) -> Tensor:
    """Log F(k), since mu.z is 0 on average."""
    _check_dims(p.dim, q.dim)
    value = bessel.log_hyp0f1(q.dim / 2 - 1, q.kappa)
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
            f"no divergence between distributions on different spheres: R^{dim_p} and R^{dim_q}."
        )
