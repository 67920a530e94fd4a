"""Rows of vectors, read as they are needed, and what posteriors tell about the partners among them."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from aureole.data import Groups, PairBatch, PairIndex
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.losses import ClosedFormInfoNCE

Vectors = Tensor | np.ndarray
Partners = Groups | PairIndex
MASSES = (0.5, 0.8, 0.9, 0.95)  # of predictive caps whose coverage is told
_ROUNDS = 4


def check_vectors(vectors: Vectors) -> None:
    """Refuse what is not a table of numbers."""
    if len(vectors.shape) != 2 or 0 in vectors.shape:
        raise InvalidInputError(f"vectors must be [n, d], but have shape {tuple(vectors.shape)}.")


def take(vectors: Vectors, rows: Int[Tensor, " n"] | slice) -> Float[Tensor, "n d"]:
    """Rows as float32 on the CPU; an error names the first row that is not finite."""
    if isinstance(vectors, Tensor):
        chosen = vectors[rows].cpu()
    else:
        picked = vectors[rows if isinstance(rows, slice) else rows.numpy()]
        array = np.ascontiguousarray(picked, dtype=np.float32)
        chosen = torch.from_numpy(array if array.flags.writeable else array.copy())
    chosen = chosen.float()
    if not bool(torch.isfinite(chosen.sum())):  # one pass; the slow search only where it failed
        bad = ~torch.isfinite(chosen).all(-1)
        if bool(bad.any()):
            place = int(bad.int().argmax())
            row = (rows.start or 0) + place if isinstance(rows, slice) else int(rows[place])
            raise InvalidInputError(
                f"vectors[{row}] holds NaN or infinity (or a number beyond float32). Drop such rows first."
            )
    return chosen


def partners_of(
    vectors: Vectors,
    groups: Sequence[Any] | Vectors | None,
    pairs: Sequence[Sequence[int]] | Vectors | None,
) -> Partners:
    """What belongs together, from a label per row or from pairs of rows."""
    if pairs is not None and groups is None:
        return PairIndex.of(pairs, len(vectors))
    if pairs is not None or groups is None:
        raise InvalidInputError("give either groups, one label per vector, or pairs of rows.")
    if len(groups) != len(vectors):
        raise InvalidInputError(f"{len(vectors)} vectors need as many groups, not {len(groups)}.")
    return Groups.of(groups)


def halves(
    partners: Groups | PairIndex, rng: torch.Generator
) -> tuple[Groups | PairIndex, Groups | PairIndex]:
    """Two halves that share no row, or twice the whole where a half would be too small to hold a pair's negatives."""
    if isinstance(partners, Groups) and not partners.classes and len(partners.sizes) < 4:
        return partners, partners
    try:
        first, second = partners.split(0.5, rng)
    except InvalidInputError:
        return partners, partners
    if min(len(first.members), len(second.members)) < 3:
        return partners, partners
    return first, second


def draw_batch(
    vectors: Vectors, partners: Partners, n_items: int, rng: torch.Generator
) -> PairBatch:
    """Rows with the pairs among them."""
    rows, pairs = partners.draw(n_items, rng)
    return PairBatch(take(vectors, rows), pairs, float(len(pairs)))


def pair_rows(
    partners: Partners, most: int, rng: torch.Generator
) -> tuple[Int[Tensor, " p"], Int[Tensor, " p"]]:
    """(Rows, their partners' rows), each pair once: up to four pairs of a group, ``most`` in all."""
    found = []
    for _ in range(_ROUNDS):
        rows, pairs = partners.draw(most, rng)
        found.append(rows[pairs[pairs[:, 0] < pairs[:, 1]]].sort(1).values)
    unique = torch.cat(found).unique(dim=0)
    left, right = unique[torch.randperm(len(unique), generator=rng)[:most]].T
    return left, right


@torch.no_grad()
def information(
    model: Callable[[Tensor], VonMisesFisher], loss: ClosedFormInfoNCE, batch: PairBatch
) -> float:
    """How much the posteriors tell about a partner, in nats: log of the number of candidates minus the loss."""
    value = loss.among(model(batch.inputs), batch.pairs).item()
    return math.log(len(batch.inputs) - 1) - value
