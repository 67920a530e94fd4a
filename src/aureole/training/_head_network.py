"""What heads on frozen vectors share: reading vectors, the network and its initial weights, and the choice of dim."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from aureole._validation import check_size
from aureole.data import PairBatch
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.losses import ClosedFormInfoNCE
from aureole.models import IndependentEncoder, ResidualMLP
from aureole.training._fit import Fit

Vectors = Tensor | np.ndarray
PATIENCE = 5  # evaluations, of 20, without more held-out information after which a fit ends
CHUNK = 2048  # rows that are predicted at a time
_SAMPLE = 20_000  # rows from which the initial weights are computed
_DIMS = (8, 16, 32, 64)  # tried by dim="auto", each for a fifth of the steps
_GAIN = 0.02  # nats of held-out information that justify a larger dim
_LEAST = {"width": 1, "steps": 1, "items": 4}  # a batch holds two matching pairs


def head_network(n_in: int, dim: int, width: int) -> IndependentEncoder:
    """The network of a head, with torch's initial weights: a linear map for mu, a small residual network for kappa."""
    kappa = ResidualMLP(n_in, 1, width=width, n_blocks=2)
    return IndependentEncoder(nn.Linear(n_in, dim), kappa, n_in=n_in)


def head_encoder(
    vectors: Vectors, members: Int[Tensor, " m"], dim: int, *, width: int, seed: int
) -> IndependentEncoder:
    """A network whose mu is initialised with the whitened principal directions of a sample of the members."""
    n_in = check_dim(dim, vectors)
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(members), generator=rng)[:_SAMPLE]
    sample = take(vectors, members[order].sort().values)
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


def check_parameters(head: Any) -> None:
    """Raise unless a head's width, steps, items, lr and held_out are in range."""
    for name, least in _LEAST.items():
        check_size(name, getattr(head, name), least)
    if not 0 < head.lr < math.inf:
        raise InvalidInputError(f"lr must be a positive number, but is {head.lr!r}.")
    if not 0 < head.held_out < 1:
        raise InvalidInputError(
            f"held_out is a share between 0 and 1 (default 0.1), but is {head.held_out!r}."
        )


def check_dim(dim: int, vectors: Vectors) -> int:
    """The dimension of the vectors; raise unless ``dim`` is one that a head can have."""
    n_in = int(vectors.shape[1])
    if not 2 <= dim <= n_in:
        raise InvalidInputError(
            f"dim must be between 2 and {n_in}, the dimension of the vectors, but is {dim}."
        )
    return n_in


def try_dims(
    train: Callable[[int, int, Path | None], Fit],
    largest: int,
    steps: int,
    checkpoint: Path | None = None,
) -> dict[int, float]:
    """The held-out information by dim, smallest first, until it no longer grows.

    ``train`` takes a dim, a number of steps and a checkpoint, and returns a fit with "information" on its curve.
    """
    dims: dict[int, float] = {}
    for dim in (d for d in _DIMS if d <= largest):
        path = checkpoint and checkpoint.with_name(f"{checkpoint.stem}-{dim}{checkpoint.suffix}")
        dims[dim] = best_information(train(dim, max(1, steps // 5), path))
        if choose_dim(dims) != dim:
            break
    if not dims:
        raise InvalidInputError(f'dim="auto" needs vectors of at least {_DIMS[0]} dimensions.')
    return dims


def choose_dim(dims: dict[int, float]) -> int:
    """The smallest dim after which the information grows by less than 0.02 nats.

    Examples
    --------
    >>> choose_dim({8: 1.0, 16: 1.5, 32: 1.51, 64: 1.9})
    16
    """
    chosen, *larger = sorted(dims)
    for dim in larger:
        if dims[dim] < dims[chosen] + _GAIN:
            break
        chosen = dim
    return chosen


def best_information(fitted: Fit) -> float:
    """The "information" at the point of the curve of a fit that was selected; NaN if all are NaN.

    That is the point with the highest "held_out", or without such a metric the highest information.

    Examples
    --------
    >>> from torch import nn
    >>> best_information(Fit(nn.Identity(), [{"information": v} for v in (math.nan, 1.5, 1.25)]))
    1.5
    """
    scored = [(p.get("held_out", p["information"]), p["information"]) for p in fitted.curve]
    known = [pair for pair in scored if not math.isnan(pair[0])]
    return max(known, key=lambda pair: pair[0])[1] if known else math.nan


def check_vectors(vectors: Vectors) -> None:
    """Raise an error unless vectors have the shape [n, d]."""
    if len(vectors.shape) != 2 or 0 in vectors.shape:
        raise InvalidInputError(
            f"vectors must have the shape [n, d], but have {tuple(vectors.shape)}."
        )


def take(vectors: Vectors, rows: Int[Tensor, " n"] | slice) -> Float[Tensor, "n d"]:
    """Rows as float32 on the CPU; they must be finite."""
    if isinstance(vectors, Tensor):
        chosen = vectors[rows].cpu()
    else:
        picked = vectors[rows if isinstance(rows, slice) else rows.numpy()]
        array = np.ascontiguousarray(picked, dtype=np.float32)
        chosen = torch.from_numpy(array if array.flags.writeable else array.copy())
    chosen = chosen.float()
    if not bool(torch.isfinite(chosen.sum())):  # one pass; the slow search only if it failed
        bad = ~torch.isfinite(chosen).all(-1)
        if bool(bad.any()):
            first = int(bad.int().argmax())
            row = (rows.start or 0) + first if isinstance(rows, slice) else int(rows[first])
            raise InvalidInputError(
                f"vectors[{row}] contains NaN or infinity (or a number beyond float32). Drop such rows first."
            )
    return chosen


@torch.no_grad()
def information(
    model: Callable[[Tensor], VonMisesFisher], loss: ClosedFormInfoNCE, batch: PairBatch
) -> float:
    """The information of the posteriors about a partner, in nats: the log number of candidates minus the loss."""
    value = loss.among(model(batch.inputs), batch.pairs).item()
    return math.log(len(batch.inputs) - 1) - value


@torch.no_grad()
def judged(
    model: Callable[[Tensor], VonMisesFisher], loss: ClosedFormInfoNCE, batch: PairBatch
) -> dict[str, float]:
    """Metrics of held-out inputs: the information about a partner, and "held_out", by which the step is selected.

    The two are equal, unless the agreement of annotators was observed: then its term of the loss is subtracted.
    """
    value = information(model, loss, batch)
    if batch.agreement is None:
        return {"information": value, "held_out": value}
    term = loss.agreement_term(model(batch.inputs), batch.agreement).item()
    return {"information": value, "agreement": term, "held_out": value - term}
