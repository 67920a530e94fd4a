"""A linear map of the queries alone, learned from labelled queries: the gallery and its index stay as they are."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch.nn import functional

_STEPS, _CHECK, _PATIENCE = 600, 20, 3  # checks without improvement that end the training
_BATCH, _NEGATIVES = 256, 1024
_MOST_CHECKED = 1000  # queries of the check
_RATE = 5e-4
_SPREADS = 3.0  # logits are so many cosines per standard deviation of random ones


def fit_query_map(
    queries: Float[np.ndarray, "n dim"],
    gallery: Float[np.ndarray, "m dim"],
    matches: Sequence[np.ndarray],
    seed: int,
) -> Float[np.ndarray, "dim dim"] | None:
    """The matrix W with which ``query + query @ W`` is closest to its matches; None if no map helps held-out queries.

    InfoNCE in both directions, starting at W = 0. A quarter of the queries decides when to stop.
    """
    rng = np.random.default_rng(seed)
    labelled = rng.permutation([i for i, group in enumerate(matches) if len(group)])
    check, train = np.split(labelled, [min(len(labelled) // 4, _MOST_CHECKED)])
    if not len(check):
        return None
    items = torch.from_numpy(gallery)
    scale = _temperature(queries, gallery, rng)
    judge = _Batch(check, queries, items, matches, rng, scale)
    weight = torch.zeros(gallery.shape[1], gallery.shape[1], requires_grad=True)
    optimiser = torch.optim.Adam([weight], lr=_RATE)
    with torch.no_grad():
        lowest, best, since = float(judge.loss(weight)), None, 0
    for step in range(1, _STEPS + 1):
        chosen = rng.choice(train, min(_BATCH, len(train)), replace=False)
        optimiser.zero_grad()
        _Batch(chosen, queries, items, matches, rng, scale).loss(weight).backward()
        optimiser.step()
        if step % _CHECK:
            continue
        with torch.no_grad():
            loss = float(judge.loss(weight))
        since += 1
        if loss < lowest:
            lowest, best, since = loss, weight.detach().clone(), 0
        if since == _PATIENCE:
            break
    return None if best is None else best.numpy()


def apply_query_map(
    queries: Float[np.ndarray, "n dim"], weight: Float[np.ndarray, "dim dim"] | None
) -> Float[np.ndarray, "n dim"]:
    """The mapped queries, of length 1."""
    if weight is None:
        return queries
    mapped = queries + queries @ weight
    return (mapped / np.linalg.norm(mapped, axis=1, keepdims=True)).astype(np.float32)


class _Batch:
    """Queries with one match each, and random other items."""

    def __init__(
        self,
        chosen: np.ndarray,
        queries: np.ndarray,
        gallery: torch.Tensor,
        matches: Sequence[np.ndarray],
        rng: np.random.Generator,
        scale: float,
    ) -> None:
        groups = [matches[i] for i in chosen]
        picks = rng.random(len(groups))
        right = np.array([g[int(p * len(g))] for g, p in zip(groups, picks, strict=True)])
        others = rng.integers(len(gallery), size=_NEGATIVES)
        rows = np.concatenate([right, others])
        known = _known(rows, groups)
        known[np.arange(len(chosen)), np.arange(len(chosen))] = False
        self._known = torch.from_numpy(known)  # matches that are not the target: no negatives
        self._queries, self._items = torch.from_numpy(queries[chosen]), gallery[rows]
        self._scale = scale

    def loss(self, weight: torch.Tensor) -> torch.Tensor:
        mapped = functional.normalize(self._queries + self._queries @ weight, dim=1)
        logits = (self._scale * mapped @ self._items.T).masked_fill(self._known, -torch.inf)
        target = torch.arange(len(mapped))
        own = logits[:, : len(mapped)]
        return (
            functional.cross_entropy(logits, target) + functional.cross_entropy(own.T, target)
        ) / 2


def _known(rows: np.ndarray, matches: Sequence[np.ndarray]) -> np.ndarray:
    """Whether each row is a match of each query: ``labels_of`` for rows that all queries share, and few matches."""
    owners = np.repeat(np.arange(len(matches)), [len(group) for group in matches])
    order = np.argsort(rows, kind="stable")
    flat = np.concatenate(matches)
    low, high = (np.searchsorted(rows[order], flat, side=side) for side in ("left", "right"))
    known = np.zeros((len(matches), len(rows)), dtype=bool)
    for owner, start, end in zip(owners, low, high, strict=True):
        known[owner, order[start:end]] = True
    return known


def _temperature(queries: np.ndarray, gallery: np.ndarray, rng: np.random.Generator) -> float:
    """The factor of the cosines, from their spread between random queries and items, which differs by encoder."""
    some = queries[rng.integers(len(queries), size=1000)]
    items = gallery[rng.integers(len(gallery), size=1000)]
    return _SPREADS / float((some @ items.T).std())
