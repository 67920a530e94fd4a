"""Row sums of zonal series on CUDA devices, where ``triton`` is installed.

The kernels are tested with Triton's interpreter on a CPU. Their speed has not been measured on a GPU.
"""

import importlib.util
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

_TILE = {"tile_rows": 16, "tile_columns": 64}


@lru_cache(maxsize=1)
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def has_triton(cosine: Tensor) -> bool:
    """Whether the kernels can be used for these cosines."""
    usable = cosine.is_cuda and cosine.dtype in (torch.float32, torch.float64)
    return usable and not torch.compiler.is_compiling() and _installed()


def row_moments(
    cosine: Tensor, left: Tensor, right: Tensor, dim: int, excluded: Tensor | None
) -> tuple[Tensor, Tensor]:
    r"""(The sums :math:`\sum_j b_{jl}\,G_l(c_{ij})` [n, terms], the rows' sums of sizes [n]), in float64."""
    (n, m), terms = cosine.shape, left.shape[-1]
    moments = torch.zeros(n, terms, dtype=torch.float64, device=cosine.device)
    sizes = torch.zeros(n, dtype=torch.float64, device=cosine.device)
    _kernels().forward_kernel[(_tiles(n, "tile_rows"),)](
        *(cosine, left, right, _bytes(excluded, cosine), _ratios(dim, cosine, terms)),
        *(moments, sizes, n, m, terms),
        masked=excluded is not None,
        **_TILE,
    )
    return moments, sizes


def row_gradients(
    cosine: Tensor, left: Tensor, right: Tensor, dim: int, excluded: Tensor | None, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of row sums in ``cosine`` and ``right``, given those of the sums [n]."""
    (n, m), terms = cosine.shape, left.shape[-1]
    into_cosine = torch.empty_like(cosine)
    into_right = torch.zeros(m, terms, dtype=torch.float64, device=cosine.device)
    l = torch.arange(terms, dtype=torch.float64, device=cosine.device)  # noqa: E741
    factors = (l * (l + dim - 2) / (dim - 1)).to(cosine.dtype)
    _kernels().backward_kernel[(_tiles(m, "tile_columns"),)](
        *(cosine, left, right, _bytes(excluded, cosine), grad, _ratios(dim, cosine, terms)),
        *(_ratios(dim + 2, cosine, terms), factors, into_cosine, into_right, n, m, terms),
        masked=excluded is not None,
        **_TILE,
    )
    return into_cosine, into_right.to(right.dtype)


def _kernels() -> Any:
    """The module of the kernels, which imports triton."""
    from aureole.sphere import _triton_kernels

    return _triton_kernels


def _tiles(count: int, side: str) -> int:
    return -(-count // _TILE[side])


def _bytes(excluded: Tensor | None, cosine: Tensor) -> Tensor:
    """The mask as bytes; the cosines, which are not read as one, where there is no mask."""
    return cosine if excluded is None else excluded.view(torch.uint8)


def _ratios(dim: int, like: Tensor, terms: int) -> Tensor:
    """r_l = l / (l + D - 2) of the recurrence, 0 for l = 0."""
    l = torch.arange(terms, dtype=torch.float64, device=like.device)  # noqa: E741
    return (l / (l + dim - 2).clamp(min=1)).to(like.dtype)
