"""How well predicted posteriors and mixtures recover the true ones, up to a rotation."""

from itertools import permutations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.evaluation._rank_correlation import spearman
from aureole.sphere import align, mean_resultant_complement


def recovery(
    posterior: VonMisesFisher,
    mu: Float[Tensor, "n dim"],
    kappa: Float[Tensor, " n"],
    *,
    spread: Float[Tensor, " n"] | None = None,
    max_items: int = 2000,
) -> dict[str, float]:
    """Errors and rank correlations of mu, kappa and spread against the truth of the same inputs.

    mu is compared through the cosines of all pairs of the first ``max_items`` inputs (2,000 have two million pairs).
    They do not change under rotation, and the two spheres may differ in dimension. "mae" is the mean absolute error,
    which is also what the paper's columns named RMSE contain. ``spread`` is the true mean cosine distance from the
    mode, which is also defined for families other than the vMF. Metrics that are undefined (for a constant or infinite
    kappa) are left out.

    Examples
    --------
    >>> q = VonMisesFisher(torch.eye(4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    >>> metrics = recovery(VonMisesFisher(-q.mu, q.kappa + 0.5), q.mu, q.kappa)
    >>> metrics["mu_mae"], metrics["kappa_mae"], metrics["kappa_rank"]
    (0.0, 0.5, 1.0)
    """
    if len(posterior.kappa) != len(kappa) or len(mu) != len(kappa):
        raise InvalidInputError(
            f"{len(posterior.kappa)} posteriors cannot be compared with {len(mu)} true mu and {len(kappa)} true kappa."
        )
    true_cosines, cosines = (_pair_cosines(x[:max_items]) for x in (mu, posterior.mu))
    result = {"mu_rank": spearman(true_cosines, cosines)}
    result |= _errors("mu", cosines - true_cosines)
    result["kappa_mean"] = posterior.kappa.double().mean().item()
    result["kappa_median"] = posterior.kappa.double().median().item()
    if bool(torch.isfinite(kappa).all()):
        result["kappa_true_mean"] = kappa.double().mean().item()
        result["kappa_rank"] = spearman(kappa, posterior.kappa)
        result |= _errors("kappa", posterior.kappa.double() - kappa.double())
    if spread is not None:
        own = mean_resultant_complement(posterior.kappa.double(), posterior.dim)
        result["spread_rank"] = spearman(spread.double(), own)
        result |= _errors("spread", own - spread.double())
    return {name: value for name, value in result.items() if value == value}


def _pair_cosines(mu: Tensor) -> Tensor:
    mu = mu.double()
    i, j = torch.tril_indices(len(mu), len(mu), -1, device=mu.device)
    return (mu @ mu.T)[i, j]


def _errors(name: str, difference: Tensor) -> dict[str, float]:
    return {
        f"{name}_mae": difference.abs().mean().item(),
        f"{name}_rmse": difference.square().mean().sqrt().item(),
    }


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
