"""Negatives: fresh ones, shared or per anchor, or others of the batch; gathered over ranks with gradients if wanted."""

from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Bool
from torch import Tensor

from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.errors import InvalidInputError

InBatch = Literal["both", "next", "all"]
Posterior = TypeVar("Posterior", VonMisesFisher, MixtureVMF)


@dataclass(frozen=True)
class Negatives:
    """Posteriors of negatives: batch shape [M], shared by all anchors, or [B, M].

    ``excluded`` marks pairs to leave out; ``pool`` is the population they were taken from, if larger.

    Fresh negatives should be drawn from the marginal of the data. The partners of other anchors follow another law, and
    the encoder absorbs the difference into kappa.
    """

    posterior: VonMisesFisher
    excluded: Bool[Tensor, "b m"] | None = None
    pool: VonMisesFisher | None = None

    @property
    def shared(self) -> bool:
        """Whether every anchor sees the same negatives."""
        return len(self.posterior.batch_shape) == 1

    def of_anchors(self, anchors: slice) -> "Negatives":
        """The negatives of some of the anchors."""
        posterior = self.posterior
        if not self.shared:
            mu, kappa = posterior.mu[anchors], posterior.kappa[anchors]
            posterior = VonMisesFisher(mu, kappa, validate_args=False)
        excluded = None if self.excluded is None else self.excluded[anchors]
        return Negatives(posterior, excluded, self.pool)


def resolve_negatives(
    anchor: VonMisesFisher,
    positive: VonMisesFisher,
    negative: VonMisesFisher | None,
    *,
    in_batch: InBatch = "both",
    gather: bool = False,
) -> Negatives:
    """The negatives of a batch of B anchors.

    Given ones [M] or [B, M] are taken as they are. Without any, ``in_batch="both"`` gives each anchor all other anchors
    and their partners, ``"all"`` the partners alone, and ``"next"`` the partner of the next (the paper's M = 0). With
    ``gather`` they come from all ranks.
    """
    n = anchor.batch_shape[0]
    if negative is not None:
        _check_negative(anchor, negative)
        shared = len(negative.batch_shape) == 1
        return Negatives(gather_posteriors(negative) if gather and shared else negative)
    everyone, first = (gather_posteriors(positive), rank() * n) if gather else (positive, 0)
    total = everyone.batch_shape[0]
    if total < 2:
        raise InvalidInputError(
            "a batch of one pair holds no negatives: pass fresh ones, loss(anchor, positive, negative), or more pairs."
        )
    own = first + torch.arange(n, device=anchor.mu.device)
    if in_batch == "next":
        following = (own + 1) % total
        mu, kappa = everyone.mu[following].unsqueeze(1), everyone.kappa[following].unsqueeze(1)
        return Negatives(VonMisesFisher(mu, kappa, validate_args=False), pool=everyone)
    excluded = torch.zeros(n, total, dtype=torch.bool, device=own.device)
    excluded.scatter_(1, own.unsqueeze(1), True)
    if in_batch == "all":
        return Negatives(everyone, excluded)
    anchors = gather_posteriors(anchor) if gather else anchor
    mu, kappa = torch.cat([anchors.mu, everyone.mu]), torch.cat([anchors.kappa, everyone.kappa])
    return Negatives(VonMisesFisher(mu, kappa, validate_args=False), excluded.repeat(1, 2))


def gather_posteriors(posterior: Posterior) -> Posterior:
    """The posteriors [n] of all ranks as one batch [ranks * n], with gradients; itself where there is one process.

    Every rank must hold the same number. The gradient of a posterior is the sum of what all ranks send back, so the
    mean over ranks that DistributedDataParallel takes is the gradient of one process on the whole batch. Each rank
    sends D + 1 numbers an item there, and gets as many back; of mixtures, for each component one more.
    """
    if n_ranks() == 1:
        return posterior
    from torch.distributed import _functional_collectives as collectives

    # the name in newer versions of torch, and the one before
    gather = getattr(collectives, "all_gather_single_autograd", None)
    gather = gather or collectives.all_gather_tensor_autograd

    mu, parts = posterior.mu, [posterior.mu.flatten(1), posterior.kappa.view(len(posterior.mu), -1)]
    if isinstance(posterior, MixtureVMF):
        parts.append(posterior.weights)
    group = dist.group.WORLD
    assert group is not None
    packed = torch.cat(parts, -1).contiguous()
    everyone = gather(packed, gather_dim=0, group=group)
    mus, kappa, *weights = everyone.split([part.shape[1] for part in parts], -1)
    mus = mus.reshape(-1, *mu.shape[1:])
    if isinstance(posterior, MixtureVMF):
        return MixtureVMF(weights[0], mus, kappa, validate_args=False)
    return VonMisesFisher(mus, kappa.squeeze(-1), validate_args=False)


def n_ranks() -> int:
    """The number of processes of torch.distributed; 1 where it is not used."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process among those of torch.distributed; 0 where there is one."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _check_negative(anchor: VonMisesFisher, negative: VonMisesFisher) -> None:
    shape = tuple(negative.batch_shape)
    n = anchor.batch_shape[0]
    right = len(shape) == 1 or (len(shape) == 2 and shape[0] == n)
    if not right or shape[-1] == 0:
        raise InvalidInputError(
            f"negative must have batch shape (M,), shared by all anchors, or ({n}, M), one row per anchor, with M > 0; "
            f"but it has {shape}."
        )
