"""Modes: how well mixtures with c components are recovered, up to a rotation and the order of components."""

from itertools import permutations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole.distributions import MixtureVMF
from aureole.errors import InvalidInputError
from aureole.evaluation._ranks import spearman
from aureole.sphere import align


def align_mixtures(
    found: MixtureVMF, truth: MixtureVMF, *, rounds: int = 20
) -> Float[Tensor, "dim dim"]:
    """The orthogonal map that takes found modes to true ones.

    It starts from the mixtures' mean vectors, which do not depend on the order of components, and then alternates
    between matching components and aligning the matched ones. Mixtures of different sizes stay with the start.
    """
    rotation = align(found.mean, truth.mean)
    if found.mu.shape != truth.mu.shape:
        return rotation
    for _ in range(rounds):
        order = match_components(rotate_mixture(found, rotation), truth)
        matched = found.mu.gather(-2, order.unsqueeze(-1).expand_as(found.mu))
        new = align(matched.flatten(0, 1), truth.mu.flatten(0, 1))
        if torch.allclose(new, rotation, atol=1e-6):
            break
        rotation = new
    return rotation


def rotate_mixture(mixture: MixtureVMF, rotation: Float[Tensor, "dim dim"]) -> MixtureVMF:
    """The mixture with its modes turned."""
    return MixtureVMF(mixture.weights, mixture.mu @ rotation.T, mixture.kappa, validate_args=False)


def match_components(found: MixtureVMF, truth: MixtureVMF) -> Int[Tensor, "n c"]:
    """For each true component the found one that belongs to it, by the largest sum of cosines over all orders."""
    count = truth.weights.shape[-1]
    if found.weights.shape[-1] != count or count > 6:
        raise InvalidInputError(
            f"components can be matched where both sides have the same number, at most 6, but found has "
            f"{found.weights.shape[-1]} and truth {count}."
        )
    cosine = found.mu @ truth.mu.mT
    orders = torch.tensor(list(permutations(range(count))), device=cosine.device)
    scores = torch.stack([cosine[:, order, torch.arange(count)].sum(-1) for order in orders], -1)
    return orders[scores.argmax(-1)]


def mode_recovery(found: MixtureVMF, truth: MixtureVMF) -> dict[str, float]:
    """Errors of modes, weights and kappa of aligned mixtures of the same size, component by component.

    ``mode_degrees`` is the mean angle between a true mode and the found one that belongs to it, and ``modes_found``
    the share of inputs with both, or all, modes within 20 degrees.
    """
    order = match_components(found, truth)
    mu = found.mu.gather(-2, order.unsqueeze(-1).expand_as(found.mu))
    angle = torch.rad2deg(torch.acos((mu * truth.mu).sum(-1).clamp(-1, 1)))
    weights, kappa = found.weights.gather(-1, order), found.kappa.gather(-1, order)
    return {
        "mode_degrees": angle.mean().item(),
        "mode_degrees_median": angle.median().item(),
        "modes_found": (angle < 20).all(-1).double().mean().item(),
        "weight_mae": (weights - truth.weights).abs().mean().item(),
        "weight_rank": spearman(weights[:, 0], truth.weights[:, 0]),
        "kappa_mae": (kappa - truth.kappa).abs().mean().item(),
        "kappa_rank": spearman(kappa.flatten(), truth.kappa.flatten()),
    }


def divergence(
    found: MixtureVMF, truth: MixtureVMF, *, n: int = 64, generator: torch.Generator | None = None
) -> float:
    """The mean Kullback-Leibler divergence KL(truth, found) of aligned posteriors in nats, from n draws each."""
    component = torch.multinomial(truth.weights, n, replacement=True, generator=generator)
    draws = truth.components.sample((n,), generator=generator)
    index = component.T[..., None, None].expand(n, len(component), 1, truth.dim)
    z = draws.gather(-2, index).squeeze(-2)
    return (truth.log_prob(z) - found.log_prob(z)).double().mean().item()
