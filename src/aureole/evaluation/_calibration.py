"""Calibration: a monotone map of kappa, so that predictive caps hold as many partners as they promise."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.evaluation._coverage import partner_angle
from aureole.sphere import log_positivity, predictive_mass

_POWERS = (0.25, 4.0)
_LARGEST_LOG_SCALE = 6.0
_STEPS = 12  # halvings: the scale is right to 0.3 %, far below its standard error


@dataclass(frozen=True)
class Calibration:
    r"""The map :math:`\kappa \mapsto s\,m\,(\kappa/m)^b` with a reference m, the median of the kappas it was fitted on.

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
                f"a calibration needs a positive reference, scale and power, not {values}."
            )

    def __call__(self, kappa: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """The calibrated kappas."""
        return self.scale * self.reference * (kappa / self.reference) ** self.power


def fit_calibration(
    query: VonMisesFisher,
    partner: VonMisesFisher,
    *,
    kappa_pos: float,
    mass: float = 0.9,
) -> Calibration:
    """The calibration with which predictive caps of ``mass`` hold that share of these pairs' partners.

    Scale and power are not both fixed by one share: of all that give it, those are taken under which the angles to the
    partners are most likely, and the power is 1 unless another is better by more than twice the standard error. Where
    no scale gives the share (the partners are closer to each other than kappa_pos alone allows), the kappas are the
    largest that still change something: raise kappa_pos.

    Cost: some 140 series a pair.

    Examples
    --------
    >>> rng = torch.Generator().manual_seed(0)
    >>> mu = torch.nn.functional.normalize(torch.randn(2000, 6, generator=rng), dim=-1)
    >>> truth = VonMisesFisher(mu, 50.0)
    >>> near = VonMisesFisher(truth.sample(generator=rng), 30.0).sample(generator=rng)  # the partner's latent
    >>> other = VonMisesFisher(near, 50.0).sample(generator=rng)
    >>> doubtful = VonMisesFisher(mu, 20.0), VonMisesFisher(other, 20.0)
    >>> found = fit_calibration(*doubtful, kappa_pos=30.0)
    >>> round(found(torch.tensor(20.0)).item())
    50
    """
    if not 0 < mass < 1:
        raise InvalidInputError(f"mass must lie between 0 and 1, not {mass}.")
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
        """The log densities of the angles, but for what no kappa changes."""
        left, right = self.kappas(power, self.log_scale(power, mass))
        cosine = torch.cos(self.angle)
        return log_positivity(cosine, left, right, self.kappa_pos, self.dim)


def _golden(
    function: Callable[[float], float], low: float, high: float, *, tolerance: float = 0.05
) -> float:
    """Where a function of one valley is least, by golden sections."""
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
