"""A map of a gallery: two coordinates per row, so that neighbours lie together; stored in a file of its own.

The coordinates come from t-SNE (openTSNE) on the graph of nearest neighbours. A larger gallery is fitted on a sample;
every other row gets the weighted mean of its nearest neighbours in the sample, and so do rows that are added later.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from aureole._io import atomic_write
from aureole.errors import DamagedGalleryError, InvalidInputError, MissingPackageError
from aureole.retrieval import CredibleIndex, is_local, pack_strings, unpack_strings

Observer = Callable[[str, int, int], None]
SAMPLE = 50_000
_FORMAT = "aureole-map-1"
_NEIGHBOURS = 15  # in the graph that is laid out
_NEAREST = 5  # that place another row
_ITERATIONS = (250, 500)  # with early exaggeration, and without
_FEWEST = 50  # rows below which principal axes are used
_EXACT = 20_000  # rows up to which neighbours are searched exactly
_PROBES, _KEPT = 500, 10  # rows and neighbours of the quality figure
_BLOCK = 50_000  # rows in memory at once
_MAX_FILE = 8 * 2**30


@dataclass(frozen=True)
class MapNote:
    """How a map was made.

    Attributes
    ----------
    method
        "t-SNE" or, for fewer than 50 rows, "PCA".
    rows, fitted
        Rows on the map, and those that the layout was fitted on.
    neighbours_kept
        The share of the 10 nearest neighbours of 500 random rows that are among the 10 nearest on the map.
    dim, origin, version, seed
        Of the gallery and of the run.
    """

    method: str
    rows: int
    fitted: int
    neighbours_kept: float
    dim: int
    origin: str | None
    version: str
    seed: int
    format: str = field(default=_FORMAT)


@dataclass(frozen=True)
class GalleryMap:
    """Two coordinates per id; most lie between -1 and 1.

    ``fitted`` marks the rows of the sample; ``marks`` is a projection of each mu, which reveals replaced rows.
    """

    ids: list[str]
    xy: Float[np.ndarray, "n 2"]
    fitted: np.ndarray
    marks: np.ndarray
    note: MapNote


def map_path(where: str) -> Path | None:
    """The file of a gallery's map: next to a local gallery, in the user's cache for a database, None in memory.

    Examples
    --------
    >>> map_path("galleries/shoes.lance/").as_posix(), map_path("faiss://")
    ('galleries/shoes.lance.map', None)
    """
    if is_local(where):
        path = Path(where)
        return path.with_name(f"{path.name}.map")
    if where.startswith("faiss://"):
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "aureole" / "maps" / f"{hashlib.sha256(where.encode()).hexdigest()[:32]}.map"


def map_stamp(index: CredibleIndex) -> str:
    """A text that changes when the stored map of a gallery does."""
    path = map_path(index.where)
    try:
        return "" if path is None else str(path.stat().st_mtime_ns)
    except OSError:
        return ""


def read_map(index: CredibleIndex) -> GalleryMap | None:
    """The stored map of a gallery; None if it does not exist, or was made for another encoder's directions."""
    path = map_path(index.where)
    if path is None or not path.is_file():
        return None
    found = _load(path)
    same = found.note.dim == index.schema.dim and found.note.origin == index.origin.fingerprint
    return found if same else None


def write_map(
    index: CredibleIndex,
    *,
    refit: bool = False,
    sample: int = SAMPLE,
    seed: int = 0,
    observer: Observer | None = None,
) -> GalleryMap:
    """Make the map of a gallery, or add new rows to it, and store it atomically next to the gallery.

    Rows that are on the stored map stay where they are; new and replaced ones are placed among them. The layout is
    computed again with ``refit``, or if more than half of the rows that it was fitted on were removed or replaced.

    Parameters
    ----------
    index
        The gallery, at an address that is stored.
    refit
        Compute the layout again (default: only if needed).
    sample
        Rows that the layout is fitted on, at most (default 50,000).
    seed
        Of the sample and the layout.
    observer
        Called with a step's name, and how much of it is done, in total.
    """
    path = map_path(index.where)
    if path is None:
        raise InvalidInputError("a gallery in memory has no place for a map. Use fit_map instead.")
    old = None if refit else read_map(index)
    found = None if old is None else _extend(index, old, observer)
    if found is None:
        found = fit_map(index, sample=sample, seed=seed, observer=observer)
    _save(found, path)
    return found


def fit_map(
    index: CredibleIndex,
    *,
    sample: int = SAMPLE,
    seed: int = 0,
    observer: Observer | None = None,
) -> GalleryMap:
    """The map of a gallery, from two passes over its directions, in memory proportional to the sample.

    Parameters
    ----------
    index
        The gallery.
    sample, seed, observer
        As for ``write_map``.

    Examples
    --------
    >>> import torch
    >>> from aureole.distributions import VonMisesFisher
    >>> gallery = VonMisesFisher(torch.eye(3), torch.tensor([50.0, 20.0, 90.0]))
    >>> index = CredibleIndex.create("faiss://", gallery, ["ant", "bee", "cat"])
    >>> found = fit_map(index)
    >>> found.ids, found.xy.shape, found.note.method
    (['ant', 'bee', 'cat'], (3, 2), 'PCA')
    """
    if sample < 2:
        raise InvalidInputError(f"sample must be at least 2, but is {sample!r}.")
    observer = observer or _silent
    version, total = index.version(), index.count()
    rng = np.random.default_rng(seed)
    chosen = np.arange(total)
    if total > sample:
        chosen = np.sort(rng.choice(total, sample, replace=False))
    names: list[str] = []
    parts = [np.zeros((0, index.schema.dim), np.float32)]
    start = 0
    for ids, mu in _vectors(index):
        places = chosen[np.searchsorted(chosen, start) : np.searchsorted(chosen, start + len(ids))]
        names += [ids[place - start] for place in places]
        parts.append(mu[places - start])
        start += len(ids)
        observer("reading", start, max(start, total))
    mu = np.concatenate(parts)
    xy = _layout(mu, seed, observer)
    method = "PCA" if len(mu) < _FEWEST else "t-SNE"
    note = MapNote(
        method, start, len(mu), 0.0, index.schema.dim, index.origin.fingerprint, version, seed
    )
    return _place(index, names, mu, xy, {}, note, observer)


def _extend(index: CredibleIndex, old: GalleryMap, observer: Observer | None) -> GalleryMap | None:
    """The stored map with the gallery's new rows; None if too few of the fitted rows remain."""
    observer, version = observer or _silent, index.version()
    known = dict(zip(old.ids, range(len(old.ids)), strict=True))
    names: list[str] = []
    rows: list[int] = []
    parts = [np.zeros((0, index.schema.dim), np.float32)]
    kept: dict[str, tuple[float, float]] = {}
    done = 0
    for ids, mu in _vectors(index):
        at = np.array([known.get(name, -1) for name in ids], np.int64)
        same = (at >= 0) & (np.abs(old.marks[at] - _marks(mu)) < 1e-4)
        for place in np.flatnonzero(same & ~old.fitted[at].astype(bool)).tolist():
            kept[ids[place]] = (float(old.xy[at[place], 0]), float(old.xy[at[place], 1]))
        places = np.flatnonzero(same & old.fitted[at].astype(bool))
        names += [ids[place] for place in places]
        rows += at[places].tolist()
        parts.append(mu[places])
        done += len(ids)
        observer("reading", done, max(done, old.note.rows))
    if 2 * len(names) < old.note.fitted or len(names) < 2:
        return None
    note = MapNote(**asdict(old.note) | {"version": version, "rows": done, "fitted": len(names)})
    return _place(index, names, np.concatenate(parts), old.xy[rows], kept, note, observer)


def _place(
    index: CredibleIndex,
    names: list[str],
    mu: np.ndarray,
    xy: np.ndarray,
    kept: dict[str, tuple[float, float]],
    note: MapNote,
    observer: Observer,
) -> GalleryMap:
    """The map of all rows: fitted ones (names, mu, xy), kept ones, and the rest at the mean of their neighbours."""
    fitted = dict(zip(names, range(len(names)), strict=True))
    near = _index_of(mu)
    probes = _Probes(note.rows, note.seed)
    all_ids: list[str] = []
    all_xy, marks = [np.zeros((0, 2), np.float32)], [np.zeros(0, np.float32)]
    is_fitted = [np.zeros(0, np.uint8)]
    for ids, block in _vectors(index):
        at = np.array([fitted.get(name, -1) for name in ids], np.int64)
        placed = xy[at].astype(np.float32) if len(xy) else np.zeros((len(ids), 2), np.float32)
        rest = []
        for place in np.flatnonzero(at < 0).tolist():
            if ids[place] in kept:
                placed[place] = kept[ids[place]]
            else:
                rest.append(place)
        if rest:
            cosine, rows = near.search(np.ascontiguousarray(block[rest]), min(_NEAREST, len(mu)))
            placed[rest] = _weighted_means(cosine, rows, xy)
        probes.collect(len(all_ids), block)
        all_ids += ids
        all_xy.append(placed)
        marks.append(_marks(block))
        is_fitted.append((at >= 0).astype(np.uint8))
        observer("placing", len(all_ids), max(len(all_ids), note.rows))
    found = np.concatenate(all_xy)
    start = 0
    for _, block in _vectors(index):  # neighbours of the probes among all rows
        probes.compare(start, block)
        start += len(block)
    kept_share = probes.share_kept(found)
    note = MapNote(**asdict(note) | {"rows": len(all_ids), "neighbours_kept": kept_share})
    return GalleryMap(all_ids, found, np.concatenate(is_fitted), np.concatenate(marks), note)


class _Probes:
    """Random rows whose nearest neighbours are compared with those on the map."""

    def __init__(self, rows: int, seed: int) -> None:
        count = min(_PROBES, rows)
        self._rows = np.sort(np.random.default_rng(seed + 1).choice(rows, count, replace=False))
        self._parts: list[np.ndarray] = []
        self._best: np.ndarray | None = None
        self._near = np.zeros((count, 0), np.int64)

    def collect(self, start: int, mu: np.ndarray) -> None:
        own = self._rows[(self._rows >= start) & (self._rows < start + len(mu))]
        self._parts.append(mu[own - start])

    def compare(self, start: int, mu: np.ndarray) -> None:
        own = np.concatenate(self._parts)
        cosine = own @ mu.T
        inside = np.flatnonzero((self._rows >= start) & (self._rows < start + len(mu)))
        cosine[inside, self._rows[inside] - start] = -2.0
        rows = np.broadcast_to(np.arange(start, start + len(mu)), cosine.shape)
        best = cosine if self._best is None else np.concatenate([self._best, cosine], 1)
        near = np.concatenate([self._near, rows], 1)
        k = min(_KEPT, best.shape[1])
        top = np.argpartition(-best, k - 1, axis=1)[:, :k]
        self._best, self._near = np.take_along_axis(best, top, 1), np.take_along_axis(near, top, 1)

    def share_kept(self, xy: np.ndarray) -> float:
        """The share of the nearest rows that are among as many nearest on the map; NaN-free: 1 for a single row."""
        k = min(_KEPT, len(xy) - 1)
        if k < 1:
            return 1.0
        kept = 0
        for row, near in zip(self._rows.tolist(), self._near, strict=True):
            distance = ((xy - xy[row]) ** 2).sum(1)
            distance[row] = np.inf
            kept += len(np.intersect1d(near, np.argpartition(distance, k - 1)[:k]))
        return kept / (k * len(self._rows))


def _layout(mu: np.ndarray, seed: int, observer: Observer) -> np.ndarray:
    """Two coordinates of directions, scaled so that most lie between -1 and 1."""
    if not len(mu):
        return np.zeros((0, 2), np.float32)
    centred = mu - mu.mean(0)
    _, _, axes = np.linalg.svd(centred[:: max(1, len(mu) // 5000)], full_matrices=False)
    start = centred @ axes[:2].T
    if start.shape[1] < 2:
        start = np.pad(start, ((0, 0), (0, 2 - start.shape[1])))
    xy = start if len(mu) < _FEWEST else _tsne(mu, start, seed, observer)
    xy = xy - np.median(xy, 0)
    scale = np.quantile(np.abs(xy), 0.99)
    return (xy / scale if scale > 0 else xy).astype(np.float32)


def _tsne(mu: np.ndarray, start: np.ndarray, seed: int, observer: Observer) -> np.ndarray:
    try:
        from openTSNE import TSNEEmbedding, affinity, initialization, nearest_neighbors
    except ImportError as error:
        raise MissingPackageError(
            "a map needs openTSNE: run `pip install 'aureole[explore]'`."
        ) from error
    observer("neighbours", 0, len(mu))
    cosine, rows = _index_of(mu).search(mu, _NEIGHBOURS + 1)
    rows, cosine = _without_self(rows, cosine)
    observer("neighbours", len(mu), len(mu))
    distance = np.sqrt(np.maximum(0.0, 2 - 2 * cosine))
    graph = nearest_neighbors.PrecomputedNeighbors(rows, distance)
    pairs = affinity.Uniform(knn_index=graph, k_neighbors=_NEIGHBOURS)
    start = initialization.rescale(start.astype(np.float64))
    total, before = sum(_ITERATIONS), 0

    def report(iteration: int, _: float, __: Any) -> None:
        observer("layout", before + iteration, total)

    layout = TSNEEmbedding(
        start,
        pairs,
        negative_gradient_method="fft" if len(mu) > 10_000 else "bh",
        random_state=seed,
        callbacks=report,
        callbacks_every_iters=10,
    )
    layout.optimize(_ITERATIONS[0], exaggeration=12, momentum=0.5, inplace=True)
    before = _ITERATIONS[0]
    layout.optimize(_ITERATIONS[1], momentum=0.8, inplace=True)
    observer("layout", total, total)
    return np.asarray(layout)


def _index_of(mu: np.ndarray) -> Any:
    """A FAISS index of inner products: exact up to 20,000 rows, else with 16 of 4 sqrt(n) lists."""
    try:
        import faiss
    except ImportError as error:
        raise MissingPackageError(
            "a map needs faiss: run `pip install 'aureole[explore]'`."
        ) from error
    mu = np.ascontiguousarray(mu, np.float32)
    flat = faiss.IndexFlatIP(mu.shape[1])
    if len(mu) <= _EXACT:
        flat.add(mu)
        return flat
    lists = round(4 * len(mu) ** 0.5)
    found = faiss.IndexIVFFlat(flat, mu.shape[1], lists, faiss.METRIC_INNER_PRODUCT)
    found.cp.niter, found.cp.max_points_per_centroid = 10, 64
    found.train(mu)
    found.add(mu)
    found.nprobe = 16
    return found


def _without_self(rows: np.ndarray, cosine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The neighbours without the row itself, or without the last one if it is not among them; missing: the row."""
    own = np.arange(len(rows))[:, None]
    rows = np.where(rows < 0, own, rows)
    itself = rows == own
    drop = np.where(itself.any(1), itself.argmax(1), rows.shape[1] - 1)
    keep = np.ones(rows.shape, bool)
    keep[np.arange(len(rows)), drop] = False
    shape = (len(rows), rows.shape[1] - 1)
    return rows[keep].reshape(shape), np.where(cosine < -1, 1.0, cosine)[keep].reshape(shape)


def _weighted_means(cosine: np.ndarray, rows: np.ndarray, xy: np.ndarray) -> np.ndarray:
    """Means of the neighbours' coordinates, weighted by 1 / d^2 of their distances."""
    weight = np.where(rows < 0, 0.0, 1 / np.maximum(1e-9, 2 - 2 * cosine))
    weight /= np.maximum(1e-30, weight.sum(1, keepdims=True))
    return np.einsum("nk,nkd->nd", weight, xy[np.maximum(rows, 0)])


def _marks(mu: np.ndarray) -> np.ndarray:
    """One number per direction, the same for the same one."""
    axis = np.random.default_rng(0).standard_normal(mu.shape[1])
    return (mu.astype(np.float64) @ axis).astype(np.float32)


def _vectors(index: CredibleIndex) -> Iterator[tuple[list[str], np.ndarray]]:
    for ids, posterior, _ in index.posteriors():
        for start in range(0, len(ids), _BLOCK):
            part = slice(start, start + _BLOCK)
            yield [str(name) for name in ids[part]], posterior.mu[part].numpy()


def _silent(*_: object) -> None:
    return


def _save(found: GalleryMap, path: Path) -> None:
    from safetensors.numpy import save

    text, ends = pack_strings(found.ids)
    arrays = {
        "text": text, "ends": ends, "xy": found.xy, "fitted": found.fitted, "marks": found.marks
    }  # fmt: skip
    atomic_write(path, save(arrays, {"note": json.dumps(asdict(found.note))}))


def _load(path: Path) -> GalleryMap:
    """The map in a file, which is validated."""
    from safetensors import SafetensorError, safe_open

    try:
        if path.stat().st_size > _MAX_FILE:
            raise ValueError("the file is too large")
        with safe_open(path, "np") as file:
            note = MapNote(**json.loads(file.metadata()["note"]))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        ids = unpack_strings(arrays["text"], arrays["ends"])
        n, xy, fitted, marks = len(ids), arrays["xy"], arrays["fitted"], arrays["marks"]
        valid = note.format == _FORMAT and xy.shape == (n, 2) and xy.dtype == np.float32
        valid = valid and fitted.shape == marks.shape == (n,) and bool(np.isfinite(xy).all())
        if not valid or fitted.dtype != np.uint8 or marks.dtype != np.float32:
            raise ValueError("shapes or types")
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DamagedGalleryError(
            f"{path} is not a map of a gallery ({repr(error)[:200]}). Rebuild it: aureole index map GALLERY --refit"
        ) from error
    return GalleryMap(ids, xy, fitted, marks, note)
