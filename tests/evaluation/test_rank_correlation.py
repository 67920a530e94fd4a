"""Rank correlations against scipy, the noise ceiling of votes, and the bootstrap against a loop."""

import math

import pytest
import torch
from scipy.stats import spearmanr

from aureole._rank_correlation import average_ranks
from aureole.errors import InvalidInputError
from aureole.evaluation import spearman


@pytest.mark.parametrize("ties", [False, True])
def test_spearman_matches_scipy(ties):
    a, b = torch.randn(500, dtype=torch.float64), torch.randn(500, dtype=torch.float64)
    b = b + a
    if ties:
        a, b = a.round(decimals=0), b.round(decimals=1)
    assert spearman(a, b) == pytest.approx(spearmanr(a.numpy(), b.numpy())[0], abs=1e-12)
    assert average_ranks(a).sum().item() == 500 * 501 / 2


def test_spearman_says_what_it_cannot_rank():
    assert math.isnan(spearman(torch.ones(4), torch.arange(4.0)))
    with pytest.raises(InvalidInputError, match="NaN"):
        spearman(torch.tensor([1.0, float("nan")]), torch.arange(2.0))
    with pytest.raises(InvalidInputError, match="same length"):
        spearman(torch.arange(3.0), torch.arange(2.0))
