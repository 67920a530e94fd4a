"""Exact neighbours by blocks of matrix products, and means of the highest cosines."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from aureole.errors import InvalidInputError

BLOCK = 1024  # rows whose cosines are in memory at a time


def nearest(queries: Any, gallery: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
    """(Cosines, rows) of the k items nearest to each query, in descending order, by brute force."""
    queries, gallery = unit_rows(queries, "queries"), unit_rows(gallery, "gallery")
    k = min(k, len(gallery))
    cosines = np.empty((len(queries), k), np.float32)
    rows = np.empty((len(queries), k), np.int64)
    for part in _blocks(len(queries)):
        products = queries[part] @ gallery.T
        best = np.argpartition(products, products.shape[1] - k, axis=1)[:, -k:]
        values = np.take_along_axis(products, best, 1)
        order = np.argsort(-values, axis=1, kind="stable")
        rows[part] = np.take_along_axis(best, order, 1)
        cosines[part] = np.take_along_axis(values, order, 1)
    return cosines, rows


def unit_rows(vectors: Any, name: str) -> Float[np.ndarray, "n dim"]:
    """The rows as float32 of length 1; raise if a row is zero or not finite."""
    array = np.asarray(vectors.detach().cpu() if hasattr(vectors, "detach") else vectors)
    if array.ndim != 2 or not array.size or array.dtype.kind not in "fiu":
        raise InvalidInputError(
            f"{name} must be numbers of shape (n, dim), but has shape {array.shape} and type {array.dtype}."
        )
    length = np.linalg.norm(array.astype(np.float64), axis=1)
    wrong = ~(np.isfinite(length) & (length > 0))
    if wrong.any():
        raise InvalidInputError(f"row {int(wrong.argmax())} of {name} is zero or not finite.")
    return (array / length[:, None]).astype(np.float32)


def labels_of(rows: np.ndarray, matches: Sequence[np.ndarray]) -> np.ndarray:
    """Whether each candidate of each query is one of its matches."""
    return np.stack([np.isin(own, group) for own, group in zip(rows, matches, strict=True)])


def mean_of_best(values: np.ndarray) -> np.ndarray:
    """The mean of the finite values along the last axis."""
    finite = np.isfinite(values)
    total = np.where(finite, values, 0.0).sum(-1, dtype=np.float64)
    return np.asarray(total / np.maximum(finite.sum(-1), 1))


def _blocks(count: int) -> Iterator[slice]:
    for start in range(0, count, BLOCK):
        yield slice(start, start + BLOCK)
