"""Questions: a request as the index and the encoder take it, or the fault that it has."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from aureole.distributions import VonMisesFisher
from aureole.serve import _models as models
from aureole.serve._engine import Plan
from aureole.serve._faults import Fault


@dataclass(frozen=True)
class Asked:
    """A query as it was understood: its posterior, or the item it is."""

    posterior: VonMisesFisher | None
    item: str | None
    about: str


def inputs_of(request: Any) -> tuple[str, list[Any], models.View | None]:
    """(Kind, inputs, view) of a request to embed."""
    view = getattr(request, "view", None)
    for kind in ("text", "image", "vector"):
        if hasattr(request, kind):
            return kind, [getattr(request, kind)], view
        if hasattr(request, f"{kind}s"):
            return kind, list(getattr(request, f"{kind}s")), view
    raise AssertionError("a request that the types do not know")


def filter_of(asked: dict[str, Any] | None) -> dict[str, Any] | None:
    """A filter as the index takes it: ranges are tuples there."""
    if not asked:
        return None
    return {
        name: (demand.low, demand.high) if isinstance(demand, models.Range) else demand
        for name, demand in asked.items()
    }


def posterior_of(query: models.ByPosterior, dim: int) -> VonMisesFisher:
    """The posterior that a query gives by itself: a direction of the gallery's dimension, and a kappa."""
    if len(query.mu) != dim:
        raise Fault(
            "invalid_input",
            f"mu must have the gallery's {dim} dimensions, but has {len(query.mu)}.",
            field="query.mu",
        )
    mu = np.array(query.mu)  # numpy reads a list ten times as fast as torch
    norm = float(np.linalg.norm(mu))
    if not abs(norm - 1) <= 0.01:
        raise Fault(
            "invalid_input",
            f"mu must be a direction of norm 1, but has norm {norm:.4g}.",
            field="query.mu",
        )
    kappa = torch.from_numpy(np.array(query.kappa, np.float32))
    direction = torch.from_numpy((mu / norm).astype(np.float32))
    return VonMisesFisher(direction, kappa, validate_args=False)


def plan_of(
    request: models.SearchRequest,
    *,
    calibrated: bool,
    kappa_pos: float | None,
    label: str | None,
    columns: tuple[str, ...],
) -> Plan:
    """What the engine is to do for a search; what the gallery cannot do is refused."""
    guarantee = None if request.guarantee == "model" else request.guarantee
    if guarantee and not calibrated:
        raise Fault(
            "invalid_input",
            "this gallery has no calibration: build it with --group-column, which says what belongs together, and "
            "--conformal TABLE, whose rows the head has not seen.",
            field="guarantee",
        )
    kind = request.kind or ("predictive" if guarantee else "credible")
    needs = request.rank == "positivity" or request.prior is not None or kind == "predictive"
    if needs and not guarantee:
        demand_kappa_pos(kappa_pos)
    demands = filter_of(request.filter)
    return Plan(
        mass=request.mass,
        label=label,
        limit=request.limit,
        kind=kind,
        rank=request.rank,
        guarantee=guarantee,
        prior=request.prior,
        widest=request.widest,
        exact=request.exact,
        count=request.count,
        kappa_pos=kappa_pos,
        columns=columns,
        # not as JSON, which writes a range and a list alike
        asked="" if not demands else repr(sorted(demands.items())),
        filter=demands,
    )


def demand_kappa_pos(kappa_pos: float | None) -> float:
    """The kappa_pos itself; what needs it is refused where nobody knows it."""
    if kappa_pos is None:
        raise Fault(
            "invalid_input",
            "positivity, P(positive) and predictive caps need kappa_pos, and neither the gallery nor the encoder "
            "says what it is.",
        )
    return kappa_pos
