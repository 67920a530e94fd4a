"""Distributed training with torch.distributed: the process group, and the loss of a batch shared by all ranks.

All ranks draw the same batch. Each encodes its part of the inputs, all gather the posteriors, and each computes the
loss of its part of the anchors against everything. So the batch, its negatives and the update do not depend on the
number of ranks.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Int
from torch import Tensor, nn

from aureole.data import PairBatch, Triplets
from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.losses import ContrastiveLoss
from aureole.losses._negatives import gather_posteriors, n_ranks, rank

Batch = PairBatch | Triplets
Posterior = VonMisesFisher | MixtureVMF


def launched() -> int:
    """The number of ranks that the launcher (such as torchrun) has started; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", 1)) if "RANK" in os.environ else 1


def is_first() -> bool:
    """Whether this process is rank 0, before or after joining the process group; only rank 0 prints."""
    return launched() == 1 or os.environ["RANK"] == "0"


@contextmanager
def joined() -> Iterator[int]:
    """A context that joins the process group of the launcher and yields the rank.

    The backend is gloo on CPUs and NCCL on GPUs. Without a launcher, or if the group exists already, this does nothing.
    """
    if launched() == 1 or dist.is_initialized():
        yield rank()
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend)
    try:
        yield rank()
    finally:
        dist.destroy_process_group()


def from_first(value: Any) -> Any:
    """Broadcast the value of rank 0 to all ranks; it is sent as JSON, never pickled.

    Examples
    --------
    >>> from_first({"step": 3})
    {'step': 3}
    """
    if n_ranks() == 1:
        return value
    text = json.dumps(value).encode() if rank() == 0 else b""
    size = torch.tensor([len(text)])
    dist.broadcast(size, 0)
    buffer = torch.zeros(int(size), dtype=torch.uint8)
    if rank() == 0:
        buffer.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    dist.broadcast(buffer, 0)
    return json.loads(bytes(buffer.tolist()))


def check_same_step(step: int, where: str) -> None:
    """Raise an error if the ranks resumed from different steps, because they read different files."""
    if n_ranks() == 1:
        return
    gathered = [torch.zeros(1, dtype=torch.int64) for _ in range(n_ranks())]
    dist.all_gather(gathered, torch.tensor([step]))
    steps = [int(value) for value in gathered]
    if len(set(steps)) > 1:
        raise InvalidInputError(
            f"the ranks read different checkpoints from {where} (steps {steps}). Put it in a shared folder."
        )


def average_over_ranks(value: Tensor) -> None:
    """Replace a tensor by its mean over ranks, in place."""
    dist.all_reduce(value)
    value /= n_ranks()


def refuse_batch_norms(encoder: nn.Module) -> None:
    """Raise an error for batch norms in training mode: they would see only the part of the batch on their rank.

    Batch norms with frozen statistics (``models.hold_statistics``) are fine.
    """
    for name, module in encoder.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise InvalidInputError(
                f"{name} is a batch norm, which on {n_ranks()} ranks would see only a part of each batch. Start from "
                "pretrained weights and freeze the statistics (models.hold_statistics), use layer or group norms, or "
                "train on one rank."
            )


def objective(
    module: nn.Module, loss: ContrastiveLoss, batch: Batch, device: torch.device
) -> tuple[Tensor, Posterior]:
    """The loss of a batch on one process, and the posteriors of its inputs."""
    if isinstance(batch, PairBatch):
        posterior = module(batch.inputs.to(device))
        return _of_all_pairs(loss, posterior, batch, device), posterior
    everyone = module(_inputs(batch).to(device))
    return loss(*_triplets(everyone, batch)), everyone


def posterior_and_pairs(
    encoder: nn.Module, batch: Batch, device: torch.device
) -> tuple[Posterior, Int[Tensor, "p 2"]]:
    """The posteriors of a batch's inputs, and which different inputs are pairs; self-pairs are left out."""
    if isinstance(batch, PairBatch):
        different = batch.pairs[:, 0] != batch.pairs[:, 1]
        return encoder(batch.inputs.to(device)), batch.pairs[different]
    n = torch.arange(len(batch.anchor))
    inputs = torch.cat([batch.anchor, batch.positive]).to(device)
    return encoder(inputs), torch.stack([n, n + len(n)], 1)


def shared_objective(
    module: nn.Module, loss: ContrastiveLoss, batch: Batch, device: torch.device, *, seed: int
) -> tuple[Tensor, Posterior]:
    """The number of ranks times the part of the loss on this rank, and the posteriors of all inputs of the batch.

    The mean over ranks is the loss of the batch, and the mean gradients are those of one process, to rounding.
    Random layers of the encoder (dropout) differ between ranks; losses use the same random numbers on all ranks, so
    that pairs among items have the same draws for any number of ranks. With R ranks each does 1/R of the encoding. The
    closed form computes N^2 / R positivities of N items on each rank, where one process needs N^2 / 2 by symmetry;
    other losses compute all of them on every rank.
    """
    ranks, inputs = n_ranks(), _inputs(batch)
    n = len(inputs)
    each = -(-n // ranks)
    rows = torch.arange(rank() * each, (rank() + 1) * each).clamp(max=n - 1)  # the last is padding
    with seeded(seed + 1 + rank(), device):
        own = module(inputs[rows].to(device))
    gathered = gather_posteriors(own)
    everyone = gathered[:n]
    with seeded(seed, device):
        if isinstance(batch, PairBatch):
            part = part_of(len(batch.inputs))
            return ranks * _of_pairs(loss, everyone, batch, part, device), everyone
        total = loss.share(*_triplets(everyone, batch), part_of(len(batch.anchor)))
        return total * (ranks / len(batch.anchor)), everyone


def _of_all_pairs(
    loss: ContrastiveLoss, posterior: Any, batch: PairBatch, device: torch.device
) -> Tensor:
    """A batch's loss by ``among``, with only the options that the batch has: a loss of yours may not know others."""
    options: dict[str, Any] = {}
    total = float(len(batch.pairs))
    if batch.weights is not None:
        options["weights"] = batch.weights.to(device)
        total = float(batch.weights.double().sum())
    if batch.self_weight:
        options["self_weight"] = batch.self_weight
    value = loss.among(posterior, batch.pairs.to(device), **options)
    value = value * (total / batch.expected_pairs)
    if batch.agreement is None:
        return value
    return value + loss.agreement_term(posterior, batch.agreement.to(device))


def _of_pairs(
    loss: ContrastiveLoss, posterior: Any, batch: PairBatch, part: slice, device: torch.device
) -> Tensor:
    """The part of a batch's loss that belongs to some of its items: their pairs, and their annotators' agreement."""
    weights = None if batch.weights is None else batch.weights.to(device)
    total = loss.share_among(
        posterior, batch.pairs.to(device), part, weights=weights, self_weight=batch.self_weight
    )
    value = total / batch.expected_pairs
    if batch.agreement is None:
        return value
    agreement = batch.agreement[part]
    here, seen = (int((~torch.isnan(a)).sum()) for a in (agreement, batch.agreement))
    term = loss.agreement_term(posterior[part], agreement.to(device))
    return value + (here / max(1, seen)) * term


def part_of(n: int) -> slice:
    """The slice of n items that belongs to this rank; the parts of all ranks differ in size by at most one."""
    first, last = (n * (rank() + more) // n_ranks() for more in (0, 1))
    return slice(first, last)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """A context in which torch's global generator, which losses draw from, has its own seed."""
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
