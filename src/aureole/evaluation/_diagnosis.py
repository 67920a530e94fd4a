"""A check of posteriors on matching pairs, with a warning and a remedy where kappa does not help."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from aureole._rank_correlation import spearman
from aureole.data._pairs import Groups, PairIndex
from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.errors import AureoleWarning, InvalidInputError
from aureole.evaluation._calibration import CAP_MASSES, predictive_coverage
from aureole.losses import ClosedFormInfoNCE
from aureole.sphere import information as posterior_information

_ITEMS, _NUMBERS = (
    1024,
    65_536,
)  # at most, of items and of items times D: the cost grows with the square
_SCALES = (0.5, 1.0, 2.0)  # of kappa; larger ones cost much more
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of 2 D, for kappa_pos
_ONE_SPOT = 0.98  # length of the mean of mu above which mu has collapsed
_FLAT = 0.01  # standard deviation of log kappa below which kappa is constant
_UNIFORM, _POINT = 0.01, 1e7  # nats of a posterior that says nothing, and the kappa of a point
_FEWEST = 8  # pairs below which nothing can be said
_LEAST = 0.02  # nats below which a loss of information is not worth a warning
_CLAMP = (1e-6, 1e8)


@dataclass(frozen=True)
class Diagnosis:
    """Statistics of a batch of posteriors, and with pairs also what they know about their partners.

    Attributes
    ----------
    mean_length
        ``|E mu|``: 0 for a centred cloud, 1 when all mu agree. If it grows while the loss stands still, the solution
        tilts: all mu lean towards an unused direction and kappa is inflated.
    smallest_eigenvalue
        That of E[mu mu^T] times D: 1 for an isotropic cloud, 0 when a direction is unused.
    kappa_low, kappa_median, kappa_high
        The 5 %, 50 % and 95 % quantiles.
    log_kappa_spread
        Standard deviation of log kappa: 0 for a constant kappa.
    n_pairs, kappa_pos
        How many pairs were looked at, and the kappa_pos that was used; 0 and NaN without pairs.
    information
        Information about a partner, in nats: the log number of candidates minus the loss; 0 by chance.
    gain
        What differences in kappa are worth, in nats: the information less that of the same mu with one kappa for all,
        each at the best of three scales of kappa. Negative where kappa ranks inputs the wrong way.
    agreement
        Rank correlation of kappa with how unsurprising partners are, as judged by mu and a single kappa; best is 1.
    coverage
        Share of partners inside predictive caps, by mass.
    problems
        What is wrong and what to do, one sentence or two each.
    """

    mean_length: float
    smallest_eigenvalue: float
    kappa_low: float
    kappa_median: float
    kappa_high: float
    log_kappa_spread: float
    n_pairs: int = 0
    kappa_pos: float = math.nan
    information: float = math.nan
    gain: float = math.nan
    agreement: float = math.nan
    coverage: dict[float, float] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def statistics(self) -> dict[str, float]:
        """The numbers that need no pairs, by name."""
        names = ("mean_length", "smallest_eigenvalue", "kappa_low", "kappa_median", "kappa_high")
        return {name: getattr(self, name) for name in (*names, "log_kappa_spread")}

    def __repr__(self) -> str:
        kappa = f"{self.kappa_low:.4g} to {self.kappa_high:.4g}, median {self.kappa_median:.4g}"
        lines = [f"kappa        {kappa} (5 % to 95 %)", f"mean of mu   {self.mean_length:.3f} long"]
        if self.n_pairs:
            covered = ", ".join(f"{m:.0%}: {share:.1%}" for m, share in self.coverage.items())
            lines = [
                f"pairs        {self.n_pairs}, kappa_pos {self.kappa_pos:g}",
                f"information  {self.information:.3f} nats; differences in kappa are worth {self.gain:+.3f}",
                f"agreement    {self.agreement:+.3f} (rank of kappa with how well partners are predicted)",
                f"coverage     {covered}",
                *lines,
            ]
        lines += [f"problem      {problem}" for problem in self.problems]
        return "Diagnosis:\n  " + "\n  ".join(lines)


@torch.no_grad()
def diagnose(
    posterior: VonMisesFisher | MixtureVMF,
    pairs: Any = None,
    *,
    kappa_pos: float | None = None,
    seed: int = 0,
    warn: bool = True,
) -> Diagnosis:
    """Check that posteriors predict their partners and that kappa helps; warn, with a remedy, where they do not.

    Use posteriors of held-out inputs. Warnings (``AureoleWarning``) are about a mu that is the same for all inputs, a
    kappa that is constant or has collapsed to 0 or infinity, information below chance, and a kappa that loses
    information against a single kappa for all, because it ranks inputs the wrong way. Fewer than eight pairs are too
    few for a warning.

    Parameters
    ----------
    posterior
        Posteriors [n]. At most 1,024 of them are used, at random; above D = 64 at most 65,536 / D. The cost is that of
        six losses of such a batch without gradients, eleven without a kappa_pos.
    pairs
        Pairs of rows that match [p, 2], or one group label for each row [n]. Without them only the statistics of the
        batch are computed, also for mixtures, and nothing warns.
    kappa_pos
        The one that the posteriors were trained with. Default: that of 0.5 D, D, 2 D, 4 D and 8 D with the highest
        information.
    seed
        Seed of the random choice.
    warn
        Whether to warn of problems; ``Diagnosis.problems`` has them in any case.

    Examples
    --------
    >>> rng = torch.Generator().manual_seed(0)
    >>> latent = torch.nn.functional.normalize(torch.randn(400, 8, generator=rng), dim=-1)
    >>> kappa = 5 + 95 * torch.rand(2, 400, generator=rng)
    >>> views = VonMisesFisher(VonMisesFisher(latent, kappa).sample(generator=rng), kappa)
    >>> rows = torch.arange(400)
    >>> found = diagnose(torch.cat([views[0], views[1]]), torch.stack([rows, rows + 400], 1))
    >>> found.information > 2, found.gain > 0, found.agreement > 0.2, found.problems
    (True, True, True, ())
    """
    if pairs is None:
        state = _statistics(posterior)
        return replace(state, problems=tuple(_collapses(state)))
    if not isinstance(posterior, VonMisesFisher) or len(posterior.batch_shape) != 1:
        raise InvalidInputError(
            f"diagnose takes VonMisesFisher posteriors of batch shape (n,), but got {posterior!r}."
        )
    rng = torch.Generator().manual_seed(seed)
    most = min(_ITEMS, max(_NUMBERS // posterior.dim, 64), len(posterior))
    rows, among = _partners(pairs, len(posterior)).draw(most, rng)
    if len(rows) < 3:
        raise InvalidInputError(
            f"the pairs are among {len(rows)} rows, which leaves no negatives: give at least two pairs of other rows."
        )
    whole = posterior.detach()
    items = whole[rows.to(posterior.device)].cpu()
    items = VonMisesFisher(items.mu, items.kappa.clamp(*_CLAMP), validate_args=False)
    if kappa_pos is None:
        tried = [2.0 * posterior.dim * factor for factor in _FACTORS]
        kappa_pos = max(tried, key=lambda value: -_losses(items, among, value).mean().item())
    scaled = _scaled_losses(items, items.kappa, among, kappa_pos)
    losses = scaled[_SCALES.index(1.0)]
    flat = torch.full_like(items.kappa, items.kappa.median().item())
    surprise = _lowest(_scaled_losses(items, flat, among, kappa_pos))
    difference = surprise - _lowest(scaled)
    once = among[among[:, 0] < among[:, 1]] if bool((among[:, 0] < among[:, 1]).any()) else among
    left, right = items[once[:, 0]], items[once[:, 1]]
    # the kappa of a pair, whose variances add
    first, second = (items.kappa[side].double() for side in among.T)
    found = replace(
        _statistics(whole),
        n_pairs=len(once),
        kappa_pos=float(kappa_pos),
        information=math.log(len(rows) - 1) - losses.mean().item(),
        gain=difference.mean().item(),
        agreement=spearman(1 / (1 / first + 1 / second), -surprise),
        coverage=predictive_coverage(left, right, kappa_pos=kappa_pos, masses=CAP_MASSES),
    )
    problems = ()
    if len(once) >= _FEWEST:
        error = 2 * difference.std().item() / math.sqrt(len(once))
        problems = tuple(_problems(found, whole, error=error))
    if warn:
        for problem in problems:
            warnings.warn(problem, AureoleWarning, stacklevel=3)  # past torch.no_grad
    return replace(found, problems=problems)


def _partners(pairs: Any, n: int) -> Groups | PairIndex:
    """The matching rows, from pairs or from labels."""
    values = pairs if isinstance(pairs, Tensor | np.ndarray) else np.asarray(pairs)
    if values.ndim == 2:
        return PairIndex.of(pairs, n)
    if len(pairs) != n:
        raise InvalidInputError(
            f"pairs must be row numbers [p, 2], or one group label for each of the {n} posteriors, but have shape "
            f"{tuple(values.shape)}."
        )
    return Groups.of(pairs)


def _losses(items: VonMisesFisher, pairs: Int[Tensor, "p 2"], kappa_pos: float) -> Tensor:
    return ClosedFormInfoNCE(kappa_pos, reduction="none").among(items, pairs).double()


def _scaled_losses(
    items: VonMisesFisher, kappa: Tensor, pairs: Int[Tensor, "p 2"], kappa_pos: float
) -> list[Tensor]:
    """The losses with kappa at each of three scales."""
    scaled = ((scale * kappa).clamp(*_CLAMP) for scale in _SCALES)
    each = (VonMisesFisher(items.mu, k, validate_args=False) for k in scaled)
    return [_losses(q, pairs, kappa_pos) for q in each]


def _lowest(losses: list[Tensor]) -> Tensor:
    return min(losses, key=lambda each: each.mean().item())


def _statistics(posterior: VonMisesFisher | MixtureVMF) -> Diagnosis:
    mu, kappa = posterior.mu.float().flatten(0, -2), posterior.kappa.float().flatten()
    moment = mu.T @ mu / len(mu)
    finite = kappa.clamp(max=1e30).double().cpu().numpy()
    low, median, high = np.quantile(finite, (0.05, 0.5, 0.95)).tolist()
    return Diagnosis(
        mean_length=mu.mean(0).norm().item(),
        smallest_eigenvalue=torch.linalg.eigvalsh(moment)[0].item() * posterior.dim,
        kappa_low=low,
        kappa_median=median,
        kappa_high=high,
        log_kappa_spread=kappa.clamp(_CLAMP[0], 1e30).log().std().item(),
    )


def _collapses(state: Diagnosis) -> Sequence[str]:
    """What is wrong with the statistics of a batch."""
    problems = []
    if state.mean_length > _ONE_SPOT:
        problems.append(
            f"mu has collapsed: the mean of mu has length {state.mean_length:.3f}, so all inputs get the same "
            "mu. Call encoder.initialise(inputs) before training, lower the learning rate, or check the pairs."
        )
    if state.log_kappa_spread < _FLAT:
        problems.append(
            f"kappa is constant: it is {state.kappa_median:.4g} for nearly all inputs (standard deviation of "
            f"log kappa {state.log_kappa_spread:.1e}). Either all inputs are equally certain, or kappa was not "
            "trained for long enough."
        )
    return problems


def _problems(found: Diagnosis, posterior: VonMisesFisher, *, error: float) -> Sequence[str]:
    """What is wrong, and what to do; ``error`` is twice the standard error of the gain."""
    problems = list(_collapses(found))
    known = posterior_information(
        torch.tensor(found.kappa_high, dtype=torch.float64), posterior.dim
    )
    if known.item() < _UNIFORM:
        problems.append(
            f"kappa has collapsed to 0: 95 % of the inputs have a kappa below {found.kappa_high:.2g}, so that their "
            "posteriors say nothing. Check that the pairs match, start from a larger kappa, or lower the learning rate."
        )
    elif found.kappa_low > _POINT:
        problems.append(
            f"kappa has collapsed to infinity: 95 % of the inputs have a kappa above {found.kappa_low:.2g}. Partners "
            "are closer than kappa_pos allows: raise kappa_pos, or use more negatives."
        )
    if found.gain < -max(error, _LEAST):
        problems.append(
            f"kappa carries negative information: one kappa for all would give {-found.gain:.3f} nats more, so kappa "
            "ranks inputs the wrong way. Use PosteriorHead, whose kappa starts constant, train for longer, or fit a "
            "FrozenHead to the embeddings."
        )
    elif found.information < -_LEAST:
        problems.append(
            f"the posteriors carry negative information about their partners ({found.information:.3f} nats; chance is "
            "0). Check that the pairs match and that kappa_pos is the one of the training, or train for longer."
        )
    return problems
