"""A head on the vectors of a finished encoder: a posterior for every row, without touching the encoder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from aureole.data import as_vectors
from aureole.distributions import VonMisesFisher
from aureole.errors import AureoleError, InvalidInputError
from aureole.evaluation import Calibration, fit_calibration, predictive_coverage
from aureole.losses import ClosedFormInfoNCE
from aureole.models import Card, IndependentEncoder
from aureole.training._dimension import best_information, choose_dim, try_dims
from aureole.training._fit import Fit, Observer, fit
from aureole.training._head_encoder import head_encoder
from aureole.training._head_folder import read_head, write_head
from aureole.training._rows import (
    MASSES,
    Partners,
    Vectors,
    check_vectors,
    draw_batch,
    halves,
    information,
    pair_rows,
    partners_of,
    take,
)
from aureole.training._schedule import Phase

_HELD_OUT_ITEMS, _PAIRS, _CHUNK = 2048, 4096, 2048
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of kappa_pos, in the profile


class NotFittedError(AureoleError, ValueError):
    """The head is asked for posteriors before it was fitted."""


class FrozenHead:
    r"""Posteriors :math:`\mathrm{vMF}(\hat\mu(v), \hat\kappa(v))` of vectors v, learned from which belong together.

    :math:`\hat\mu` is a linear map to ``dim`` dimensions, started at the whitened principal directions of the vectors,
    and :math:`\log\hat\kappa` a small network. Both are trained with the closed form of InfoNCE; of the steps taken,
    the one with the best held-out information is kept. Then kappa is calibrated on other held-out pairs, so that a
    predictive cap of 90 % holds 90 % of the partners. The manners are scikit-learn's: ``fit`` returns self, what is
    fitted ends in an underscore, and ``get_params`` and ``set_params`` make it fit into a ``Pipeline``.

    Parameters
    ----------
    dim
        The D of the posteriors' sphere. "auto" tries 8, 16, 32 and 64 for a fifth of the steps each, and takes the
        smallest after which the held-out information grows by less than 0.02 nats.
    kappa_pos
        How close partners' latents are; default 2 D. Pairs hardly tell it from kappa, so kappa is relative to it:
        ``profile_`` shows how flat the held-out information is.
    width
        Of the network for kappa.
    steps
        Batches.
    items
        Vectors a batch. More of them hold harder negatives, which tell a sure kappa from a very sure one; a batch costs
        the square of its vectors.
    lr
        The learning rate.
    held_out
        The share of the groups that is never trained on: half of it selects the step, half calibrates.
    calibrate
        Whether to map kappa so that predictive caps cover what they promise.
    seed
        Decides everything random.

    Attributes
    ----------
    dim_, kappa_pos_
        What was chosen.
    information_
        How much the posteriors tell about a held-out partner, in nats.
    profile_
        That information at other kappa_pos.
    dims_
        That information by dim, if dim was "auto".
    calibration_
        The map of kappa.
    square_length_
        The mean square of the lengths of held-out vectors: 1 for vectors of length 1.
    coverage_
        The share of held-out partners in predictive caps of 50, 80, 90 and 95 %, after calibration.

    Examples
    --------
    >>> rng = torch.Generator().manual_seed(0)
    >>> centres, groups = torch.randn(200, 8, generator=rng), torch.arange(200).repeat(4)
    >>> blur = 0.1 + torch.rand(800, 1, generator=rng)
    >>> vectors = centres[groups] + blur * torch.randn(800, 8, generator=rng)
    >>> head = FrozenHead(dim=4, steps=30, items=128).fit(vectors, groups)
    >>> head.predict(vectors).kappa.shape
    torch.Size([800])
    """

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
        calibrate: bool = True,
        seed: int = 0,
    ) -> None:
        self.dim = dim
        self.kappa_pos = kappa_pos
        self.width = width
        self.steps = steps
        self.items = items
        self.lr = lr
        self.held_out = held_out
        self.calibrate = calibrate
        self.seed = seed

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002
        """The parameters by name."""
        return {name: getattr(self, name) for name in _PARAMETERS}

    def set_params(self, **parameters: Any) -> "FrozenHead":
        """Set parameters by name and return self."""
        for name, value in parameters.items():
            if name not in _PARAMETERS:
                raise InvalidInputError(
                    f"FrozenHead has no parameter {name!r}; it has {', '.join(_PARAMETERS)}."
                )
            setattr(self, name, value)
        return self

    def fit(
        self,
        vectors: Any,
        groups: Sequence[Any] | Vectors | None = None,
        *,
        pairs: Sequence[Sequence[int]] | Vectors | None = None,
        checkpoint: Path | None = None,
        observer: Observer | None = None,
    ) -> "FrozenHead":
        """Learn from vectors [n, d] and one group label per vector, or from pairs [p, 2] of rows that belong together.

        ``vectors`` is a tensor, an array or an Arrow column of lists. Rows are read as they are needed: it may be a
        memory-mapped array that does not fit into memory (``data.tables.read_vectors`` makes one of a Parquet file).
        With ``checkpoint`` an interrupted fit goes on where it was.
        """
        vectors = as_vectors(vectors)
        check_vectors(vectors)
        rng = torch.Generator().manual_seed(self.seed)
        training, held = partners_of(vectors, groups, pairs).split(self.held_out, rng)
        selecting, calibrating = halves(held, rng)
        probe = draw_batch(vectors, selecting, _HELD_OUT_ITEMS, rng)

        def train(dim: int, steps: int, path: Path | None) -> Fit:
            encoder = head_encoder(vectors, training, dim, width=self.width, seed=self.seed)
            loss, judge = (ClosedFormInfoNCE(self._kappa_pos(dim)) for _ in range(2))
            return fit(
                encoder,
                loss,  # trains where the encoder trains, which may be a GPU; the judge stays here
                lambda _, generator: draw_batch(vectors, training, self.items, generator),
                phases=[Phase("joint", steps, self.lr)],
                seed=self.seed,
                average=0.99,
                checkpoint=path,
                evaluate=lambda model: {"information": information(model, judge, probe)},
                evaluate_every=max(1, steps // 20),
                select="information",
                observer=observer,
            )

        self.dims_: dict[int, float] = {}
        if self.dim == "auto":
            self.dims_ = try_dims(train, int(vectors.shape[1]), self.steps, checkpoint)
        self.dim_ = choose_dim(self.dims_) if self.dim == "auto" else int(self.dim)
        self.kappa_pos_ = self._kappa_pos(self.dim_)
        self.fit_ = train(self.dim_, self.steps, checkpoint)
        self.encoder_: nn.Module = self.fit_.encoder
        self.n_features_in_ = int(vectors.shape[1])
        self.square_length_: float | None = float(probe.inputs.double().square().sum(1).mean())
        self.information_ = best_information(self.fit_)
        self.profile_ = {
            value: information(self.encoder_, ClosedFormInfoNCE(value), probe)
            for value in (factor * self.kappa_pos_ for factor in _FACTORS)
        }
        self.calibration_ = Calibration()
        query, partner = self._one_way(vectors, calibrating, rng)
        if self.calibrate:
            self.calibration_ = fit_calibration(query, partner, kappa_pos=self.kappa_pos_)
            query, partner = (self._calibrated(q) for q in (query, partner))
        self.coverage_ = predictive_coverage(
            query, partner, kappa_pos=self.kappa_pos_, masses=MASSES
        )
        return self

    @torch.no_grad()
    def predict(self, vectors: Any) -> VonMisesFisher:
        """The posteriors of vectors [n, d] (a tensor, an array or an Arrow column), in chunks."""
        vectors = as_vectors(vectors)
        self._check_fitted(vectors)
        mu = torch.empty(len(vectors), self.dim_)
        kappa = torch.empty(len(vectors))
        for start in range(0, len(vectors), _CHUNK):
            rows = slice(start, start + _CHUNK)
            part = self.encoder_(take(vectors, rows))
            mu[rows], kappa[rows] = part.mu, part.kappa
        foreign = torch.nonzero(~(torch.isfinite(kappa) & torch.isfinite(mu).all(-1)))
        if len(foreign):
            raise InvalidInputError(
                f"row {int(foreign[0])} is too large for the head to make a posterior of: its vectors have "
                "other scales than those the head was fitted on. Are they of the same encoder?"
            )
        return self._calibrated(VonMisesFisher(mu, kappa, validate_args=False))

    def score(
        self,
        vectors: Any,
        groups: Sequence[Any] | Vectors | None = None,
        *,
        pairs: Sequence[Sequence[int]] | Vectors | None = None,
    ) -> float:
        """How much the posteriors tell about a partner, in nats: log of the candidates minus the loss.

        Higher is better. At most 2,048 vectors are used, two of each group. Takes what ``fit`` takes.
        """
        return next(iter(self.profile(vectors, groups, pairs=pairs, factors=(1.0,)).values()))

    def profile(
        self,
        vectors: Any,
        groups: Sequence[Any] | Vectors | None = None,
        *,
        pairs: Sequence[Sequence[int]] | Vectors | None = None,
        factors: Sequence[float] = _FACTORS,
    ) -> dict[float, float]:
        """``score`` at other kappa_pos, as multiples of the one that was fitted with. The encoder stays."""
        vectors = as_vectors(vectors)
        self._check_fitted(vectors)
        rng = torch.Generator().manual_seed(self.seed)
        probe = draw_batch(vectors, partners_of(vectors, groups, pairs), _HELD_OUT_ITEMS, rng)
        values = [factor * self.kappa_pos_ for factor in factors]
        return {v: information(self._model, ClosedFormInfoNCE(v), probe) for v in values}

    def coverage(
        self,
        vectors: Any,
        groups: Sequence[Any] | Vectors | None = None,
        *,
        pairs: Sequence[Sequence[int]] | Vectors | None = None,
        masses: Sequence[float] = MASSES,
    ) -> dict[float, float]:
        """The share of partners in predictive caps of these masses, for 4,096 pairs at most, up to four of a group."""
        vectors = as_vectors(vectors)
        self._check_fitted(vectors)
        rng = torch.Generator().manual_seed(self.seed)
        query, partner = self._one_way(vectors, partners_of(vectors, groups, pairs), rng)
        return predictive_coverage(query, partner, kappa_pos=self.kappa_pos_, masses=masses)

    @property
    def takes_unit_vectors(self) -> bool:
        """Whether the vectors it was fitted on had length 1, by the mean square of their lengths.

        Heads that were saved without that have it from the squares of centre and spread.
        """
        self._require_fit()
        if self.square_length_ is not None:
            return 0.8 < self.square_length_ < 1.25
        assert isinstance(self.encoder_, IndependentEncoder)
        scale = self.encoder_.scale
        live = scale[scale < scale.max()].square().sum() + scale.max().square()
        square = self.encoder_.centre.square().sum() + live  # dead features have the largest scale
        return 0.8 < float(square) < 1.25

    def summary(self) -> str:
        """What was fitted, in a few lines for people."""
        self._require_fit()
        profile = ", ".join(f"{k:g}: {v:.3f}" for k, v in self.profile_.items())
        covered = ", ".join(f"{m:.0%}: {c:.1%}" for m, c in self.coverage_.items())
        lines = [
            f"FrozenHead: vectors of {self.n_features_in_} dimensions to posteriors of {self.dim_}",
            f"held-out information {self.information_:.3f} nats a pair",
            f"the same by kappa_pos (fitted with {self.kappa_pos_:g}):",
            f"  {profile}",
            f"kappa calibrated by a factor {self.calibration_.scale:.3g} at {self.calibration_.reference:.3g} "
            f"and a power {self.calibration_.power:.3g}",
            "held-out partners in predictive caps:",
            f"  {covered}",
        ]
        if self.dims_:
            tried = ", ".join(f"{d}: {v:.3f}" for d, v in self.dims_.items())
            lines[2:2] = ["the same by dim, after a fifth of the steps:", f"  {tried}"]
        return "\n".join(lines)

    def save(self, folder: Path | str, *, card: Card | None = None) -> Path:
        """Write the fitted head as ``config.json``, ``weights.safetensors`` and a card; return the folder.

        kappa_pos and the coverage on the card are the head's own.
        """
        self._require_fit()
        return write_head(folder, self.get_params(), vars(self), card=card)

    @classmethod
    def load(cls, folder: Path | str) -> "FrozenHead":
        """The head that was saved in a folder. A file from anywhere is safe: it holds numbers alone, and is checked."""
        parameters, fitted = read_head(folder)
        try:
            head = cls(**parameters)
        except TypeError as error:
            raise InvalidInputError(f"the config in {folder} is damaged: {error!r}.") from error
        vars(head).update(fitted)
        return head

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "calibration_")

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn's pipelines ask of their steps; only they call it."""
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=True))

    def _kappa_pos(self, dim: int) -> float:
        return 2.0 * dim if self.kappa_pos is None else float(self.kappa_pos)

    @torch.no_grad()
    def _one_way(
        self, vectors: Vectors, partners: Partners, rng: torch.Generator
    ) -> tuple[VonMisesFisher, VonMisesFisher]:
        """(Queries, partners) of a sample of pairs, some of each group, as the head predicts them."""
        left, right = pair_rows(partners, _PAIRS, rng)
        query, partner = (self._model(take(vectors, rows)) for rows in (left, right))
        return query, partner

    def _model(self, inputs: Tensor) -> VonMisesFisher:
        """The encoder, calibrated."""
        return self._calibrated(self.encoder_(inputs))

    def _calibrated(self, posterior: VonMisesFisher) -> VonMisesFisher:
        kappa = self.calibration_(posterior.kappa)
        return VonMisesFisher(posterior.mu, kappa, validate_args=False)

    def _require_fit(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError("this head is not fitted yet: call fit(vectors, groups) first.")

    def _check_fitted(self, vectors: Vectors) -> None:
        self._require_fit()
        check_vectors(vectors)
        if vectors.shape[1] != self.n_features_in_:
            raise InvalidInputError(
                f"the head was fitted on vectors of {self.n_features_in_} dimensions, not {vectors.shape[1]}."
            )


_PARAMETERS = (
    "dim", "kappa_pos", "width", "steps", "items", "lr", "held_out", "calibrate", "seed",
)  # fmt: skip
