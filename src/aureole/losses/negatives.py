"""Negatives: fresh ones, shared or per anchor, or others of the batch; gathered over ranks with gradients if wanted."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from jaxtyping import Bool
from torch import Tensor

from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError

__all__ = ["InBatch", "Negatives", "gather_posteriors", "rank", "resolve_negatives"]

InBatch = Literal["next", "all"]


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


def resolve_negatives(
    anchor: VonMisesFisher,
    positive: VonMisesFisher,
    negative: VonMisesFisher | None,
    *,
    in_batch: InBatch = "next",
    gather: bool = False,
) -> Negatives:
    """The negatives of a batch of B anchors.

    Given ones [M] or [B, M] are taken as they are. Without any, ``in_batch="next"`` gives each anchor the partner of
    the next (the paper's M = 0) and ``"all"`` the partners of all others. With ``gather`` they come from all ranks.
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
    excluded = own.unsqueeze(1) == torch.arange(total, device=own.device)
    return Negatives(everyone, excluded)


def gather_posteriors(posterior: VonMisesFisher) -> VonMisesFisher:
    """The posteriors [n] of all ranks as one batch [ranks * n], with gradients; itself where there is one process.

    Every rank must hold the same number. The gradient of a posterior is the sum of what all ranks send back, so the
    mean over ranks that DistributedDataParallel takes is the gradient of one process on the whole batch.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return posterior
    from torch.distributed._functional_collectives import all_gather_single_autograd

    packed = torch.cat([posterior.mu, posterior.kappa.unsqueeze(-1)], -1).contiguous()
    group = dist.group.WORLD
    assert group is not None
    everyone = all_gather_single_autograd(packed, gather_dim=0, group=group)
    return VonMisesFisher(everyone[:, :-1], everyone[:, -1], validate_args=False)


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
