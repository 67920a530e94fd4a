"""Triton kernels of the row sums of zonal series; see ``_triton`` for what calls them.

Tiles of pairs run down the recurrence in registers. Starting it from 0 instead of 1 leaves a pair out, since it is
linear. A program adds to its own sums atomically, since which of its threads holds an entry may change.
"""

# pyright: reportInvalidTypeForm=false

from __future__ import annotations

from typing import Any

try:
    import triton.language as tl
    from triton import jit
except ImportError:  # this module can be imported, but the kernels do not run
    tl: Any = None
    jit: Any = lambda kernel: kernel  # noqa: E731


@jit
def _tile(cosine, excluded, rows, columns, n, m, masked: tl.constexpr):
    """(Cosines of a tile, 1 for the pairs that count and 0 for the others, offsets, which of them exist)."""
    inside = (rows < n)[:, None] & (columns < m)[None, :]
    offsets = rows.to(tl.int64)[:, None] * m + columns[None, :]
    c = tl.load(cosine + offsets, mask=inside, other=0.0)
    counts = inside
    if masked:
        counts = inside & (tl.load(excluded + offsets, mask=inside, other=1) == 0)
    return c, counts.to(c.dtype), offsets, inside


@jit
def forward_kernel(
    cosine, left, right, excluded, ratios, moments, sizes, n, m, terms,
    masked: tl.constexpr, tile_rows: tl.constexpr, tile_columns: tl.constexpr,
):  # fmt: skip
    """Moments [n, terms] and sums of sizes [n] in float64, which start at 0; a program owns its rows."""
    rows = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    real = rows < n
    size = tl.zeros([tile_rows], dtype=tl.float64)
    for first in range(0, m, tile_columns):
        columns = first + tl.arange(0, tile_columns)
        c, now, _, _ = _tile(cosine, excluded, rows, columns, n, m, masked)
        before = tl.zeros_like(now)
        for term in range(terms):
            b = tl.load(right + columns * terms + term, mask=columns < m, other=0.0)
            a = tl.load(left + rows * terms + term, mask=real, other=0.0)
            place = moments + rows * terms + term
            moment = tl.sum(b[None, :] * now, 1).to(tl.float64)
            tl.atomic_add(place, moment, mask=real, sem="relaxed")
            size += (tl.abs(a) * tl.sum(b[None, :] * tl.abs(now), 1)).to(tl.float64)
            ratio = tl.load(ratios + term)
            above = (1 + ratio) * c * now - ratio * before
            before = now
            now = above
    tl.store(sizes + rows, size, mask=real)


@jit
def backward_kernel(
    cosine, left, right, excluded, grad, ratios, slope_ratios, factors, into_cosine, into_right, n, m, terms,
    masked: tl.constexpr, tile_rows: tl.constexpr, tile_columns: tl.constexpr,
):  # fmt: skip
    """Gradients in the cosines [n, m], and in ``right`` [m, terms] in float64, which starts at 0.

    A program owns its columns. G_l' is ``factors[l]`` times G_(l-1) of two dimensions more.
    """
    columns = tl.program_id(0) * tile_columns + tl.arange(0, tile_columns)
    real = columns < m
    for first in range(0, n, tile_rows):
        rows = first + tl.arange(0, tile_rows)
        c, now, offsets, inside = _tile(cosine, excluded, rows, columns, n, m, masked)
        before = tl.zeros_like(now)
        slope = now
        slope_before = tl.zeros_like(now)
        total = tl.zeros_like(now)
        g = tl.load(grad + rows, mask=rows < n, other=0.0)
        for term in range(terms):
            a = g * tl.load(left + rows * terms + term, mask=rows < n, other=0.0)
            b = tl.load(right + columns * terms + term, mask=real, other=0.0)
            place = into_right + columns * terms + term
            found = tl.sum(a[:, None] * now, 0).to(tl.float64)
            tl.atomic_add(place, found, mask=real, sem="relaxed")
            ratio = tl.load(ratios + term)
            above = (1 + ratio) * c * now - ratio * before
            before = now
            now = above
            if term > 0:
                total += tl.load(factors + term) * a[:, None] * b[None, :] * slope
                ratio = tl.load(slope_ratios + term - 1)
                above = (1 + ratio) * c * slope - ratio * slope_before
                slope_before = slope
                slope = above
        tl.store(into_cosine + offsets, total, mask=inside)
