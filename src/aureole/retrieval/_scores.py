r"""Scores of a hit: its cosine, its expected positivity, the probability that it is a positive, and others.

The cosine is the one that decides who is in a cap: float64, of the float32 directions as stored, each divided by its
own norm, and summed in an order that depends on the dimension alone. So it does not matter which engine found a hit or
in what batch, and the cosine of a direction with itself is 1 exactly.
"""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from aureole._validation import check_dim
from aureole.errors import InvalidInputError
from aureole.sphere import (
    cap_angle,
    gauss_legendre,
    log_area_ratio,
    log_hyp0f1_of_square,
    log_hyp0f1_scaled,
    log_positivity,
)

_ENTRIES = 2**15  # positivities at a time: their series' terms fit the memory
_PANELS = 24
_NODES, _WEIGHTS = gauss_legendre(16)
_TAIL = 1e-13


def stored_direction(mu: Float[Tensor, "*batch dim"]) -> np.ndarray:
    """The directions as an index keeps them: normalised in float64, then rounded to float32."""
    wide = mu.detach().cpu().double()
    return torch.nn.functional.normalize(wide, dim=-1).float().numpy()


def exact_cosines(query: np.ndarray, mu: np.ndarray) -> np.ndarray:
    """The float64 cosines [n] of a float32 direction [D] with others [n, D], the same bits in any batch.

    Examples
    --------
    >>> mu = stored_direction(torch.tensor([[0.6, 0.8], [0.8, 0.6]]))
    >>> bool(exact_cosines(mu[0], mu)[0] == 1), round(float(exact_cosines(mu[0], mu)[1]), 6)
    (True, 0.96)
    """
    wide = mu.astype(np.float64)
    own = query.astype(np.float64)
    dot = np.einsum("nd,d->n", wide, own)
    square = np.einsum("nd,nd->n", wide, wide) * np.einsum("nd,nd->n", own[None], own[None])
    return np.clip(dot / np.sqrt(square), -1.0, 1.0)


def log_hit_positivity(
    cosine: Float[Tensor, " n"],
    kappa: Float[Tensor, " n"],
    kappa_hit: Float[Tensor, " n"],
    kappa_pos: float,
    dim: int,
) -> Float[Tensor, " n"]:
    r"""The log of the expected positivity :math:`S\,h` of each hit, with both kappas; in blocks that fit memory.

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
        found = [
            log_positivity(c, own, hit, kappa_pos, dim) for c, own, hit in zip(*parts, strict=True)
        ]
    return torch.cat(found) if found else cosine.clone()


def positive_probability(
    log_ratio: Float[Tensor, "..."], prior: Float[Tensor, "..."] | float
) -> Float[Tensor, "..."]:
    r"""The probability that a hit is a positive, :math:`\pi S h / (\pi S h + 1 - \pi)`, from the log of S h.

    ``prior`` is the share of positives among all pairs of a query and an item: 1 / gallery size, where each query has
    one partner. The probability means nothing without it, so it has no default. A prior of 0 or 1 is kept whatever
    the evidence.

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
    Absolute error 1e-9; cost 384 Bessel functions an entry.

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
    """The entropy, in nats, of the classes of the hits in a cap; NaN for none, since nothing is no certainty.

    ``log_weights`` weigh the hits, by their log positivity for example.

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
            f"{len(labels)} labels need as many log_weights, but got {tuple(log_weights.shape)}."
        )
    place = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    rows = torch.tensor([place[label] for label in labels])
    share = torch.zeros(len(place), dtype=torch.float64)
    share = share.index_add(0, rows, torch.softmax(log_weights.double(), 0))
    return abs(float(torch.special.entr(share).sum()))
