"""A map of a gallery: two coordinates per row, so that neighbours lie together; stored in a file of its own.

The coordinates come from t-SNE (openTSNE). A larger gallery is fitted on a sample; every other row gets the weighted
mean of its nearest neighbours in the sample.
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
from aureole.caps import CredibleIndex
from aureole.engines._addresses import is_local
from aureole.engines._schema import pack_strings, unpack_strings
from aureole.errors import DamagedGalleryError, InvalidInputError, MissingPackageError

Observer = Callable[[str, int, int], None]
SAMPLE = 50_000
_FORMAT = "aureole-map-2"
_NEIGHBOURS = 15  # in the graph that is laid out
_NEAREST = 5  # that place another row
_ITERATIONS = (250, 500)  # with early exaggeration, and without
_FEWEST = 50  # rows below which principal axes are used
_EXACT = 20_000  # rows up to which neighbours are searched exactly
_BLOCK = 50_000  # rows in memory at once
_MAX_FILE = 8 * 2**30


@dataclass(frozen=True)
class MapNote:
    """How a map was made.

    ``method`` is "t-SNE" or, for fewer than 50 rows, "PCA"; ``rows`` are on the map, and the layout was ``fitted`` on
    so many of them. The rest describes the gallery and the run.
    """

    method: str
    rows: int
    fitted: int
    dim: int
    origin: str | None
    version: str
    seed: int
    format: str = field(default=_FORMAT)


@dataclass(frozen=True)
class GalleryMap:
    """Two coordinates per id; most lie between -1 and 1.

    ``fitted`` marks the rows of the sample.
    """

    ids: list[str]
    xy: Float[np.ndarray, "n 2"]
    fitted: np.ndarray
    note: MapNote


def map_path(where: str) -> Path | None:
    """Return the file of a gallery's map: next to a local gallery, in the user's cache for a database, None in memory.

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
    """Return a text that changes when the stored map of a gallery does."""
    path = map_path(index.where)
    try:
        return "" if path is None else str(path.stat().st_mtime_ns)
    except OSError:
        return ""


def read_map(index: CredibleIndex) -> GalleryMap | None:
    """Return the stored map of a gallery; None if it does not exist, or was made for another encoder's directions."""
    path = map_path(index.where)
    if path is None or not path.is_file():
        return None
    found = _load(path)
    same = found.note.dim == index.schema.dim and found.note.origin == index.origin.fingerprint
    return found if same else None


def write_map(
    index: CredibleIndex,
    *,
    sample: int = SAMPLE,
    seed: int = 0,
    observer: Observer | None = None,
) -> GalleryMap:
    """Make the map of a gallery with ``fit_map``, and store it atomically next to the gallery."""
    path = map_path(index.where)
    if path is None:
        raise InvalidInputError("a gallery in memory has no place for a map. Use fit_map instead.")
    found = fit_map(index, sample=sample, seed=seed, observer=observer)
    text, ends = pack_strings(found.ids)
    arrays = {"text": text, "ends": ends, "xy": found.xy, "fitted": found.fitted}
    from safetensors.numpy import save

    atomic_write(path, save(arrays, {"note": json.dumps(asdict(found.note))}))
    return found


def fit_map(
    index: CredibleIndex,
    *,
    sample: int = SAMPLE,
    seed: int = 0,
    observer: Observer | None = None,
) -> GalleryMap:
    """Return the map of a gallery, from two passes over its directions, in memory proportional to the sample.

    Parameters
    ----------
    index
        The gallery.
    sample
        Rows that the layout is fitted on, at most (default 50,000).
    seed
        Of the sample and the layout.
    observer
        Called with a step's name, and how much of it is done, in total.

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
    chosen = np.arange(total)
    if total > sample:
        chosen = np.sort(np.random.default_rng(seed).choice(total, sample, replace=False))
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
    own, near = dict(zip(names, xy, strict=True)), _index_of(mu)
    all_ids: list[str] = []
    all_xy, fitted = [np.zeros((0, 2), np.float32)], [np.zeros(0, np.uint8)]
    for ids, block in _vectors(index):
        sampled = np.array([name in own for name in ids], bool)
        cosine, rows = near.search(np.ascontiguousarray(block[~sampled]), min(_NEAREST, len(own)))
        placed = np.empty((len(ids), 2), np.float32)
        placed[~sampled] = _weighted_means(cosine, rows, xy)
        placed[sampled] = [own[name] for name in ids if name in own]
        all_ids += ids
        all_xy.append(placed)
        fitted.append(sampled.astype(np.uint8))
        observer("placing", len(all_ids), max(len(all_ids), total))
    note = MapNote(
        method="PCA" if len(mu) < _FEWEST else "t-SNE",
        rows=len(all_ids),
        fitted=len(mu),
        dim=index.schema.dim,
        origin=index.origin.fingerprint,
        version=version,
        seed=seed,
    )
    return GalleryMap(all_ids, np.concatenate(all_xy), np.concatenate(fitted), note)


def _layout(mu: np.ndarray, seed: int, observer: Observer) -> np.ndarray:
    """Return two coordinates of directions, scaled so that most lie between -1 and 1."""
    if not len(mu):
        return np.zeros((0, 2), np.float32)
    centred = mu - mu.mean(0)
    _, _, axes = np.linalg.svd(centred[:: max(1, len(mu) // 5000)], full_matrices=False)
    start = centred @ axes[:2].T
    start = np.pad(start, ((0, 0), (0, 2 - start.shape[1])))
    xy = start if len(mu) < _FEWEST else _tsne(mu, start, seed, observer)
    xy = xy - np.median(xy, 0)
    scale = np.quantile(np.abs(xy), 0.99)
    return (xy / scale if scale > 0 else xy).astype(np.float32)


def _tsne(mu: np.ndarray, start: np.ndarray, seed: int, observer: Observer) -> np.ndarray:
    try:
        from openTSNE import TSNEEmbedding, affinity, initialization
    except ImportError as error:
        raise MissingPackageError(
            "a map needs openTSNE: run `pip install 'aureole[explore]'`."
        ) from error
    observer("neighbours", 0, len(mu))
    options = {"metric": "cosine", "random_state": seed}
    pairs = affinity.Uniform(mu, k_neighbors=_NEIGHBOURS, **options)
    observer("neighbours", len(mu), len(mu))
    total, before = sum(_ITERATIONS), 0

    def report(iteration: int, _: float, __: Any) -> None:
        observer("layout", before + iteration, total)

    layout = TSNEEmbedding(
        initialization.rescale(start.astype(np.float64)),
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
    """Return a FAISS index of inner products: exact up to 20,000 rows, else with 16 of 4 sqrt(n) lists."""
    try:
        import faiss
    except ImportError as error:
        raise MissingPackageError(
            "a map needs faiss: run `pip install 'aureole[explore]'`."
        ) from error
    mu = np.ascontiguousarray(mu, np.float32)
    kind = "Flat" if len(mu) <= _EXACT else f"IVF{round(4 * len(mu) ** 0.5)},Flat"
    found: Any = faiss.index_factory(mu.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
    found.train(mu)
    found.add(mu)
    if len(mu) > _EXACT:
        found.nprobe = 16
    return found


def _weighted_means(cosine: np.ndarray, rows: np.ndarray, xy: np.ndarray) -> np.ndarray:
    """Return means of the neighbours' coordinates, weighted by 1 / d^2 of their distances."""
    weight = np.where(rows < 0, 0.0, 1 / np.maximum(1e-9, 2 - 2 * cosine))
    weight /= np.maximum(1e-30, weight.sum(1, keepdims=True))
    return np.einsum("nk,nkd->nd", weight, xy[np.maximum(rows, 0)])


def _vectors(index: CredibleIndex) -> Iterator[tuple[list[str], np.ndarray]]:
    for ids, posterior, _ in index.posteriors():
        for start in range(0, len(ids), _BLOCK):
            part = slice(start, start + _BLOCK)
            yield [str(name) for name in ids[part]], posterior.mu[part].numpy()


def _silent(*_: object) -> None:
    return


def _load(path: Path) -> GalleryMap:
    """Read and validate the map in a file."""
    from safetensors import SafetensorError, safe_open

    try:
        if path.stat().st_size > _MAX_FILE:
            raise ValueError("the file is too large")
        with safe_open(path, "np") as file:
            note = MapNote(**json.loads(file.metadata()["note"]))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        ids = unpack_strings(arrays["text"], arrays["ends"])
        n, xy, fitted = len(ids), arrays["xy"], arrays["fitted"]
        valid = note.format == _FORMAT and xy.shape == (n, 2) and xy.dtype == np.float32
        valid = valid and fitted.shape == (n,) and bool(np.isfinite(xy).all())
        if not valid or fitted.dtype != np.uint8:
            raise ValueError("shapes or types")
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DamagedGalleryError(
            f"{path} is not a map of a gallery ({repr(error)[:200]}). Rebuild it: aureole index map GALLERY"
        ) from error
    return GalleryMap(ids, xy, fitted, note)
