"""Explanations: why a hit is in a query's set, as numbers."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from aureole.retrieval._conformal import ConformalMass
from aureole.retrieval._credible import Posterior
from aureole.retrieval._hits import Hits
from aureole.retrieval._scores import latent_in_cap

_ENTRIES = 2**12  # probabilities at a time: their Bessel functions fit the memory


@dataclass(frozen=True)
class Explanation:
    """The angles, in degrees, of hits to the query's mu and of its cap, and what the hits' own posteriors say.

    ``latent_in_cap`` is the probability that the latent of each hit lies in the cap, though its mu does: it is low for
    vague items. None if it was not asked for, and for a mixture, whose caps may overlap.
    """

    degrees: Float[Tensor, " n"]
    cap_degrees: Float[Tensor, " k"]
    latent_in_cap: Float[Tensor, " n"] | None


def describe_cap(
    mass: float,
    kind: str,
    *,
    kappa_pos: float | None,
    typical_kappa: float,
    conformal: ConformalMass | None = None,
) -> dict[str, Any]:
    """What a cap was computed with: its level (the mass after calibration), pairs and concentrations.

    With a conformal calibration the level and the concentrations are those of the calibration.

    Examples
    --------
    >>> describe_cap(0.9, "predictive", kappa_pos=20.0, typical_kappa=50.0)
    {'kind': 'predictive', 'mass': 0.9, 'level': 0.9, 'pairs': None, 'kappa_pos': 20.0, 'kappa_other': 50.0}
    """
    cap: dict[str, Any] = {"kind": kind, "mass": mass, "level": mass, "pairs": None}
    if conformal is not None:
        cap["level"], cap["pairs"] = conformal.level(mass, quiet=True), len(conformal.scores)
        return cap | {"kappa_pos": conformal.kappa_pos, "kappa_other": conformal.kappa_other}
    other = typical_kappa if kind == "predictive" else None
    return cap | {"kappa_pos": kappa_pos, "kappa_other": other}


def explain_hits(hits: Hits, posterior: Posterior, *, latent: bool = True) -> Explanation:
    """Why these are the hits of this query, batch shape (): angles, and probabilities to lie in the cap.

    The probabilities cost 384 Bessel functions a hit; ``latent=False`` leaves them out.

    Examples
    --------
    >>> from aureole.distributions import VonMisesFisher
    >>> from aureole.retrieval import CredibleIndex
    >>> gallery = VonMisesFisher(torch.eye(3), torch.tensor([50.0, 2.0, 90.0]))
    >>> index = CredibleIndex.create("faiss://", gallery, ["ant", "bee", "cat"])
    >>> query = VonMisesFisher(torch.tensor([0.8, 0.6, 0.0]), 5.0)
    >>> found = explain_hits(index.search(query, mass=0.95), query)
    >>> found.degrees, found.cap_degrees
    (tensor([36.8699, 53.1301], dtype=torch.float64), tensor([66.3577], dtype=torch.float64))
    >>> found.latent_in_cap
    tensor([0.9998, 0.5087], dtype=torch.float64)
    """
    cap = torch.where(hits.threshold > 1, torch.nan, hits.threshold)  # inf is no cap
    chance = None
    if latent and len(cap) == 1 and not math.isnan(float(cap[0])):
        parts = zip(hits.cosine.split(_ENTRIES), hits.kappa.split(_ENTRIES), strict=True)
        with torch.no_grad():
            found = [latent_in_cap(c, k, cap[0], posterior.dim) for c, k in parts]
        chance = torch.cat(found) if found else hits.cosine.clone()
    angles = [torch.rad2deg(torch.acos(x.clamp(-1, 1))) for x in (hits.cosine, cap)]
    return Explanation(angles[0], angles[1], chance)
