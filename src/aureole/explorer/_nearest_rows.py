"""All rows of a gallery in memory, the nearest others of each, and how likely these match."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from aureole._io import atomic_write
from aureole.errors import InvalidInputError
from aureole.retrieval import CredibleIndex, log_hit_positivity

SAMPLE = 100_000  # rows that each row is compared with, at most
_BLOCK = 2**25  # cosines in memory at a time
_PART = 20_000  # rows that are saved at once, so that an interrupted run resumes
_GROUP = 32  # columns of which only the largest cosine is compared first
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
        """All rows of an index, from one pass over mu, kappa and these columns."""
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
    folder: Path | None = None,
    observer: Observer | None = None,
) -> Neighbours:
    """The k nearest other rows of each row, with cosines in float64.

    Cost: n min(n, sample) dim products, in blocks of 130 MB. A gallery with more rows than ``sample`` is compared with
    that many of its rows, drawn once.

    Parameters
    ----------
    mu
        Directions of length 1.
    k
        Neighbours of each row; there are at most n - 1.
    sample
        Rows that each row is compared with, at most (default 100,000).
    folder
        Where parts of 20,000 rows are saved, so that an interrupted run resumes (default: nowhere).
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
    n = len(mu)
    chosen = np.arange(n)
    if n > sample:
        chosen = np.sort(np.random.default_rng(0).choice(n, sample, replace=False))
    k = max(0, min(k, len(chosen) - 1))
    reference = torch.from_numpy(np.ascontiguousarray(mu[chosen], np.float32))
    parts: list[dict[str, np.ndarray]] = []
    for start in range(0, n, _PART):
        stop = min(n, start + _PART)
        file = None if folder is None or n <= _PART else folder / f"rows-{start:09d}.safetensors"
        part = None if file is None else _saved(file, (stop - start, k))
        if part is None:
            part = _part(mu, (start, stop), reference, chosen, k, observer)
            if file is not None:
                atomic_write(file, save(part))
        parts.append(part)
        if observer is not None:
            observer(stop)
    if not parts:
        return Neighbours(np.zeros((0, 0), np.int64), np.zeros((0, 0)))
    return Neighbours(
        *(np.concatenate([part[name] for part in parts]) for name in ("rows", "cosine"))
    )


def _saved(file: Path, shape: tuple[int, int]) -> dict[str, np.ndarray] | None:
    """A part that an earlier run saved, if it is complete."""
    try:
        part = load_file(file)
    except (OSError, SafetensorError):
        return None
    fits = part.keys() == {"rows", "cosine"} and all(v.shape == shape for v in part.values())
    return part if fits else None


def _part(
    mu: np.ndarray,
    rows: tuple[int, int],
    reference: torch.Tensor,
    chosen: np.ndarray,
    k: int,
    observer: Observer | None,
) -> dict[str, np.ndarray]:
    """The neighbours of some rows, in blocks."""
    found, cosines = [], []
    step = max(1, _BLOCK // max(1, len(reference)))
    for start in range(*rows, step):
        own = np.arange(start, min(rows[1], start + step))
        block = torch.from_numpy(np.ascontiguousarray(mu[own], np.float32))
        products = block @ reference.T
        place = np.minimum(np.searchsorted(chosen, own), len(chosen) - 1)
        itself = np.flatnonzero(chosen[place] == own)
        products[torch.from_numpy(itself), torch.from_numpy(place[itself])] = -torch.inf
        near = chosen[_largest(products, k).numpy()]
        exact = _cosines(mu, own, near)
        order = np.argsort(-exact, axis=1, kind="stable")
        found.append(np.take_along_axis(near, order, 1))
        cosines.append(np.take_along_axis(exact, order, 1))
        if observer is not None:
            observer(int(own[-1]) + 1)
    return {"rows": np.concatenate(found), "cosine": np.concatenate(cosines)}


def _largest(products: torch.Tensor, k: int) -> torch.Tensor:
    """The columns of the k largest entries of each row: they lie in the k groups with the largest maxima."""
    n, m = products.shape
    groups = m // _GROUP
    if groups <= 4 * k:
        return products.topk(k, dim=1).indices
    even = groups * _GROUP
    best = products[:, :even].view(n, groups, _GROUP).amax(2).topk(k, dim=1).indices
    columns = (best.unsqueeze(2) * _GROUP + torch.arange(_GROUP)).view(n, -1)
    rest = torch.arange(even, m).expand(n, -1)
    columns = torch.cat([columns, rest], 1)
    return columns.gather(1, products.gather(1, columns).topk(k, dim=1).indices)


def _cosines(mu: np.ndarray, own: np.ndarray, near: np.ndarray) -> np.ndarray:
    """Exact cosines of rows and their neighbours, in float64."""
    result = np.empty(near.shape)
    size = max(1, _BLOCK // (8 * max(1, near.shape[1] * mu.shape[1])))
    for start in range(0, len(own), size):
        part = slice(start, start + size)
        one, others = mu[own[part]].astype(np.float64), mu[near[part]].astype(np.float64)
        dot = np.einsum("nd,nkd->nk", one, others)
        length = np.linalg.norm(one, axis=1)[:, None] * np.linalg.norm(others, axis=2)
        result[part] = np.clip(dot / np.maximum(length, 1e-12), -1.0, 1.0)
    return result


def log_match_ratios(
    near: Neighbours, kappa: Float[np.ndarray, " n"], kappa_pos: float, dim: int
) -> Float[np.ndarray, "n k"]:
    r"""The log of the expected positivity :math:`S\,h` of each row and its neighbours.

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
    """The log positivity of both concentrations and the cosine, [kappas, kappas, cosines]."""
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
