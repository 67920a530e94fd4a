r"""Caps: the region of the sphere that a query's posterior asks for, as a least cosine t to its mu.

Two kinds, never to be mixed up:

- ``credible``: :math:`P(\mu^T z \ge t) = p` for the query's own latent z;
- ``predictive``: :math:`P(\mu^T \mu^+ \ge t) = p` for the mu+ of a partner with concentration ``kappa_other``. It is
  wider, by the partner's posterior and by kappa_pos, and the only one that can be checked on real data.

A mixture asks for a union of caps, one for each component. All thresholds are float64.
"""

import math
from functools import lru_cache
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.sphere import cap_angle, cap_mass, log_scaled_normalizer, predictive_angle

Kind = Literal["credible", "predictive"]
Posterior = VonMisesFisher | MixtureVMF
_CELLS, _STEPS = 32, 12  # a level's bracket is cut into cells, again and again: 2^-60 of it is left


def cap_cosine(
    posterior: Posterior,
    mass: float,
    *,
    kind: Kind = "credible",
    kappa_pos: float | None = None,
    kappa_other: float | None = None,
) -> Float[Tensor, "..."]:
    """The least cosine to mu inside each posterior's cap of ``mass``; for mixtures one for each component.

    At mass 1 the cap is the whole sphere, -1, except of a point (kappa = inf), which needs no room. A mixture's
    component may have no cap: its threshold is then inf. The predictive kind needs ``kappa_pos`` and ``kappa_other``;
    it costs 384 positivities for each kappa it has not met before, a tenth of a second or so.

    Examples
    --------
    >>> q = VonMisesFisher(torch.eye(10)[:2], torch.tensor([24.0, 200.0]))
    >>> cap_cosine(q, 0.9)
    tensor([0.7176, 0.9636], dtype=torch.float64)
    >>> cap_cosine(q, 0.9, kind="predictive", kappa_pos=20.0, kappa_other=24.0)
    tensor([0.2817, 0.4312], dtype=torch.float64)
    """
    mass = check_mass(mass)
    if kind == "credible":
        if isinstance(posterior, MixtureVMF):
            return union_cosines(posterior, mass)
        level = torch.tensor(mass, dtype=torch.float64)
        return torch.cos(cap_angle(level, posterior.kappa.double(), posterior.dim))
    if kind != "predictive":
        raise InvalidInputError(f"kind must be 'credible' or 'predictive', but is {kind!r}.")
    if kappa_pos is None or kappa_other is None:
        raise InvalidInputError(
            "a predictive cap needs kappa_pos, how close the latents of two partners are, and kappa_other, the "
            "concentration of the partner's posterior."
        )
    if not (kappa_pos >= 0 and kappa_other >= 0):
        raise InvalidInputError(
            f"kappa_pos and kappa_other must be at least 0, but are {kappa_pos} and {kappa_other}."
        )
    distinct, place = torch.unique(posterior.kappa.double(), return_inverse=True)
    cosines = [
        _predictive_cosine(mass, k, float(kappa_other), float(kappa_pos), posterior.dim)
        for k in distinct.tolist()
    ]
    found = torch.tensor(cosines, dtype=torch.float64)[place]
    if isinstance(posterior, MixtureVMF):  # a component of weight 0 is not there
        found = torch.where(posterior.weights > 0, found, torch.inf)
    return found


def union_cosines(posterior: MixtureVMF, mass: float) -> Float[Tensor, "*batch k"]:
    r"""The least cosines to each component's mu of caps whose union holds at least ``mass``; inf is no cap.

    The caps share one level of weighted density, :math:`\{z : w_j\,\mathrm{vMF}(z; \mu_j, \kappa_j) \ge \lambda\}`,
    the highest at which :math:`\sum_j w_j P_j(\mathrm{cap}_j)` reaches the mass. The union holds at least that sum,
    since it holds every component's own cap. One level rather than one mass for each component: it is close to the
    smallest region of this mass, and a component of little weight gets a small cap or none, where equal masses would
    give it a full one and with it a crowd of unlikely results. Where components overlap the union holds more than
    asked.

    Examples
    --------
    >>> mixture = MixtureVMF(torch.tensor([0.98, 0.02]), torch.eye(5)[:2], torch.tensor([50.0, 50.0]))
    >>> union_cosines(mixture, 0.7)
    tensor([0.9504,    inf], dtype=torch.float64)
    >>> union_cosines(mixture, 0.99)
    tensor([0.8593, 0.9372], dtype=torch.float64)
    """
    mass = check_mass(mass)
    kappa, weights = posterior.kappa.double(), posterior.weights.double()
    weights = weights / weights.sum(-1, keepdim=True)
    here, point = weights > 0, torch.isinf(kappa)
    if mass == 1:
        return torch.where(here, torch.where(point, 1.0, -1.0), torch.inf).double()
    finite = torch.where(point, 0.0, kappa)
    peak = torch.log(weights) + log_scaled_normalizer(finite, posterior.dim)

    def heights(level: Tensor) -> Tensor:
        """Heights of the caps at a level [*batch, 1]: negative is no cap."""
        above = peak - level
        flat = finite == 0
        height = above / torch.where(flat, 1.0, finite)
        height = torch.where(flat, torch.where(above >= 0, 2.0, -1.0), height).clamp(max=2.0)
        return torch.where(here, torch.where(point, height.clamp(min=0.0), height), -1.0)

    def enough(level: Tensor) -> Tensor:
        height = heights(level)
        held = cap_mass(height.clamp(min=0.0), kappa, posterior.dim)
        held = torch.where((height > 0) | (point & here), held, 0.0)
        return (weights * held).sum(-1, keepdim=True) >= mass

    seen = torch.where(here & ~point, peak, -torch.inf)
    high = torch.nan_to_num(seen.amax(-1, keepdim=True), neginf=0.0)
    low = torch.where(here & ~point, peak - 2 * finite, high).amin(-1, keepdim=True)
    cells = torch.arange(_CELLS + 1, dtype=torch.float64) / _CELLS
    for _ in range(_STEPS):
        levels = low + (high - low) * cells  # [*batch, cells + 1]
        reached = enough(levels.movedim(-1, 0).unsqueeze(-1)).squeeze(-1).movedim(0, -1)
        last = (reached[..., 1:].sum(-1, keepdim=True)).clamp(max=_CELLS - 1)
        low, high = levels.gather(-1, last), levels.gather(-1, last + 1)
    height = heights(low)
    return torch.where(height >= 0, 1 - height, torch.inf)


def too_wide(
    posterior: Posterior, mass: float, widest: float, **cap: float | str | None
) -> Bool[Tensor, "*batch"]:
    """Whether a query should be asked back: its cap of ``mass`` (the widest, for a mixture) exceeds an angle.

    ``widest`` is in radians; ``cap`` holds the further arguments of ``cap_cosine``.

    Examples
    --------
    >>> too_wide(VonMisesFisher(torch.eye(10)[:2], torch.tensor([5.0, 200.0])), 0.9, math.pi / 4)
    tensor([ True, False])
    """
    if not 0 <= widest <= math.pi:
        raise InvalidInputError(
            f"widest must be an angle in radians between 0 and pi, but is {widest}."
        )
    least = cap_cosine(posterior, mass, **cap)  # pyright: ignore[reportArgumentType]
    if isinstance(posterior, MixtureVMF):
        least = least.amin(-1)
    return torch.acos(least.clamp(-1, 1)) > widest


def check_mass(mass: float) -> float:
    """The mass itself, if it is a probability."""
    if isinstance(mass, Tensor) or not 0 <= mass <= 1:
        raise InvalidInputError(f"mass must be one number between 0 and 1, but is {mass!r}.")
    return float(mass)


@lru_cache(maxsize=2**16)
def _predictive_cosine(
    mass: float, kappa: float, kappa_other: float, kappa_pos: float, dim: int
) -> float:
    """Kept, since one is dear and queries come back; the angle of mass 1 is pi, not where the law fades."""
    if mass == 1:
        return -1.0
    own, other = (torch.tensor([k], dtype=torch.float64) for k in (kappa, kappa_other))
    with torch.no_grad():
        return math.cos(predictive_angle(mass, own, other, kappa_pos, dim).item())
