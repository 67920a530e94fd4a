"""Random settings of the closed-form loss, each made from its index alone.

D is log-uniform from 2 to 4096, kappa and kappa_pos from 1e-2 to 1e6; directions are aligned, opposite, of low rank or
random; negatives are shared, own or taken from the batch.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

import aureole as au

DIRECTIONS = ("aligned", "opposite", "low rank", "random")
NEGATIVES = ("shared", "own", "next", "all")
DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Setting:
    """Inputs of one loss: (mu, kappa) of anchors [n], positives [n] and negatives [m], [n, m] or None."""

    index: int
    dim: int
    kappa_pos: float
    directions: str
    negatives: str
    dtype: torch.dtype
    anchor: tuple[Tensor, Tensor]
    positive: tuple[Tensor, Tensor]
    negative: tuple[Tensor, Tensor] | None

    def __str__(self) -> str:
        kappa = self.anchor[1]
        name = str(self.dtype).removeprefix("torch.")
        return (
            f"setting {self.index}: D {self.dim}, kappa {kappa.min():.3g} to {kappa.max():.3g}, kappa_pos "
            f"{self.kappa_pos:.3g}, {self.directions}, {self.negatives}, {name}, {len(kappa)} pairs"
        )

    @property
    def leaves(self) -> list[Tensor]:
        groups = [self.anchor, self.positive, *([] if self.negative is None else [self.negative])]
        return [x for group in groups for x in group]

    def loss(self) -> au.ClosedFormInfoNCE:
        in_batch = "all" if self.negatives == "all" else "next"
        return au.ClosedFormInfoNCE(self.kappa_pos, in_batch=in_batch)

    def loss_and_gradients(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(The loss, its gradients in all leaves)."""
        leaves = [x.clone().requires_grad_() for x in self.leaves]
        pairs = zip(leaves[::2], leaves[1::2], strict=True)
        value = self.loss()(*(au.VonMisesFisher(mu, kappa) for mu, kappa in pairs))
        return value, torch.autograd.grad(value, leaves)


def make(index: int, sizes: tuple[int, int] = (8, 32)) -> Setting:
    """The setting of an index, with so many items, log-uniform between the sizes: half anchors, half partners."""
    rng = torch.Generator().manual_seed(1_000_003 * index + 17)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(shape, dtype=torch.float64, generator=rng)

    def pick(options):
        return options[int(torch.randint(len(options), (), generator=rng))]

    def log_uniform(low: float, high: float) -> float:
        return math.exp(uniform(math.log(low), math.log(high)).item())

    dim = min(4096, max(2, round(log_uniform(2, 4096))))
    kappa_pos = log_uniform(1e-2, 1e6)
    directions, negatives, dtype = pick(DIRECTIONS), pick(NEGATIVES), pick(DTYPES)
    n = max(2, round(log_uniform(*sizes) / 2))
    m = max(2, round(log_uniform(*sizes) / 2))
    centre = log_uniform(1e-2, 1e6) if pick((True, False)) else None

    def kappas(*shape: int) -> Tensor:
        """Log-uniform each, or all within a factor of 4 of a log-uniform centre."""
        if centre is None:
            values = torch.exp(uniform(math.log(1e-2), math.log(1e6), *shape))
        else:
            values = (centre * 2.0 ** uniform(-1, 1, *shape)).clamp(1e-2, 1e6)
        return values.to(dtype)

    def spread(*shape: int) -> Tensor:
        return torch.randn(*shape, dim, dtype=torch.float64, generator=rng)

    rank = min(dim, pick((2, 3, 8)))
    basis = torch.linalg.qr(spread(rank).T)[0].T

    def fresh(*shape: int) -> Tensor:
        if directions != "low rank":
            return spread(*shape)
        return torch.randn(*shape, rank, dtype=torch.float64, generator=rng) @ basis

    base = _unit(fresh(n))
    near = 0.0 if pick((True, False)) else log_uniform(1e-4, 1.0)
    sign = {"aligned": 1.0, "opposite": -1.0}.get(directions)
    partner = fresh(n) if sign is None else sign * base + near * _unit(fresh(n))
    negative = None
    if negatives in ("shared", "own"):
        shape = (m,) if negatives == "shared" else (n, m)
        others = fresh(*shape)
        if sign is not None and pick((True, False)):  # the negatives are aligned or opposite too
            others = sign * base.mean(0) + near * _unit(others)
        negative = (_unit(others).to(dtype), kappas(*shape))
    return Setting(
        index,
        dim,
        kappa_pos,
        directions,
        negatives,
        dtype,
        (base.to(dtype), kappas(n)),
        (_unit(partner).to(dtype), kappas(n)),
        negative,
    )


def _unit(vectors: Tensor) -> Tensor:
    return vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
