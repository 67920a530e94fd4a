"""The recovery of true mixtures, up to a rotation and the order of components."""

from itertools import permutations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole.distributions import MixtureVMF
from aureole.errors import InvalidInputError
from aureole.evaluation import spearman
from aureole.sphere import align


def align_mixtures(
    predicted: MixtureVMF, truth: MixtureVMF, *, rounds: int = 20
) -> Float[Tensor, "dim dim"]:
    """The orthogonal map from predicted modes to true ones.

    It starts from the mean vectors of the mixtures, which do not depend on the order of components, and then alternates
    between matching components and aligning the matched ones. If the mixtures differ in size, the start is returned.
    """
    rotation = align(predicted.mean, truth.mean)
    if predicted.mu.shape != truth.mu.shape:
        return rotation
    for _ in range(rounds):
        order = match_components(rotate_mixture(predicted, rotation), truth)
        matched = predicted.mu.gather(-2, order.unsqueeze(-1).expand_as(predicted.mu))
        new = align(matched.flatten(0, 1), truth.mu.flatten(0, 1))
        if torch.allclose(new, rotation, atol=1e-6):
            break
        rotation = new
    return rotation


def rotate_mixture(mixture: MixtureVMF, rotation: Float[Tensor, "dim dim"]) -> MixtureVMF:
    """The mixture with its modes rotated."""
    return MixtureVMF(mixture.weights, mixture.mu @ rotation.T, mixture.kappa, validate_args=False)


def match_components(predicted: MixtureVMF, truth: MixtureVMF) -> Int[Tensor, "n c"]:
    """For each true component the index of the predicted one, by the largest sum of cosines over all permutations."""
    count = truth.weights.shape[-1]
    if predicted.weights.shape[-1] != count or count > 6:
        raise InvalidInputError(
            "matching needs the same number of components in both mixtures, at most 6, but the prediction has "
            f"{predicted.weights.shape[-1]} and the truth {count}."
        )
    cosine = predicted.mu @ truth.mu.mT
    orders = torch.tensor(list(permutations(range(count))), device=cosine.device)
    scores = torch.stack([cosine[:, order, torch.arange(count)].sum(-1) for order in orders], -1)
    return orders[scores.argmax(-1)]


def mode_recovery(predicted: MixtureVMF, truth: MixtureVMF) -> dict[str, float]:
    """Errors of modes, weights and kappa of aligned mixtures of the same size, component by component.

    ``mode_degrees`` is the mean angle between a true mode and the matching predicted one, and ``modes_found`` the share
    of inputs for which all modes lie within 20 degrees.
    """
    order = match_components(predicted, truth)
    mu = predicted.mu.gather(-2, order.unsqueeze(-1).expand_as(predicted.mu))
    angle = torch.rad2deg(torch.acos((mu * truth.mu).sum(-1).clamp(-1, 1)))
    weights, kappa = predicted.weights.gather(-1, order), predicted.kappa.gather(-1, order)
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
    predicted: MixtureVMF,
    truth: MixtureVMF,
    *,
    n: int = 64,
    generator: torch.Generator | None = None,
) -> float:
    """The mean Kullback-Leibler divergence KL(truth, predicted) of aligned posteriors in nats, from n draws each."""
    component = torch.multinomial(truth.weights, n, replacement=True, generator=generator)
    draws = truth.components.sample((n,), generator=generator)
    index = component.T[..., None, None].expand(n, len(component), 1, truth.dim)
    z = draws.gather(-2, index).squeeze(-2)
    return (truth.log_prob(z) - predicted.log_prob(z)).double().mean().item()
