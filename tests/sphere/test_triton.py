"""The Triton kernels against ``zonal_sum``, by Triton's interpreter on a CPU."""

import os

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when the kernels are first imported
pytest.importorskip("triton")

import torch

from aureole.sphere import _triton, zonal_sizes, zonal_sum
from aureole.sphere._row_sums import _RowSums


def inputs(dtype, n=37, m=131, terms=9):
    torch.manual_seed(0)
    cosine = torch.empty(n, m, dtype=dtype).uniform_(-1, 1)
    left, right = torch.randn(n, terms, dtype=dtype), torch.rand(m, terms, dtype=dtype)
    return [x.requires_grad_() for x in (cosine, left, right)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [2, 10, 700])
@pytest.mark.parametrize("masked", [False, True])
def test_sums_and_gradients(dtype, dim, masked):
    leaves = inputs(dtype)
    excluded = torch.rand(leaves[0].shape) < 0.2 if masked else None
    total, sizes = _RowSums.apply(*leaves, dim, excluded, _triton)
    values, bounds = zonal_sum(*leaves, dim), zonal_sizes(*leaves, dim)
    if excluded is not None:
        values, bounds = values.masked_fill(excluded, 0.0), bounds.masked_fill(excluded, 0.0)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-11
    torch.testing.assert_close(total, values.sum(-1).double(), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(sizes, bounds.sum(-1).double(), rtol=tolerance, atol=tolerance)
    weights = torch.rand(len(total), dtype=torch.float64)
    found = torch.autograd.grad(total, leaves, weights)
    expected = torch.autograd.grad(values.sum(-1).double(), leaves, weights)
    for grad, truth in zip(found, expected, strict=True):
        torch.testing.assert_close(grad, truth, rtol=tolerance, atol=tolerance)


def test_second_derivatives():
    leaves = inputs(torch.float64, 5, 7, 4)
    torch.autograd.gradgradcheck(lambda *x: _RowSums.apply(*x, 6, None, _triton)[0], leaves)


def test_only_for_cuda():
    assert not _triton.has_triton(torch.zeros(2, 2))
