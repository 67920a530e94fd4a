"""The encoder of a head on frozen vectors: mu a linear map, kappa a small network, and where they start."""

import torch
from torch import nn

from aureole.errors import InvalidInputError
from aureole.models import IndependentEncoder, ResidualMLP
from aureole.training._rows import Partners, Vectors, take

_SAMPLE = 20_000  # rows that the start is computed from


def head_network(n_in: int, dim: int, width: int) -> IndependentEncoder:
    """The network as torch initialises it.

    Examples
    --------
    >>> head_network(5, 3, width=8)(torch.ones(2, 5)).mu.shape
    torch.Size([2, 3])
    """
    certainty = ResidualMLP(n_in, 1, width=width, n_blocks=2)
    return IndependentEncoder(nn.Linear(n_in, dim), certainty, n_in=n_in)


def head_encoder(
    vectors: Vectors, partners: Partners, dim: int, *, width: int, seed: int
) -> IndependentEncoder:
    """An encoder whose mu starts at the whitened principal directions of a sample."""
    n_in = int(vectors.shape[1])
    if not 2 <= dim <= n_in:
        raise InvalidInputError(f"dim must be between 2 and the vectors' {n_in}, not {dim}.")
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(partners.members), generator=rng)[:_SAMPLE]
    sample = take(vectors, partners.members[order].sort().values)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = head_network(n_in, dim, width)
    standard = encoder.standardise(sample)
    _, directions = torch.linalg.eigh(torch.cov(standard.T).double())
    assert isinstance(encoder.location, nn.Linear)
    with torch.no_grad():
        encoder.location.weight.copy_(directions[:, -dim:].T)
    encoder.initialise(sample)
    return encoder
