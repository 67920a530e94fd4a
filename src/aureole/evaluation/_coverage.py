"""Coverage: how often a region that promises a mass holds what it promises to hold."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.sphere import pairwise_positivity, predictive_mass

MASSES = (0.5, 0.8, 0.9, 0.95, 0.99)


def latent_coverage(
    posterior: VonMisesFisher,
    latents: Float[Tensor, "k n dim"],
    *,
    rotation: Float[Tensor, "dim dim"] | None = None,
    masses: Sequence[float] = MASSES,
) -> dict[float, float]:
    r"""How often the credible cap :math:`\{z : \mu^Tz \ge t_p\}` of each posterior holds its true latents.

    ``rotation`` takes mu to the latents' frame, as ``sphere.align(found, true)`` gives it; fit it on other inputs than
    those checked here. Heights 1 - cosine are compared, since cosines crowd at 1 where kappa is large.

    Examples
    --------
    >>> q = VonMisesFisher(torch.eye(5), 20.0)
    >>> rng = torch.Generator().manual_seed(0)
    >>> found = latent_coverage(q, q.sample((2000,), generator=rng), masses=(0.5, 0.9))
    >>> {mass: round(share, 2) for mass, share in found.items()}
    {0.5: 0.5, 0.9: 0.9}
    """
    mu = posterior.mu.double()
    mu = mu if rotation is None else mu @ rotation.T.double()
    height = 0.5 * (mu - latents.double()).square().sum(-1)  # 1 - cosine, with all its digits
    return {
        mass: (height <= posterior.credible_height(mass)).double().mean().item() for mass in masses
    }


def partner_coverage(
    query: VonMisesFisher,
    gallery: VonMisesFisher,
    partner: Int[Tensor, " n"],
    *,
    kappa_pos: float,
    masses: Sequence[float] = MASSES,
) -> dict[float, float]:
    """How often the predictive cap of each query holds the mu of its partner, given by its place in the gallery.

    A query's predictive cap holds the gallery's items closest in cosine whose chances to be the partner, proportional
    to their expected positivity, reach the mass. The item that crosses it is counted in proportion, so that the
    expected coverage of a right posterior is the mass itself. Cost: n m terms of the series.
    """
    if partner.shape != query.kappa.shape:
        raise InvalidInputError(
            f"{len(query.kappa)} queries need as many partners, but got {tuple(partner.shape)}."
        )
    totals = dict.fromkeys(masses, 0.0)
    for rows in torch.arange(len(partner), device=partner.device).split(
        max(1, 2**20 // len(gallery.kappa))
    ):
        cosine = (query.mu[rows].double() @ gallery.mu.double().T).clamp(-1, 1)
        values, _ = pairwise_positivity(
            cosine, query.kappa[rows].double(), gallery.kappa.double(), kappa_pos, query.dim
        )
        chance = values.clamp(min=0)  # cancelling terms can round below 0
        chance = chance / chance.sum(-1, keepdim=True)
        own = cosine.gather(1, partner[rows].unsqueeze(1))
        before = torch.where(cosine > own, chance, 0.0).sum(-1)
        weight = torch.where(cosine == own, chance, 0.0).sum(-1)
        for mass in masses:
            totals[mass] += ((mass - before) / weight).clamp(0, 1).sum().item()
    return {mass: total / len(partner) for mass, total in totals.items()}


def partner_angle(query: VonMisesFisher, partner: VonMisesFisher) -> Float[Tensor, "*batch"]:
    r"""The angles between each query's mu and its partner's, in float64: :math:`2\arcsin(|\mu - \mu^+|/2)`."""
    if query.mu.shape != partner.mu.shape:
        raise InvalidInputError(
            f"queries of shape {tuple(query.mu.shape)} need as many partners, not {tuple(partner.mu.shape)}."
        )
    half = (query.mu.detach().double() - partner.mu.detach().double()).norm(dim=-1) / 2
    return 2 * torch.asin(half.clamp(max=1))


def predictive_coverage(
    query: VonMisesFisher,
    partner: VonMisesFisher,
    *,
    kappa_pos: float,
    masses: Sequence[float] = MASSES,
) -> dict[float, float]:
    """How often the predictive cap of a query (``VonMisesFisher.predictive_cosine``) holds its partner's mu.

    Unlike ``partner_coverage`` it takes mu to be uniform over the sphere and needs no gallery. Cost: one series a pair.

    Examples
    --------
    >>> rng = torch.Generator().manual_seed(0)
    >>> q = VonMisesFisher(torch.eye(6)[0].expand(5000, 6), 40.0)
    >>> near = VonMisesFisher(q.sample(generator=rng), 30.0).sample(generator=rng)
    >>> partner = VonMisesFisher(VonMisesFisher(near, 20.0).sample(generator=rng), 20.0)
    >>> found = predictive_coverage(q, partner, kappa_pos=30.0, masses=(0.5, 0.9))
    >>> {mass: round(share, 2) for mass, share in found.items()}
    {0.5: 0.5, 0.9: 0.9}
    """
    angle = partner_angle(query, partner)
    inside = predictive_mass(angle, query.kappa, partner.kappa, kappa_pos, query.dim)
    return {mass: (inside <= mass).double().mean().item() for mass in masses}
