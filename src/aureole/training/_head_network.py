"""The common part of heads on frozen vectors: parameters, network and initial weights, choice of dim, reading."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from aureole._validation import check_size
from aureole.data import PairBatch
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError, NotFittedError
from aureole.evaluation import Calibration, fit_calibration, predictive_coverage
from aureole.losses import ClosedFormInfoNCE
from aureole.models import IndependentEncoder, ResidualMLP
from aureole.training._fit import Fit, FitOptions

Vectors = Tensor | np.ndarray
HeadT = TypeVar("HeadT", bound="Head")
_PATIENCE = 5  # evaluations, of 20, without more held-out information after which a fit ends
CHUNK = 2048  # rows that are predicted at a time
_SAMPLE = 20_000  # rows from which the initial weights are computed
_DIMS = (8, 16, 32, 64)  # tried by dim="auto", each for a fifth of the steps
_GAIN = 0.02  # nats of held-out information that justify a larger dim
_LEAST = {"width": 1, "steps": 1, "items": 4}  # a batch holds two matching pairs
_PARAMETERS = ("dim", "kappa_pos", "width", "steps", "items", "lr", "held_out", "seed")
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of kappa_pos, in the profile


class Head:
    """The common part of heads on frozen vectors: parameters, the choice of dim, calibration and summary."""

    dims_: dict[int, float]
    dim_: int
    kappa_pos_: float
    information_: float
    profile_: dict[float, float]
    calibration_: Calibration
    coverage_: dict[float, float]

    def __init__(
        self,
        dim: int | Literal["auto"] = 32,
        *,
        kappa_pos: float | None = None,
        width: int = 128,
        steps: int = 400,
        items: int = 1024,
        lr: float = 4e-3,
        held_out: float = 0.1,
        seed: int = 0,
    ) -> None:
        self.dim = dim
        self.kappa_pos = kappa_pos
        self.width = width
        self.steps = steps
        self.items = items
        self.lr = lr
        self.held_out = held_out
        self.seed = seed

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002
        """Return the constructor parameters by name."""
        return {name: getattr(self, name) for name in _PARAMETERS}

    def set_params(self: HeadT, **parameters: Any) -> HeadT:
        """Set parameters by name and return self."""
        for name, value in parameters.items():
            if name not in _PARAMETERS:
                raise InvalidInputError(
                    f"{type(self).__name__} has no parameter {name!r}. Its parameters are {', '.join(_PARAMETERS)}."
                )
            setattr(self, name, value)
        return self

    def summary(self) -> str:
        """Return a readable summary of the fit in a few lines."""
        self._require_fit()
        profile = ", ".join(f"{k:.4g}: {v:.3f}" for k, v in self.profile_.items())
        covered = ", ".join(f"{m:.0%}: {c:.1%}" for m, c in self.coverage_.items())
        tried = ", ".join(f"{d}: {v:.3f}" for d, v in self.dims_.items())
        lines = [
            f"{type(self).__name__}: vectors of {self._sizes()} dimensions to posteriors of {self.dim_}",
            f"held-out information {self.information_:.3f} nats per pair",
            *(["the same by dim, after a fifth of the steps:", f"  {tried}"] if self.dims_ else []),
            f"the same by kappa_pos (fitted with {self.kappa_pos_:.4g}):",
            f"  {profile}",
            f"calibration of kappa: factor {self.calibration_.scale:.3g} at {self.calibration_.reference:.3g}, "
            f"power {self.calibration_.power:.3g}",
            "held-out partners in predictive caps:",
            f"  {covered}",
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        defaults = type(self)().get_params()
        changed = {name: v for name, v in self.get_params().items() if v != defaults[name]}
        parts = [f"{name}={value!r}" for name, value in changed.items()]
        if self.__sklearn_is_fitted__():
            parts.append(f"fitted: {self._sizes()} -> {self.dim_} dimensions")
        return f"{type(self).__name__}({', '.join(parts)})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "calibration_")

    def _sizes(self) -> str:
        """Return the dimensions of the vectors, as text."""
        raise NotImplementedError

    def _require_fit(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError("this head is not fitted yet: call fit first.")

    def _check_parameters(self) -> None:
        """Raise unless width, steps, items, lr and held_out are in range."""
        for name, least in _LEAST.items():
            check_size(name, getattr(self, name), least)
        if not 0 < self.lr < math.inf:
            raise InvalidInputError(f"lr must be a positive number, but is {self.lr!r}.")
        if not 0 < self.held_out < 1:
            raise InvalidInputError(
                f"held_out is a share between 0 and 1 (default 0.1), but is {self.held_out!r}."
            )

    def _kappa_pos(self, dim: int) -> float:
        return 2.0 * dim if self.kappa_pos is None else float(self.kappa_pos)

    def _choose_dim(
        self, train: Callable[[int, int, Path | None], Fit], largest: int, checkpoint: Path | None
    ) -> None:
        """Set ``dim_``; for "auto" to that with the most information, of those tried for a fifth of the steps.

        ``train`` takes a dim, a number of steps and a checkpoint, and returns a fit with "information" on its curve.
        """
        self.dims_ = {}
        if self.dim != "auto":
            self.dim_ = int(self.dim)
            return
        if largest < _DIMS[0]:
            raise InvalidInputError(f'dim="auto" needs vectors of at least {_DIMS[0]} dimensions.')
        for dim in (d for d in _DIMS if d <= largest):
            path = numbered(checkpoint, str(dim))
            self.dims_[dim] = best_information(train(dim, max(1, self.steps // 5), path))
            if choose_dim(self.dims_) != dim:
                break
        self.dim_ = choose_dim(self.dims_)

    def _options(self, steps: int, select: str) -> FitOptions:
        """Return the options of a fit that selects the step with the highest held-out metric."""
        return FitOptions(
            seed=self.seed,
            average=0.99,
            evaluate_every=max(1, steps // 20),
            select=select,
            patience=_PATIENCE,
            diagnose=False,  # held-out pairs are better
        )

    def _profile(self, measure: Callable[[float], float]) -> dict[float, float]:
        """Return the held-out information by kappa_pos."""
        return {
            value: measure(value) for value in (factor * self.kappa_pos_ for factor in _FACTORS)
        }

    def _calibrate(
        self, query: VonMisesFisher, partner: VonMisesFisher, *, calibrate: bool
    ) -> None:
        """Calibrate kappa on held-out pairs, and measure the coverage."""
        self.calibration_ = Calibration()
        if calibrate:
            self.calibration_ = fit_calibration(query, partner, kappa_pos=self.kappa_pos_)
        calibrated = (self._calibrated(q) for q in (query, partner))
        self.coverage_ = predictive_coverage(*calibrated, kappa_pos=self.kappa_pos_)

    def _calibrated(self, posterior: VonMisesFisher) -> VonMisesFisher:
        kappa = self.calibration_(posterior.kappa)
        return VonMisesFisher(posterior.mu, kappa, validate_args=False)


def numbered(checkpoint: Path | None, name: str) -> Path | None:
    """Return the checkpoint of one of several fits."""
    return checkpoint and checkpoint.with_name(f"{checkpoint.stem}-{name}{checkpoint.suffix}")


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


def check_dim(dim: int, vectors: Vectors) -> int:
    """The dimension of the vectors; raise unless ``dim`` is one that a head can have."""
    n_in = int(vectors.shape[1])
    if not 2 <= dim <= n_in:
        raise InvalidInputError(
            f"dim must be between 2 and {n_in}, the dimension of the vectors, but is {dim}."
        )
    return n_in


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
