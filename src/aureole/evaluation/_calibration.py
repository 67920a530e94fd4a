"""Coverage of credible and predictive caps, and the calibration of kappa that makes the coverage right."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.sphere import log_positivity, predictive_mass
from aureole.sphere._positivity_table import Positivities

CAP_MASSES = (0.5, 0.8, 0.9, 0.95)  # of the caps that are reported by default


def partner_coverage(
    query: VonMisesFisher,
    gallery: VonMisesFisher,
    partner: Int[Tensor, " n"],
    *,
    kappa_pos: float,
    masses: Sequence[float] = CAP_MASSES,
) -> dict[float, float]:
    """The share of queries whose predictive cap contains their partner, given by its index in the gallery, by mass.

    The predictive cap of a query contains the gallery items with the largest cosines, until their probabilities of
    being the partner (proportional to expected positivity) sum to the mass. The item at the boundary counts in
    proportion, so that a correct posterior has an expected coverage equal to the mass. Cost: n m terms of the series;
    for a sharp query without an item nearby, at worst one integral per item.
    """
    if partner.shape != query.kappa.shape:
        raise InvalidInputError(
            f"{len(query.kappa)} queries need one partner each, but partner has shape {tuple(partner.shape)}."
        )
    totals = dict.fromkeys(masses, 0.0)
    at_a_time = max(1, 2**20 // len(gallery.kappa))
    for rows in torch.arange(len(partner), device=partner.device).split(at_a_time):
        cosine = (query.mu[rows].double() @ gallery.mu.double().T).clamp(-1, 1)
        kappas = query.kappa[rows].double(), gallery.kappa.double()
        probability = _partner_probability(cosine, *kappas, kappa_pos, query.dim)
        own = cosine.gather(1, partner[rows].unsqueeze(1))
        before = torch.where(cosine > own, probability, 0.0).sum(-1)
        weight = torch.where(cosine == own, probability, 0.0).sum(-1)
        for mass in masses:
            share = torch.where(weight > 0, (mass - before) / weight, (before <= mass).double())
            totals[mass] += share.clamp(0, 1).sum().item()
    return {mass: total / len(partner) for mass, total in totals.items()}


def _partner_probability(
    cosine: Float[Tensor, "n m"],
    kappa: Float[Tensor, " n"],
    others: Float[Tensor, " m"],
    kappa_pos: float,
    dim: int,
) -> Float[Tensor, "n m"]:
    """Return the probability of each gallery item to be the partner, for each query, to a share of 1e-3."""
    pos = torch.tensor(kappa_pos, dtype=torch.float64)
    h = Positivities.over([cosine], [kappa, others], pos, dim, kappa_pos, tolerance=1e-3)
    return torch.softmax(h.matrix(cosine, kappa, others), -1)


def partner_angle(query: VonMisesFisher, partner: VonMisesFisher) -> Float[Tensor, "*batch"]:
    r"""The angle between the mu of each query and of its partner, in float64: :math:`2\arcsin(|\mu - \mu^+|/2)`."""
    if query.mu.shape != partner.mu.shape:
        raise InvalidInputError(
            f"query and partner must have the same shape, but are {tuple(query.mu.shape)} and "
            f"{tuple(partner.mu.shape)}."
        )
    half = (query.mu.detach().double() - partner.mu.detach().double()).norm(dim=-1) / 2
    return 2 * torch.asin(half.clamp(max=1))


def predictive_coverage(
    query: VonMisesFisher,
    partner: VonMisesFisher,
    *,
    kappa_pos: float,
    masses: Sequence[float] = CAP_MASSES,
) -> dict[float, float]:
    """The share of queries whose predictive cap (``VonMisesFisher.predictive_cosine``) contains their partner, by mass.

    Unlike ``partner_coverage`` it needs no gallery: it assumes that mu is uniform on the sphere. Cost: one series per
    pair.

    Examples
    --------
    >>> rng = torch.Generator().manual_seed(0)
    >>> q = VonMisesFisher(torch.eye(6)[0].expand(5000, 6), 40.0)
    >>> near = VonMisesFisher(q.sample(generator=rng), 30.0).sample(generator=rng)
    >>> partner = VonMisesFisher(VonMisesFisher(near, 20.0).sample(generator=rng), 20.0)
    >>> coverage = predictive_coverage(q, partner, kappa_pos=30.0, masses=(0.5, 0.9))
    >>> {mass: round(share, 2) for mass, share in coverage.items()}
    {0.5: 0.49, 0.9: 0.9}
    """
    angle = partner_angle(query, partner)
    inside = predictive_mass(angle, query.kappa, partner.kappa, kappa_pos, query.dim)
    return {mass: (inside <= mass).double().mean().item() for mass in masses}


_POWERS = (0.25, 4.0)
_LARGEST_LOG_SCALE = 6.0
_STEPS = 12  # halvings: the scale is right to 0.3 %, far below its standard error


@dataclass(frozen=True)
class Calibration:
    r"""A monotone map of kappa, :math:`\kappa \mapsto s\,m\,(\kappa/m)^b`, with scale s, power b and reference m.

    The reference is the median kappa of the pairs that the calibration was fitted on.

    Examples
    --------
    >>> Calibration(reference=10.0, scale=0.5, power=2.0)(torch.tensor([10.0, 20.0]))
    tensor([ 5., 20.])
    """

    reference: float = 1.0
    scale: float = 1.0
    power: float = 1.0

    def __post_init__(self) -> None:
        values = (self.reference, self.scale, self.power)
        if not all(math.isfinite(value) and value > 0 for value in values):
            raise InvalidInputError(
                f"a calibration needs a positive reference, scale and power, but got {values}."
            )

    def __call__(self, kappa: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """The calibrated kappas."""
        return self.scale * self.reference * (kappa / self.reference) ** self.power


def fit_calibration(
    query: VonMisesFisher, partner: VonMisesFisher, *, kappa_pos: float, mass: float = 0.9
) -> Calibration:
    """The calibration under which the predictive caps of ``mass`` contain that share of the partners.

    One share does not determine both scale and power. Of all maps that give the share, this returns the one under which
    the angles to the partners are most likely; the power is 1 unless another one is better by more than two standard
    errors. If no scale gives the share, because the partners are closer to each other than kappa_pos alone allows, the
    kappas become as large as the search allows: raise kappa_pos.

    Cost: about 140 series per pair.

    Examples
    --------
    >>> rng = torch.Generator().manual_seed(0)
    >>> mu = torch.nn.functional.normalize(torch.randn(2000, 6, generator=rng), dim=-1)
    >>> truth = VonMisesFisher(mu, 50.0)
    >>> near = VonMisesFisher(truth.sample(generator=rng), 30.0).sample(generator=rng)  # the partner's latent
    >>> other = VonMisesFisher(near, 50.0).sample(generator=rng)
    >>> underconfident = VonMisesFisher(mu, 20.0), VonMisesFisher(other, 20.0)
    >>> calibration = fit_calibration(*underconfident, kappa_pos=30.0)
    >>> round(calibration(torch.tensor(20.0)).item())
    51
    """
    if not 0 < mass < 1:
        raise InvalidInputError(f"mass must be between 0 and 1, but is {mass}.")
    kappas = torch.cat([query.kappa.detach(), partner.kappa.detach()]).double()
    if not bool(((kappas > 0) & torch.isfinite(kappas)).all()):
        raise InvalidInputError("calibration needs posteriors with positive, finite kappas.")
    reference = kappas.median().item()
    left, right = (kappas / reference).log().chunk(2)
    pairs = _Pairs(partner_angle(query, partner), left, right, reference, kappa_pos, query.dim)
    power = 1.0
    if bool((kappas != kappas[0]).any()):  # else the power changes nothing
        low, high = (math.log(end) for end in _POWERS)
        best = _golden(lambda x: -pairs.log_likelihoods(math.exp(x), mass).mean().item(), low, high)
        gain = pairs.log_likelihoods(math.exp(best), mass) - pairs.log_likelihoods(1.0, mass)
        if gain.mean() > 2 * gain.std() / len(gain) ** 0.5:
            power = math.exp(best)
    return Calibration(reference, math.exp(pairs.log_scale(power, mass)), power)


@dataclass(frozen=True)
class _Pairs:
    """Angles of pairs, and the logs of their kappas relative to the reference."""

    angle: Tensor
    left: Tensor
    right: Tensor
    reference: float
    kappa_pos: float
    dim: int

    def kappas(self, power: float, log_scale: float) -> tuple[Tensor, Tensor]:
        shift = math.log(self.reference) + log_scale
        return torch.exp(power * self.left + shift), torch.exp(power * self.right + shift)

    def log_scale(self, power: float, mass: float) -> float:
        """The log scale at which the share of partners in their caps is the mass, by bisection."""
        low, high = -_LARGEST_LOG_SCALE, _LARGEST_LOG_SCALE
        for _ in range(_STEPS):
            middle = (low + high) / 2
            left, right = self.kappas(power, middle)
            inside = predictive_mass(self.angle, left, right, self.kappa_pos, self.dim) <= mass
            if inside.double().mean().item() > mass:
                low = middle
            else:
                high = middle
        return (low + high) / 2

    def log_likelihoods(self, power: float, mass: float) -> Tensor:
        """The log densities of the angles, up to a constant that does not depend on kappa."""
        left, right = self.kappas(power, self.log_scale(power, mass))
        cosine = torch.cos(self.angle)
        return log_positivity(cosine, left, right, self.kappa_pos, self.dim)


def _golden(
    function: Callable[[float], float], low: float, high: float, *, tolerance: float = 0.05
) -> float:
    """The minimiser of a unimodal function, by golden-section search."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    fa, fb = function(a), function(b)
    while high - low > tolerance:
        if fa <= fb:
            high, b, fb = b, a, fa
            a = high - ratio * (high - low)
            fa = function(a)
        else:
            low, a, fa = a, b, fb
            b = low + ratio * (high - low)
            fb = function(b)
    return (low + high) / 2
