r"""Expected positivity: how much more likely than chance two uncertain things are a positive pair.

.. math::
    S\,h(c, \kappa_1, \kappa_2) = S \iint \mathrm{vMF}(z; \mu_1, \kappa_1)\,\mathrm{vMF}(z^+; \mu_2, \kappa_2)\,
    \mathrm{vMF}(z^+; z, \kappa_\mathrm{pos})\,dz\,dz^+
    = \sum_{l \ge 0} w_l\,A_l(\kappa_1)\,A_l(\kappa_2)\,A_l(\kappa_\mathrm{pos})\,G_l(c)

with :math:`c = \mu_1^T\mu_2`. It is symmetric in all three concentrations. 1 means "no more likely than chance".
In float32 the arguments are widened to float64 and the log is rounded: its error is 1e-7 of its size, plus the rounding
of the cosine (6e-8) times the log's slope, which is about the smallest concentration.

Regions of ``log_positivity``, with their absolute error in float64, to which 1e-15 of the log's size is added in all of
them (the log is -7e9 at c = -1/2 and concentrations of 1e10, so 2e-6 there):

- any concentration 0: the log is 0, exactly;
- any infinite: the closed form :math:`F(|a\mu_1 + b\mu_2|) / (F(a) F(b))` of the two others, 1e-11;
- the series where the rounding of its terms does not show, 1e-11 at worst (they cancel where h is small);
- elsewhere the positive integral over the angle phi between mu_2 and z, in log space, 1e-10 up to a concentration of
  1e10 and D = 4096,

  .. math:: \int_0^\pi \sin^{D-2}\phi\; e^{\kappa_1 c\cos\phi}\,F_{(D-3)/2}(\kappa_1\sin\gamma\sin\phi)\,
            F_{D/2-1}(|\kappa_2\mu_2 + \kappa_\mathrm{pos} z|)\,d\phi ,

  with the smallest of the three concentrations as :math:`\kappa_1` and :math:`\cos\gamma = c`.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from aureole._validation import check_dim, first_index
from aureole.errors import InvalidInputError
from aureole.sphere._angle import gauss_legendre, log_area_ratio
from aureole.sphere._bessel import (
    bessel_ratio,
    bessel_steps,
    log_hyp0f1,
    log_hyp0f1_of_square,
    log_hyp0f1_scaled,
)
from aureole.sphere._zonal import log_zonal_weights, zonal_basis, zonal_sum

MAX_TERMS = 1024  # beyond, the integral is cheaper than the series
_CANCELLED = (
    1e4  # the sum of the terms' sizes over their sum: beyond, the integral is more accurate
)


# the window of the integral is where the integrand is above exp(-depth) of its peak, found on a grid of so many cells,
# with so many nodes of Gauss-Legendre on it
_DEPTH, _CELLS, _NODES = 45.0, 32, 96
_ZOOMS = 12  # on the window, at the most


def log_positivity(
    cosine: Float[Tensor, "..."],
    kappa1: Float[Tensor, "..."],
    kappa2: Float[Tensor, "..."],
    kappa_pos: Float[Tensor, "..."] | float,
    dim: int,
) -> Float[Tensor, "..."]:
    r"""Return the log of the expected positivity ratio, :math:`\log S\,h(c, \kappa_1, \kappa_2)`, entry by entry.

    All four arguments broadcast and are differentiable; ``torch.func`` transforms are not supported. -inf only where
    three points do not coincide. A negative or NaN concentration raises an error that names it, since it has no
    positivity; a NaN cosine gives NaN.

    Examples
    --------
    >>> c = torch.tensor([1.0, 0.3, -1.0], dtype=torch.float64)
    >>> kappa = torch.tensor(24.0, dtype=torch.float64)
    >>> log_positivity(c, kappa, kappa, 20.0, dim=10)
    tensor([  4.8082,  -0.0602, -16.6273], dtype=torch.float64)
    """
    dim = check_dim(dim)
    kappa1, kappa2, kappa_pos = (
        torch.as_tensor(k, dtype=torch.float64, device=cosine.device)
        for k in (kappa1, kappa2, kappa_pos)
    )
    c, *kappas = torch.broadcast_tensors(cosine.double(), kappa1, kappa2, kappa_pos)
    shape, c = c.shape, c.reshape(-1)
    large, middle, small = (
        torch.stack([k.reshape(-1) for k in kappas], -1).sort(-1, descending=True).values.unbind(-1)
    )
    # a NaN is sorted as the largest, so checking the two ends covers all three
    if not bool(((small >= 0) & (large >= 0)).all()):
        check_concentrations(kappa1=kappa1, kappa2=kappa2, kappa_pos=kappa_pos)
    value = torch.zeros_like(c)
    for mask, function in (
        (small == 0, _log_with_uniform),
        ((small > 0) & torch.isfinite(large), _log_finite),
        ((small > 0) & torch.isinf(large), _log_with_points),
    ):
        if bool(mask.any()):
            picked = [x[mask] for x in (c, large, middle, small)]
            value = value.index_put((mask.nonzero()[:, 0],), function(*picked, dim=dim))
    return value.reshape(shape).to(cosine.dtype)


def check_concentrations(**named: Float[Tensor, "..."]) -> None:
    """Raise an error that names the first concentration that is negative or NaN; 0 and inf are fine.

    Examples
    --------
    >>> check_concentrations(kappa1=torch.tensor([3.0, float("nan")]))
    Traceback (most recent call last):
    aureole.errors.InvalidInputError: kappa1[1] is nan, but a concentration is at least 0 ...
    """
    for name, kappa in named.items():
        bad = ~(kappa.detach() >= 0)
        if bool(bad.any()):
            raise InvalidInputError(
                f"{name}{first_index(bad)} is {kappa[bad][0].item():.6g}, but a concentration is at least 0 (0 is "
                f"uniform, inf a point); {int(bad.sum())} of {bad.numel()} are off, shape {tuple(kappa.shape)}. Drop "
                "these entries or mend what produced them."
            )


def _log_ratios(kappa: Tensor, dim: int, count: int) -> Tensor:
    """Log A_l(kappa) for l < count. A kappa of 0 counts as 1e-30, so that its gradient is right."""
    kappa = kappa.double()
    kappa = kappa + (1e-30 - kappa.detach()).clamp(min=0)
    steps = bessel_steps(dim / 2 - 1, kappa, count - 1)
    return torch.nn.functional.pad(torch.log(steps).cumsum(-1), (1, 0))


def pairwise_from_ratios(
    cosine: Float[Tensor, "n m"],
    left: Float[Tensor, "n terms"],
    right: Float[Tensor, "m terms"],
    positive: Float[Tensor, " terms"],
    dim: int,
) -> tuple[Float[Tensor, "n m"], float]:
    r"""Return (values, log scale) of all pairs, from the Bessel ratios of both sides and ``positive_terms``.

    :math:`S\,h_{ij}` = values times exp(scale), with an error of some roundings of the largest possible value. The
    ratios are float64; nothing is differentiable.
    """
    if not left.numel() or not right.numel():
        return torch.zeros_like(cosine), 0.0
    with torch.no_grad():
        scale = (positive * left.amax(0) * right.amax(0)).sum().log().item()
        # the coefficients are shared out evenly, so that neither side leaves the range of float32
        share = torch.sqrt(positive * math.exp(-scale))
        inverse = torch.where(share > 0, 1 / torch.where(share > 0, share, 1.0), 0.0)
    left = left * (positive * math.exp(-scale) * inverse)
    right = right * share
    left, right = left.to(cosine.dtype), right.to(cosine.dtype)
    return zonal_sum(cosine, left, right, dim), scale


def log_pair_likelihood(
    cosine: Float[Tensor, "*#batch"],
    kappa1: Float[Tensor, "*#batch"],
    kappa2: Float[Tensor, "*#batch"],
    dim: int,
) -> Float[Tensor, "*#batch"]:
    r"""The log of :math:`S\int \mathrm{vMF}(z; \mu_1, \kappa_1)\,\mathrm{vMF}(z; \mu_2, \kappa_2)\,dz`.

    The expected likelihood kernel, positivity for kappa_pos = inf, for finite concentrations:
    :math:`\log F(|\kappa_1\mu_1 + \kappa_2\mu_2|) - \log F(\kappa_1) - \log F(\kappa_2)`. In float64 the error is
    1e-11 plus 1e-15 of the log's size, up to D = 4096.

    Examples
    --------
    >>> log_pair_likelihood(torch.tensor([1.0, 0.0]), torch.tensor(20.0), torch.tensor(20.0), dim=10)
    tensor([ 5.9360, -4.3040])
    """
    order = check_dim(dim) / 2 - 1
    c, a, b = torch.broadcast_tensors(cosine.double(), kappa1.double(), kappa2.double())
    square = (a - b).square() + 2 * a * b * (1 + c)
    near = square < 1  # there the root is not smooth, and nothing large cancels
    far_length = torch.sqrt(torch.where(near, 1.0, square))
    far = log_hyp0f1_scaled(order, far_length) - 2 * a * b * (1 - c) / (far_length + a + b)
    far = far - log_hyp0f1_scaled(order, a) - log_hyp0f1_scaled(order, b)
    close = log_hyp0f1_of_square(order, torch.where(near, square, 0.0))
    close = close - log_hyp0f1(order, a) - log_hyp0f1(order, b)
    return torch.where(near, close, far).to(cosine.dtype)


def n_terms(kappas: Sequence[float], dim: int, *, tolerance: float) -> int:
    """How many terms of the series matter, relative to its sum at c = 1, for concentrations up to these.

    Terms fall like exp(-l (l + D - 2) / 2 (1/k + 1/k' + ...)): the smallest concentration bounds them. Counted in plain
    numbers with an upper bound of the Bessel ratios (Amos 1974), a few microseconds per term, up to 16,384. A negative
    or NaN one raises an error, as do concentrations that are all infinite.

    Examples
    --------
    >>> n_terms([math.inf, math.inf, 20.0], 10, tolerance=1e-9)
    36
    """
    bad = [(i, kappa) for i, kappa in enumerate(kappas) if not kappa >= 0]
    if bad:
        raise InvalidInputError(
            f"concentrations are at least 0, but kappas[{bad[0][0]}] of {list(kappas)} is {bad[0][1]:g}."
        )
    if math.isinf(min(kappas)):
        raise InvalidInputError(
            "the series needs a finite kappa_pos; use log_positivity for points."
        )
    share = 1.0  # of the last term in the sum so far
    for l in range(16 * MAX_TERMS):  # noqa: E741
        order = dim / 2 - 0.5 + l
        weight = (
            (l + dim - 2) / (l + 1) * (l + dim / 2) / (l + dim / 2 - 1) if l or dim > 2 else 2.0
        )
        step = weight
        for kappa in kappas:
            step *= 1.0 if math.isinf(kappa) else kappa / (order + math.hypot(kappa, order))
        share = share * step / (1 + share * step)
        # what follows is less than a geometric series of this step
        if step < 1 and share * step < tolerance * (1 - step):
            return l + 2
    return 16 * MAX_TERMS


def positive_terms(
    dim: int, count: int, *kappas: Float[Tensor, "*#batch"]
) -> Float[Tensor, "*#batch terms"]:
    """The terms w_l A_l(k) A_l(k') ... at c = 1, as a running product that neither over- nor underflows.

    Examples
    --------
    >>> positive_terms(3, 3, torch.tensor(2.0, dtype=torch.float64))
    tensor([1.0000, 1.6119, 0.9701], dtype=torch.float64)
    """
    weights = log_zonal_weights(dim, count, kappas[0].device)
    steps = torch.exp(weights.diff())
    for kappa in kappas:
        steps = steps * bessel_steps(dim / 2 - 1, kappa, count - 1)
    return torch.cat([torch.ones_like(steps[..., :1]), steps.cumprod(-1)], -1)


def _log_with_uniform(c: Tensor, large: Tensor, middle: Tensor, small: Tensor, dim: int) -> Tensor:
    """The log where the smallest concentration is 0: 0, with the gradient of the series' first term."""
    order = dim / 2 - 1
    return small * c * bessel_ratio(order, middle) * bessel_ratio(order, large)


def _log_with_points(c: Tensor, _: Tensor, middle: Tensor, small: Tensor, dim: int) -> Tensor:
    """The log where the largest concentration is infinite: the other two, or the last alone."""
    one_point = torch.isfinite(middle)
    two_points = ~one_point & torch.isfinite(small)
    safe_middle = torch.where(one_point, middle, 1.0)
    safe_small = torch.where(torch.isfinite(small), small, 1.0)
    pair = log_pair_likelihood(c, safe_middle, safe_small, dim)
    single = -log_hyp0f1_scaled(dim / 2 - 1, safe_small) - safe_small * (1 - c)
    same = torch.where(torch.isnan(c), c, torch.where(c >= 1, torch.inf, -torch.inf))
    return torch.where(one_point, pair, torch.where(two_points, single, same))


def _log_finite(c: Tensor, large: Tensor, middle: Tensor, small: Tensor, dim: int) -> Tensor:
    """The log for three finite, positive concentrations in descending order."""
    bounds = [k.detach().max().item() for k in (large, middle, small)]
    count = n_terms(bounds, dim, tolerance=1e-17)
    if count > MAX_TERMS:
        return _log_integral(c, large, middle, small, dim)
    logs = log_zonal_weights(dim, count, c.device)
    for kappa in (large, middle, small):
        logs = logs + _log_ratios(kappa, dim, count)
    value, trusted = log_series(c, logs, dim)
    if bool(trusted.all()):
        return value
    rest = ~trusted
    integral = _log_integral(c[rest], large[rest], middle[rest], small[rest], dim)
    return torch.where(trusted, value, 0.0).index_put((rest.nonzero()[:, 0],), integral)


def log_series(
    cosine: Float[Tensor, "*batch"], log_terms: Float[Tensor, "*batch terms"], dim: int
) -> tuple[Float[Tensor, "*batch"], Bool[Tensor, "*batch"]]:
    """(Log of the series, whether to trust it), given the logs of its terms at c = 1.

    Terms cancel: the error of the log is about 1e-16 times the sum of their sizes over their sum. Where that ratio
    exceeds 1e4 the value is that at c = 1, to be replaced.
    """
    scale = log_terms.detach().amax(-1)
    parts = torch.exp(log_terms - scale.unsqueeze(-1)) * zonal_basis(
        cosine, dim, log_terms.shape[-1]
    )
    total = parts.sum(-1)
    trusted = total.detach() * _CANCELLED > parts.detach().abs().sum(-1)
    return torch.log(torch.where(trusted, total, 1.0)) + scale, trusted


def _log_integral(c: Tensor, large: Tensor, middle: Tensor, small: Tensor, dim: int) -> Tensor:
    """The log of the positive integral, by Gauss-Legendre on the window that holds its mass."""
    order = dim / 2 - 1
    wide = (c.unsqueeze(-1), large.unsqueeze(-1), middle.unsqueeze(-1), small.unsqueeze(-1))
    with torch.no_grad():
        low, high = _integral_window(*wide, dim)
    nodes, weights = gauss_legendre(_NODES, c.device)
    values = _log_integrand(low + (high - low) * nodes, *wide, dim)
    log_sum = torch.logsumexp(values + torch.log(weights * (high - low)), -1)
    norms = sum(log_hyp0f1_scaled(order, k) for k in (large, middle, small))
    return log_sum - norms + log_area_ratio(dim)


def _log_integrand(
    phi: Tensor, c: Tensor, large: Tensor, middle: Tensor, small: Tensor, dim: int
) -> Tensor:
    """The log of the integrand, less the sum of the concentrations.

    No large exponents are subtracted: they are combined to squares of sines first.
    """
    value = _log_around(phi, c, small, dim) + _log_together(phi, large, middle, dim)
    return value if dim == 2 else value + (dim - 2) * torch.log(torch.sin(phi))


def _log_around(phi: Tensor, c: Tensor, kappa: Tensor, dim: int) -> Tensor:
    r"""Log of :math:`e^{\kappa (c\cos\phi - 1)} F_{(D-3)/2}(\kappa\sin\gamma\sin\phi)`.

    Where F's argument is large, with the exponent :math:`-2\kappa\sin^2((\phi - \gamma)/2)`.
    """
    order = (dim - 3) / 2
    square = (kappa * torch.sin(phi)).square() * ((1 - c) * (1 + c)).clamp(min=0)
    near = square < 1  # there the root is not smooth
    all_near, any_near = bool(near.all()), bool(near.any())
    close = far = value = square
    if any_near:
        fall = (1 - c) + 2 * c * torch.sin(phi / 2).square()
        close = log_hyp0f1_of_square(order, torch.where(near, square, 0.0)) - kappa * fall
        value = close
    if not all_near:
        inside = (1 - c) * (1 + c) > 0
        safe = torch.where(inside, c, 0.0)
        gamma = torch.atan2(torch.sqrt((1 - safe) * (1 + safe)), safe)
        far = log_hyp0f1_scaled(order, torch.sqrt(torch.where(near, 1.0, square)))
        far = far - 2 * kappa * torch.sin((phi - gamma) / 2).square()
        value = torch.where(near, close, far) if any_near else far
    return value


def _log_together(phi: Tensor, first: Tensor, second: Tensor, dim: int) -> Tensor:
    r"""Log of :math:`F_{D/2-1}(|\kappa_1\mu + \kappa_2 z|)`, less both concentrations, at angle phi."""
    order = dim / 2 - 1
    square = (first - second).square() + 4 * first * second * torch.cos(phi / 2).square()
    near = square < 1
    length = torch.sqrt(torch.where(near, 1.0, square))
    far = log_hyp0f1_scaled(order, length)
    far = far - 4 * first * second * torch.sin(phi / 2).square() / (length + first + second)
    if not bool(near.any()):
        return far
    close = log_hyp0f1_of_square(order, torch.where(near, square, 0.0)) - first - second
    return torch.where(near, close, far)


def _integral_window(
    c: Tensor, large: Tensor, middle: Tensor, small: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Ends between which the integrand is above its depth, by zooming in on a grid until that is half of the window."""
    cells = _CELLS
    middles = (torch.arange(cells, dtype=c.dtype, device=c.device) + 0.5) / cells
    low, high = torch.zeros_like(c), torch.full_like(c, math.pi)
    for _ in range(_ZOOMS):
        width = high - low
        values = _log_integrand(low + width * middles, c, large, middle, small, dim)
        kept = values > values.amax(-1, keepdim=True) - _DEPTH
        first = kept.int().argmax(-1, keepdim=True) - 1
        last = cells - kept.flip(-1).int().argmax(-1, keepdim=True) + 1
        high = low + width * (last.clamp(max=cells) / cells)
        low = low + width * (first.clamp(min=0) / cells)
        if bool((2 * (last - first) >= cells).all()):
            break
    return low, high
