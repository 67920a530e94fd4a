r"""Caps and scores: how wide a cap a query needs, and how likely each hit inside it is a match.

A cap is the set of directions whose cosine with the query's mu is at least t. There are two kinds:

- ``credible``: :math:`P(\mu^T z \ge t) = p` for the query's own latent z;
- ``predictive``: :math:`P(\mu^T \mu^+ \ge t) = p` for the mu+ of a partner with concentration ``kappa_other``. It is
  wider, by the partner's posterior and by kappa_pos, and is the only one that can be checked on real data.

A search uses predictive caps whenever kappa_pos is known. A mixture needs a union of caps, one per component. All
thresholds are float64.
"""

import math
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from aureole._validation import check_dim
from aureole.caps._cap_tables import PartnerLaw, credible_cosines, predictive_cosines
from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.engines._schema import POINT
from aureole.errors import InvalidInputError
from aureole.sphere import cap_angle, cap_mass, log_positivity, log_scaled_normalizer
from aureole.sphere._angle import gauss_legendre, log_area_ratio
from aureole.sphere._bessel import log_hyp0f1_of_square, log_hyp0f1_scaled

Kind = Literal["credible", "predictive"]
Posterior = VonMisesFisher | MixtureVMF
_CELLS, _STEPS = 32, 12  # the bracket of a level is cut into cells 12 times: 2^-60 of it remains
_ENTRIES = 2**15  # positivities per block, so that the terms of their series fit in memory
_PANELS = 24
_NODES, _WEIGHTS = gauss_legendre(16)
_TAIL = 1e-13


def cap_cosine(
    posterior: Posterior,
    mass: float,
    *,
    kind: Kind = "credible",
    kappa_pos: float | None = None,
    kappa_other: float | None = None,
) -> Float[Tensor, "..."]:
    """The smallest cosine to mu inside each posterior's cap of ``mass``; for mixtures, one per component.

    At mass 1 the cap is the whole sphere (cosine -1), except for a point mass (kappa = inf), whose cap is a point. A
    component of a mixture may have no cap: its threshold is then inf. The predictive kind needs ``kappa_pos`` and
    ``kappa_other``.

    Caps come from the tables of :func:`credible_cosines` and :func:`predictive_cosines`. A credible cap whose kappa
    requires a gradient is solved for instead, and the result is differentiable in it.

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
        kappa = posterior.kappa
        if kappa.requires_grad and torch.is_grad_enabled():
            level = torch.tensor(mass, dtype=torch.float64)
            return torch.cos(cap_angle(level, kappa.double(), posterior.dim))
        values = kappa.numpy(force=True).astype(np.float64)
        cosines = credible_cosines(values.reshape(-1), (mass,), posterior.dim)
        found = torch.from_numpy(cosines.reshape(values.shape))
        return found if kappa.is_cpu else found.to(kappa.device)
    if kind != "predictive":
        raise InvalidInputError(f"kind must be 'credible' or 'predictive', but is {kind!r}.")
    if kappa_pos is None or kappa_other is None:
        raise InvalidInputError(
            "kind='predictive' needs kappa_pos (how close the latents of two partners are) and kappa_other (the "
            "concentration of the partner's posterior)."
        )
    if not (kappa_pos >= 0 and kappa_other >= 0):
        raise InvalidInputError(
            f"kappa_pos and kappa_other must be at least 0, but are {kappa_pos} and {kappa_other}."
        )
    values = posterior.kappa.numpy(force=True).astype(np.float64)
    other = math.inf if kappa_other >= POINT else float(kappa_other)
    law = PartnerLaw(other, float(kappa_pos), posterior.dim)
    cosines = predictive_cosines(values.reshape(-1), mass, law).reshape(values.shape)
    thresholds = torch.from_numpy(cosines)
    if isinstance(posterior, MixtureVMF):  # a component of weight 0 has no cap
        thresholds = torch.where(posterior.weights > 0, thresholds, torch.inf)
    return thresholds


def union_cosines(posterior: MixtureVMF, mass: float) -> Float[Tensor, "*batch k"]:
    r"""The smallest cosine to each component's mu of caps whose union holds at least ``mass``; inf means no cap.

    The caps share one level of weighted density, :math:`\{z : w_j\,\mathrm{vMF}(z; \mu_j, \kappa_j) \ge \lambda\}`,
    the highest at which :math:`\sum_j w_j P_j(\mathrm{cap}_j)` reaches the mass. The union holds at least that sum,
    since it contains every component's own cap. Sharing one level, rather than one mass per component, comes close to
    the smallest region of this mass: a component of small weight gets a small cap or none, where equal masses would
    give it a full cap and many unlikely results. Where components overlap, the union holds more than ``mass``.

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
        """Heights of the caps at a level [*batch, 1]; negative means no cap."""
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


def cap_kind(kind: Kind | None, kappa_pos: float | None, guarantee: str | None = None) -> Kind:
    """The kind of cap that a search uses: the requested one, else predictive if ``kappa_pos`` is known.

    A conformal guarantee is one of predictive caps.

    Examples
    --------
    >>> cap_kind(None, 20.0), cap_kind(None, None), cap_kind("credible", 20.0)
    ('predictive', 'credible', 'credible')
    """
    if kind is not None:
        return kind
    return "predictive" if guarantee is not None or kappa_pos is not None else "credible"


def too_wide(
    posterior: Posterior,
    mass: float,
    widest: float,
    *,
    kind: Kind = "credible",
    kappa_pos: float | None = None,
    kappa_other: float | None = None,
) -> Bool[Tensor, "*batch"]:
    """Return True for a query too vague to answer: its cap of ``mass`` is wider than ``widest`` radians.

    For a mixture the widest of its caps decides. The other arguments are those of :func:`cap_cosine`.

    Examples
    --------
    >>> too_wide(VonMisesFisher(torch.eye(10)[:2], torch.tensor([5.0, 200.0])), 0.9, math.pi / 4)
    tensor([ True, False])
    """
    check_angle(widest)
    threshold = cap_cosine(posterior, mass, kind=kind, kappa_pos=kappa_pos, kappa_other=kappa_other)
    if isinstance(posterior, MixtureVMF):
        threshold = threshold.amin(-1)
    return torch.acos(threshold.clamp(-1, 1)) > widest


def check_angle(widest: float) -> None:
    """Raise unless ``widest`` is an angle in radians."""
    if not 0 <= widest <= math.pi:
        raise InvalidInputError(
            f"widest must be an angle in radians between 0 and pi, but is {widest}."
        )


def check_mass(mass: float) -> float:
    """Return the mass as a float; raise unless it is a probability."""
    if isinstance(mass, Tensor) or not 0 <= mass <= 1:
        raise InvalidInputError(f"mass must be one number between 0 and 1, but is {mass!r}.")
    return float(mass)


def log_hit_positivity(
    cosine: Float[Tensor, " n"],
    kappa: Float[Tensor, " n"],
    kappa_hit: Float[Tensor, " n"],
    kappa_pos: float,
    dim: int,
) -> Float[Tensor, " n"]:
    r"""The log of the expected positivity :math:`S\,h` of each hit, computed in blocks that fit in memory.

    Examples
    --------
    >>> c, kappa = torch.tensor([1.0, 0.3], dtype=torch.float64), torch.tensor([24.0, 24.0])
    >>> log_hit_positivity(c, kappa, kappa, 20.0, dim=10)
    tensor([ 4.8082, -0.0602], dtype=torch.float64)
    """
    if not kappa_pos >= 0:
        raise InvalidInputError(f"kappa_pos must be at least 0, but is {kappa_pos}.")
    parts = (part.split(_ENTRIES) for part in (cosine, kappa, kappa_hit))
    with torch.no_grad():
        blocks = [
            log_positivity(c, own, hit, kappa_pos, dim) for c, own, hit in zip(*parts, strict=True)
        ]
    return torch.cat(blocks) if blocks else cosine.clone()


def positive_probability(
    log_ratio: Float[Tensor, "..."], prior: Float[Tensor, "..."] | float
) -> Float[Tensor, "..."]:
    r"""The probability that a hit is a positive, :math:`\pi S h / (\pi S h + 1 - \pi)`, from the log of S h.

    ``prior`` is the share of positives among all pairs of a query and an item: 1 / gallery size, where each query has
    one partner. The probability is meaningless without it, so it has no default. A prior of 0 or 1 stays what it is.

    Examples
    --------
    >>> positive_probability(torch.tensor([-1e4, 0.0, 6.9, 1e4]), prior=0.001)
    tensor([0.0000, 0.0010, 0.4983, 1.0000])
    """
    prior = torch.as_tensor(prior, dtype=torch.float64)
    if bool((~((prior >= 0) & (prior <= 1))).any()):
        raise InvalidInputError("prior must be a probability between 0 and 1.")
    certain = (prior == 0) | (prior == 1)
    inside = torch.where(certain, 0.5, prior)
    chance = torch.sigmoid(log_ratio.double() + torch.log(inside) - torch.log1p(-inside))
    return torch.where(certain, prior, chance).to(log_ratio.dtype)


def latent_in_cap(
    cosine: Float[Tensor, "..."],
    kappa: Float[Tensor, "..."],
    threshold: Float[Tensor, "..."],
    dim: int,
) -> Float[Tensor, "..."]:
    r"""The probability that an item's latent lies in a query's cap, :math:`P(\mu_q^T z \ge t)`, z ~ vMF(mu, kappa).

    ``cosine`` is that of the two mus, ``kappa`` the item's and ``threshold`` the cap's t. With gamma the angle between
    the mus, the angle phi of z to the query's mu has the density

    .. math:: \frac{\sin^{D-2}\phi}{B(\frac{D-1}{2}, \frac12)}\,
              \frac{e^{\kappa\cos\gamma\cos\phi}\,F_{(D-3)/2}(\kappa\sin\gamma\sin\phi)}{F_{D/2-1}(\kappa)},

    integrated by Gauss-Legendre sums over the part of the cap that z can reach. At gamma = 0 it is ``sphere.cap_mass``.
    Absolute error 1e-9; cost: 384 Bessel functions per entry.

    Examples
    --------
    >>> c = torch.tensor([1.0, 0.7, 0.3], dtype=torch.float64)
    >>> latent_in_cap(c, torch.tensor(24.0), torch.tensor(0.7176, dtype=torch.float64), dim=10)
    tensor([0.9000, 0.1697, 0.0017], dtype=torch.float64)
    """
    dim = check_dim(dim)
    c, k, t = torch.broadcast_tensors(cosine.double(), kappa.double(), threshold.double())
    point = torch.isinf(k)
    k = torch.where(point, 1.0, k)
    gamma = torch.acos(c.clamp(-1, 1))
    reach = cap_angle(torch.full_like(k, 1 - _TAIL), k, dim) * 1.1
    end = torch.acos(t.clamp(-1, 1))
    low = (gamma - reach).clamp(min=0.0)
    high = torch.minimum(torch.minimum(end, gamma + reach), torch.full_like(end, math.pi))
    width = (high - low).clamp(min=0.0).unsqueeze(-1) / _PANELS
    starts = low.unsqueeze(-1) + width * torch.arange(_PANELS, dtype=torch.float64)
    phi = (starts.unsqueeze(-1) + width.unsqueeze(-1) * _NODES).flatten(-2)
    c, k_wide = c.clamp(-1, 1).unsqueeze(-1), k.unsqueeze(-1)
    across = k_wide.square() * (1 - c) * (1 + c) * torch.sin(phi).square()
    value = k_wide * (c * torch.cos(phi) - 1) + log_hyp0f1_of_square((dim - 3) / 2, across)
    value = value - log_hyp0f1_scaled(dim / 2 - 1, k_wide) + log_area_ratio(dim)
    if dim > 2:
        value = value + (dim - 2) * torch.log(torch.sin(phi))
    mass = (torch.exp(value) * _WEIGHTS.repeat(_PANELS)).sum(-1) * width.squeeze(-1)
    inside = (cosine.double() >= threshold.double()).double()
    return torch.where(point, inside, mass.clamp(max=1.0)).to(cosine.dtype)


def class_entropy(labels: list, log_weights: Float[Tensor, " n"] | None = None) -> float:
    """The entropy, in nats, of the classes of the hits in a cap; NaN for an empty cap.

    ``log_weights`` weight the hits, for example by their log positivity.

    Examples
    --------
    >>> round(class_entropy(["cat", "dog", "cat", "dog"]), 4), class_entropy(["cat", "cat"])
    (0.6931, 0.0)
    """
    if not labels:
        return math.nan
    if log_weights is None:
        log_weights = torch.zeros(len(labels), dtype=torch.float64)
    if log_weights.shape != (len(labels),):
        raise InvalidInputError(
            f"{len(labels)} labels need {len(labels)} log_weights, but got shape {tuple(log_weights.shape)}."
        )
    place = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    rows = torch.tensor([place[label] for label in labels])
    share = torch.zeros(len(place), dtype=torch.float64)
    share = share.index_add(0, rows, torch.softmax(log_weights.double(), 0))
    return abs(float(torch.special.entr(share).sum()))
