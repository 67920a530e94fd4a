"""All rows of a gallery in memory, the nearest others of each, and how likely these match."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from aureole.caps import CredibleIndex
from aureole.caps._caps import log_hit_positivity
from aureole.errors import InvalidInputError, MissingPackageError

SAMPLE = 100_000  # rows that each row is compared with, at most
_PART = 5_000  # rows that are searched together
_EXACT = 30_000  # pairs whose positivity is computed one by one
_KAPPAS, _COSINES = 40, 41  # of the table that others are interpolated in
_LARGEST = 1e8  # concentrations beyond are points

Observer = Callable[[int], None]


@dataclass(frozen=True)
class GalleryRows:
    """All rows of a gallery in the order of kappa, lowest first; ties are sorted by id.

    Memory: 4 bytes per dimension and row.
    """

    ids: list[Any]
    mu: Float[np.ndarray, "n dim"]
    kappa: Float[np.ndarray, " n"]
    payload: dict[str, list[Any]]
    version: str

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def read(cls, index: CredibleIndex, columns: Sequence[str] = ()) -> "GalleryRows":
        """Return all rows of an index, from one pass over mu, kappa and these columns."""
        version, dim = index.version(), index.schema.dim
        ids: list[Any] = []
        mus, kappas = [np.zeros((0, dim), np.float32)], [np.zeros(0, np.float32)]
        payload: dict[str, list[Any]] = {name: [] for name in columns}
        for names, posterior, values in index.posteriors(columns=columns):
            ids += names
            mus.append(posterior.mu.numpy())
            kappas.append(posterior.kappa.numpy())
            for name in columns:
                payload[name] += values[name]
        mu, kappa = np.concatenate(mus), np.concatenate(kappas)
        order = sorted(range(len(ids)), key=lambda row: (kappa[row], ids[row]))
        payload = {name: [values[row] for row in order] for name, values in payload.items()}
        return cls([ids[row] for row in order], mu[order], kappa[order], payload, version)


@dataclass(frozen=True)
class Neighbours:
    """The nearest other rows of each row, nearest first, and their cosines; fewer columns than k in small galleries."""

    rows: Int[np.ndarray, "n k"]
    cosine: Float[np.ndarray, "n k"]


def nearest_rows(
    mu: Float[np.ndarray, "n dim"],
    k: int,
    *,
    sample: int = SAMPLE,
    observer: Observer | None = None,
) -> Neighbours:
    """Return the k nearest other rows of each row by an exact search with FAISS, with cosines in float64.

    Cost: n min(n, sample) dim products. A gallery with more rows than ``sample`` is compared with that many of its
    rows, drawn once.

    Parameters
    ----------
    mu
        Directions of length 1.
    k
        Neighbours of each row; there are at most n - 1.
    sample
        Rows that each row is compared with, at most (default 100,000).
    observer
        Called with the number of rows done.

    Examples
    --------
    >>> mu = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]], np.float32)
    >>> found = nearest_rows(mu, 1)
    >>> found.rows.tolist(), found.cosine.round(2).tolist()
    ([[1], [0], [1]], [[0.8], [0.8], [0.6]])
    """
    if k < 1:
        raise InvalidInputError(f"k must be at least 1, but is {k!r}.")
    try:
        import faiss
    except ImportError as error:
        raise MissingPackageError(
            "nearest rows need faiss: pip install 'aureole[search]'."
        ) from error
    n = len(mu)
    chosen = np.arange(n)
    if n > sample:
        chosen = np.sort(np.random.default_rng(0).choice(n, sample, replace=False))
    k = max(0, min(k, len(chosen) - 1))
    index: Any = faiss.IndexFlatIP(mu.shape[1])
    index.add(np.ascontiguousarray(mu[chosen], np.float32))
    rows, cosine = np.zeros((n, k), np.int64), np.zeros((n, k))
    for start in range(0, n if k else 0, _PART):
        own = np.arange(start, min(n, start + _PART))
        _, found = index.search(np.ascontiguousarray(mu[own], np.float32), k + 1)
        near = _without_self(chosen[found], own)
        exact = _cosines(mu, own, near)
        order = np.argsort(-exact, axis=1, kind="stable")
        rows[own] = np.take_along_axis(near, order, 1)
        cosine[own] = np.take_along_axis(exact, order, 1)
        if observer is not None:
            observer(int(own[-1]) + 1)
    return Neighbours(rows, cosine)


def _without_self(near: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Return the neighbours without the row itself, or without the last one if it is not among them."""
    itself = near == own[:, None]
    drop = np.where(itself.any(1), itself.argmax(1), near.shape[1] - 1)
    keep = np.arange(near.shape[1]) != drop[:, None]
    return near[keep].reshape(len(near), -1)


def _cosines(mu: np.ndarray, own: np.ndarray, near: np.ndarray) -> np.ndarray:
    """Return the cosines of rows and their neighbours, in float64."""
    result = np.empty(near.shape)
    for column, rows in enumerate(near.T):
        one, other = mu[own].astype(np.float64), mu[rows].astype(np.float64)
        length = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        result[:, column] = (one * other).sum(1) / np.maximum(length, 1e-12)
    return np.clip(result, -1.0, 1.0)


def log_match_ratios(
    near: Neighbours, kappa: Float[np.ndarray, " n"], kappa_pos: float, dim: int
) -> Float[np.ndarray, "n k"]:
    r"""Return the log of the expected positivity :math:`S\,h` of each row and its neighbours.

    Of more than 30,000 pairs it is interpolated linearly in a table over both concentrations (40 levels of log kappa)
    and the cosine (41 levels). The table costs 34,000 positivities, about a second, whatever the number of
    pairs; the error of the log is about 0.01 where kappa spans a factor of 100.

    Examples
    --------
    >>> near = Neighbours(np.array([[1], [0]]), np.array([[0.9], [0.9]]))
    >>> log_match_ratios(near, np.array([24.0, 24.0]), 20.0, 10).round(3)
    array([[4.174],
           [4.174]])
    """
    kappa = np.clip(kappa.astype(np.float64), 1e-3, _LARGEST)
    pairs = near.rows.size
    if pairs <= _EXACT:
        own = np.repeat(kappa, near.rows.shape[1])
        flat = [torch.from_numpy(x) for x in (near.cosine.ravel(), own, kappa[near.rows].ravel())]
        found = log_hit_positivity(flat[0], flat[1], flat[2], kappa_pos, dim)
        return found.numpy().reshape(near.rows.shape)
    levels = np.exp(np.linspace(math.log(kappa.min()), math.log(kappa.max() * 1.001), _KAPPAS))
    cosines = np.linspace(min(near.cosine.min(), 0.99), 1.0, _COSINES)
    table = _positivity_table(levels, cosines, kappa_pos, dim)
    scale = 2 / math.log(levels[-1] / levels[0])
    place = (np.log(kappa / levels[0]) * scale - 1).astype(np.float64)
    across = 2 * (near.cosine - cosines[0]) / (cosines[-1] - cosines[0]) - 1
    result = np.empty(near.rows.shape)
    for start in range(0, len(kappa), _PART):
        part = slice(start, start + _PART)
        own = np.broadcast_to(place[part, None], across[part].shape)
        # grid_sample expects the last dimension of the table first
        at = np.stack([across[part], place[near.rows[part]], own], -1)
        values = torch.nn.functional.grid_sample(
            table[None, None],
            torch.from_numpy(at)[None, None],
            padding_mode="border",
            align_corners=True,
        )
        result[part] = values[0, 0, 0].numpy()
    return result


def _positivity_table(
    levels: np.ndarray, cosines: np.ndarray, kappa_pos: float, dim: int
) -> torch.Tensor:
    """Return the log positivity of both concentrations and the cosine, [kappas, kappas, cosines]."""
    one, two = np.triu_indices(len(levels))
    shape = (len(one), len(cosines))
    flat = [
        torch.from_numpy(np.broadcast_to(x, shape).ravel().copy())
        for x in (cosines, levels[one, None], levels[two, None])
    ]
    values = log_hit_positivity(flat[0], flat[1], flat[2], kappa_pos, dim).reshape(shape)
    table = torch.empty(len(levels), len(levels), len(cosines), dtype=torch.float64)
    table[one, two] = values
    table[two, one] = values
    return table
