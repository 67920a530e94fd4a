r"""The law of the angle theta between mu and z ~ vMF(mu, kappa): quadrature and its inverse.

The density :math:`g(\theta) \propto \sin^{D-2}\theta\,e^{\kappa\cos\theta}` is analytic on [0, pi] for every D, so all
integrals run over the angle, on the window outside of which g has fallen below :math:`e^{-38}` of its mode. Its
distribution function is a 64-point Gauss-Legendre sum. The inverse integrates g spectrally on 65 Chebyshev nodes
per kappa, finds the bracket, and takes one corrected step of third order.

Everything here is in float64, for finite kappa, and speaks of the height h = 1 - cos(theta), which keeps its digits
where the cosine rounds to 1. The public face is :mod:`aureole.sphere._cosine`.
"""

import math

import numpy as np
import torch
from torch import Tensor

from aureole.sphere._bessel import log_hyp0f1_scaled
from aureole.sphere._normalizer import mean_resultant_complement

_TAIL = 38.0  # log of the density's fall at which the window ends


def height_of(angle: Tensor) -> Tensor:
    """1 - cos(angle), as 2 sin^2(angle / 2)."""
    return 2 * torch.sin(angle / 2).square()


def log_scale(kappa: Tensor, dim: int) -> Tensor:
    """Log of S_(D-1) C_D(kappa) e^kappa."""
    order = dim / 2 - 1
    return log_area_ratio(dim) - log_hyp0f1_scaled(order, kappa)


def log_area_ratio(dim: int) -> float:
    r"""log(S_(D-1) / S_D), with x = (D-1)/2: log Gamma(x + 1/2) - log Gamma(x) - log(pi) / 2."""
    x = (dim - 1) / 2
    if x < 20:
        difference = math.lgamma(x + 0.5) - math.lgamma(x)
    else:  # the difference of two large values would lose digits; its expansion does not
        y = 1 / (x * x)
        series = -1 / 8 + y * (1 / 192 + y * (-1 / 640 + y * (17 / 14336 - y * 31 / 18432)))
        difference = 0.5 * math.log(x) + series / x
    return difference - 0.5 * math.log(math.pi)


def log_density(height: Tensor, kappa: Tensor, dim: int, log_norm: Tensor) -> Tensor:
    """Log density of the angle: (D-2) log sin(theta) - kappa h + log_norm, sin^2(theta) = h (2 - h)."""
    exponent = log_norm - kappa * height
    if dim == 2:
        return exponent
    return exponent + (dim / 2 - 1) * torch.log(height * (2 - height))


def integrate(height: Tensor, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """(mass of the cap, its derivative in kappa) by Gauss-Legendre; plain differentiable ops. NaN gives NaN."""
    with torch.no_grad():
        low, high = _window(kappa, dim)
    inside = (height > 0) & (height < 2)
    sine = torch.sqrt(torch.where(inside, height, 1.0) / 2)
    angle = torch.where(inside, 2 * torch.asin(sine), torch.where(height > 0, math.pi, 0.0))
    angle = torch.minimum(torch.where(torch.isnan(height), height, angle), high)
    positive = ~(angle <= low)  # or NaN
    span = torch.where(positive, angle, high) - low  # never 0: masked before the logarithm
    nodes, weights = (c.to(kappa.device) for c in _GAUSS)
    heights = height_of(low.unsqueeze(-1) + span.unsqueeze(-1) * nodes)
    wide = kappa.unsqueeze(-1)
    log_norm = log_scale(kappa, dim).unsqueeze(-1)
    density = weights * torch.exp(log_density(heights, wide, dim, log_norm))
    excess = mean_resultant_complement(kappa, dim).unsqueeze(-1) - heights  # t - A
    mass = span * density.sum(-1)
    slope = span * (density * excess).sum(-1)
    return torch.where(positive, mass, 0.0), torch.where(positive, slope, 0.0)


def invert(mass: Tensor, kappa: Tensor, dim: int, with_slope: bool) -> tuple[Tensor, Tensor | None]:
    """(angle, d angle / d kappa) for masses [n, s] and kappas [n]."""
    low, high = (edge.unsqueeze(-1) for edge in _window(kappa, dim))
    kappa = kappa.unsqueeze(-1)
    log_norm = log_scale(kappa, dim)
    gap = mean_resultant_complement(kappa, dim)
    half = (high - low) / 2
    nodes, to_integral = (c.to(kappa.device) for c in _CHEBYSHEV)

    # the distribution function of the angle, and its derivative in kappa, at the nodes of each row
    heights = height_of(low + half * nodes)
    density = torch.exp(log_density(heights, kappa, dim, log_norm))
    table = half * (density @ to_integral)
    right = torch.searchsorted(table, mass).clamp_(1, nodes.numel() - 1)
    left = right - 1
    mass_left, mass_right = table.gather(-1, left), table.gather(-1, right)
    density_left, density_right = density.gather(-1, left), density.gather(-1, right)
    start, width = low + half * nodes[left], half * (nodes[right] - nodes[left])

    fraction = _safe_ratio(mass - mass_left, mass_right - mass_left).clamp_(0, 1)
    part = _bracket_guess(fraction, density_left, density_right, start, width, kappa, dim)

    # integrate from the nearer node to the guess, then take one step of third order
    near_left = part < 0.5
    base = torch.where(near_left, start, start + width)
    shift = width * torch.where(near_left, part, part - 1)
    value = torch.where(near_left, mass_left, mass_right)
    moment = half * ((density * (gap - heights)) @ to_integral) if with_slope else None
    slope = (
        None
        if moment is None
        else torch.where(near_left, moment.gather(-1, left), moment.gather(-1, right))
    )
    for node, weight in _LOCAL:
        at = height_of(base + shift * node)
        piece = torch.exp(log_density(at, kappa, dim, log_norm)) * (shift * weight)
        value = value + piece
        if slope is not None:
            slope = slope + piece * (gap - at)
    angle = base + shift
    at = height_of(angle)
    density_at = torch.exp(log_density(at, kappa, dim, log_norm))
    sine = torch.sin(angle)
    tilt = _tilt(at, sine, kappa, dim)
    step = _safe_ratio(mass - value, density_at)
    bend = tilt.square() / 3 - _curvature(at, kappa, dim) / 6
    step = step - step.square() * (tilt / 2 - bend * step)
    angle = torch.minimum(torch.maximum(angle + step, low), high)
    angle = torch.where(mass <= 0, 0.0, torch.where(mass >= 1, math.pi, angle))
    if slope is None:
        return angle, None
    excess = gap - at
    slope = slope + step * density_at * (excess + step / 2 * (excess * tilt - sine))
    final = torch.exp(log_density(height_of(angle), kappa, dim, log_norm))
    interior = (mass > 0) & (mass < 1)
    return angle, torch.where(interior, -_safe_ratio(slope, final), 0.0)


def _bracket_guess(
    fraction: Tensor,
    density_left: Tensor,
    density_right: Tensor,
    start: Tensor,
    width: Tensor,
    kappa: Tensor,
    dim: int,
) -> Tensor:
    """Where in [0, 1] a bracket has gathered ``fraction`` of its mass.

    Exact for an exponential density between the two ends, bent by the log density's curvature; at a
    pole the density is a power of the distance instead.
    """
    regular = (density_left > 0) & (density_right > 0)
    log_ratio = torch.log(
        torch.where(regular, density_right, 1.0) / torch.where(regular, density_left, 1.0)
    )
    steep = log_ratio.abs() > 1e-6
    log_ratio = torch.where(steep, log_ratio, 1.0)
    guess = torch.log1p(torch.expm1(log_ratio) * fraction) / log_ratio
    guess = torch.where(steep, guess, fraction)
    bend = (
        _curvature(height_of(start + width / 2), kappa, dim)
        * width.square()
        * (2 * guess - 1)
        * (guess - 1)
        / 12
    )
    guess = (guess * (1 - bend)).clamp_(0, 1)
    if dim > 2:
        power = 1 / (dim - 1)
        guess = torch.where(density_left > 0, guess, fraction**power)
        guess = torch.where(density_right > 0, guess, 1 - (1 - fraction) ** power)
    return guess


def _tilt(height: Tensor, sine: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """First derivative of the angle's log density, (D-2) cot(theta) - kappa sin(theta)."""
    tilt = -kappa * sine
    return tilt if dim == 2 else tilt + (dim - 2) * _safe_ratio(1 - height, sine)


def _curvature(height: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """Second derivative of the angle's log density, -(D-2) / sin^2(theta) - kappa cos(theta)."""
    curvature = kappa * (height - 1)
    if dim == 2:
        return curvature
    return curvature - _safe_ratio(torch.full_like(height, dim - 2), height * (2 - height))


def _safe_ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Numerator / denominator, and 0 where the denominator is 0: no mass is there to be found."""
    empty = denominator == 0
    return torch.where(empty, 0.0, numerator / torch.where(empty, 1.0, denominator))


def _window(kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    r"""The angles between which the density is at least :math:`e^{-38}` of its mode's.

    In the height the log density :math:`-\kappa h + \tfrac{D-2}{2}\log(h (2 - h))` is concave, and its fall from the
    mode :math:`h_0` is :math:`\tfrac{D-2}{2}[a(\Delta/h_0) + a(-\Delta/(2 - h_0))]` with
    :math:`a(u) = u - \log(1 + u)`. Bounds of a give a start outside of the window from which Newton's method runs
    inward monotonically.
    """
    kappa = kappa.abs()
    if dim == 2:
        high = torch.where(kappa > _TAIL / 2, _TAIL / kappa, 2.0)
        return torch.zeros_like(kappa), 2 * torch.asin(torch.sqrt(high / 2))
    m = dim - 2
    root = torch.hypot(torch.full_like(kappa, m), 2 * kappa)
    mode = m * (1 + m / (root + 2 * kappa)) / (m + root)
    scale = 4 * _TAIL / m

    def fall(height: Tensor):  # no return type: torch 2.6 cannot compile one
        """Fall of the log density from the mode, and its derivative in the height."""
        shift = height - mode
        logs = torch.log(height / mode) + torch.log((2 - height) / (2 - mode))
        value = m / 2 * (shift / mode - shift / (2 - mode) - logs)
        return value, kappa - m / 2 * (1 / height - 1 / (2 - height))

    rest = math.exp(
        -1 - 2 * _TAIL / m
    )  # of the way from the mode to a pole that surely lies outside
    bound = (mode * (scale / 2 + math.sqrt(scale * scale / 4 + scale))).clamp(max=2.0)
    for _ in range(2):
        curvature = 1 / (mode * (mode + bound)) + 1 / (2 - mode) ** 2
        bound = torch.minimum(bound, torch.sqrt(scale / curvature))
    high = torch.minimum(mode + bound, 2 - (2 - mode) * rest)
    low = mode * max(1 - math.sqrt(scale), rest)
    for _ in range(4):
        value, slope = fall(high)
        step = torch.where(torch.isfinite(value), (value - _TAIL) / slope, 0.0)
        high = high - step.clamp(min=0)
        value, slope = fall(low)
        low = low * torch.exp(((_TAIL - value) / (slope * low)).clamp(min=0))
    low, high = 2 * torch.asin(torch.sqrt(low / 2)), 2 * torch.asin(torch.sqrt(high / 2))
    # an end that all but touches a pole is put there, where the density is known to be a power
    low = torch.where(low < 2e-3 * high, 0.0, low)
    return low, torch.where(math.pi - high < 2e-3 * (math.pi - low), math.pi, high)


def gauss_legendre(n: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the n-point rule on [0, 1], in float64."""
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return (
        torch.from_numpy((nodes + 1) / 2).to(device),
        torch.from_numpy(weights / 2).to(device),
    )


def _chebyshev(n: int) -> tuple[Tensor, Tensor]:
    """Nodes 1 - cos(pi j / n) on [0, 2] and the matrix from values there to integrals from 0."""
    j = np.arange(n + 1)
    x = -np.cos(np.pi * j / n)
    to_coefficients = np.linalg.inv(np.polynomial.chebyshev.chebvander(x, n))
    antiderivatives = np.polynomial.chebyshev.chebint(to_coefficients, lbnd=-1, axis=0)
    integrals = np.polynomial.chebyshev.chebvander(x, n + 1) @ antiderivatives
    return torch.from_numpy(1 + x), torch.from_numpy(integrals.T.copy())


_GAUSS = gauss_legendre(64)
_CHEBYSHEV = _chebyshev(64)
_LOCAL = [(float(x), float(w)) for x, w in zip(*gauss_legendre(5), strict=True)]
