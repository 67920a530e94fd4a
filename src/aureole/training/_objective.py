"""The objective of a step: the loss of a batch, by one process or by ranks that share the work.

Ranks draw the same batch. Each encodes its part of the inputs, all gather the posteriors, and each computes the loss of
its part of the anchors against everything. So the batch, its negatives and the update do not depend on their number.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from aureole.data import PairBatch, Triplets
from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.losses import ContrastiveLoss, gather_posteriors, n_ranks, rank

Batch = PairBatch | Triplets
Posterior = VonMisesFisher | MixtureVMF


def objective(
    module: nn.Module, loss: ContrastiveLoss, batch: Batch, device: torch.device
) -> tuple[Tensor, Posterior]:
    """(The loss of a batch, the posteriors of its inputs or negatives)."""
    if isinstance(batch, PairBatch):
        posterior = module(batch.inputs.to(device))
        values = loss.among(posterior, batch.pairs.to(device))
        return values * (len(batch.pairs) / batch.expected_pairs), posterior
    everyone = module(_inputs(batch).to(device))
    return loss(*_triplets(everyone, batch)), everyone


def shared_objective(
    module: nn.Module, loss: ContrastiveLoss, batch: Batch, device: torch.device, *, seed: int
) -> tuple[Tensor, Posterior]:
    """(The number of ranks times this rank's part of the loss of a batch, the posteriors of all its inputs).

    The mean over ranks is the loss of the batch, and so are the gradients' means those of one process, to rounding.
    An encoder that draws (dropout) draws for each rank on its own; losses draw alike on all ranks, so that pairs among
    items have the same draws whatever the number of ranks. With R ranks each does 1/R of the encoding. The closed form
    computes N^2 / R positivities of N items on each rank, where one process needs N^2 / 2, as they are symmetric;
    other losses compute all of them on every rank.
    """
    ranks, inputs = n_ranks(), _inputs(batch)
    n = len(inputs)
    each = -(-n // ranks)
    rows = torch.arange(rank() * each, (rank() + 1) * each).clamp(max=n - 1)  # the last is padding
    with seeded(seed + 1 + rank(), device):
        own = module(inputs[rows].to(device))
    gathered = gather_posteriors(own)
    everyone = _take(gathered, slice(0, n))
    with seeded(seed, device):
        if isinstance(batch, PairBatch):
            part = part_of(len(batch.inputs))
            total = loss.share_among(everyone, batch.pairs.to(device), part)
            return total * (ranks / batch.expected_pairs), everyone
        total = loss.share(*_triplets(everyone, batch), part_of(len(batch.anchor)))
        return total * (ranks / len(batch.anchor)), everyone


def part_of(n: int) -> slice:
    """The part of n things that is this rank's; the parts of all ranks make up the whole and differ by one at most.

    Examples
    --------
    >>> part_of(10)
    slice(0, 10, None)
    """
    first, last = (n * (rank() + more) // n_ranks() for more in (0, 1))
    return slice(first, last)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """A context in which torch's global generator, which losses draw from, has a seed of its own."""
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]):
        torch.manual_seed(seed % 2**63)
        yield


def _inputs(batch: Batch) -> Tensor:
    """All inputs of a batch in one tensor."""
    if isinstance(batch, PairBatch):
        return batch.inputs
    parts = [batch.anchor, batch.positive]
    if batch.negative is not None:
        parts.append(batch.negative.reshape(-1, *batch.anchor.shape[1:]))
    return torch.cat(parts)


def _triplets(everyone: Any, batch: Triplets) -> tuple[Any, Any, Any]:
    """Anchors, partners and negatives (or None) among the posteriors of ``_inputs``."""
    n = len(batch.anchor)

    def take(part: slice, *shape: int) -> VonMisesFisher:
        mu, kappa = everyone.mu[part], everyone.kappa[part]
        return VonMisesFisher(
            mu.reshape(*shape, mu.shape[-1]), kappa.reshape(shape), validate_args=False
        )

    negative = None
    if batch.negative is not None:
        shape = batch.negative.shape[: batch.negative.dim() - batch.anchor.dim() + 1]
        negative = take(slice(2 * n, None), *shape)
    return take(slice(0, n), n), take(slice(n, 2 * n), n), negative


def _take(posterior: Posterior, rows: slice) -> Posterior:
    mu, kappa = posterior.mu[rows], posterior.kappa[rows]
    if isinstance(posterior, MixtureVMF):
        return MixtureVMF(posterior.weights[rows], mu, kappa, validate_args=False)
    return VonMisesFisher(mu, kappa, validate_args=False)
