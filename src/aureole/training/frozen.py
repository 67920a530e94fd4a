"""A head on the vectors of a finished encoder: a posterior for every row, without touching the encoder."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from aureole.data.groups import Groups
from aureole.data.pairs import PairBatch
from aureole.distributions import VonMisesFisher
from aureole.errors import AureoleError, InvalidInputError
from aureole.losses import ClosedFormInfoNCE
from aureole.models import IndependentEncoder, ResidualMLP
from aureole.models.saving import check_weights, load_folder, save_folder
from aureole.training.fit import Observer, fit
from aureole.training.schedule import Phase

__all__ = ["FrozenHead", "NotFittedError"]

Vectors = Tensor | np.ndarray
_SAMPLE, _HELD_OUT_ITEMS, _CHUNK = 20_000, 4096, 8192
_FORMAT = "aureole-frozen-head-1"
_LARGEST = 65_536  # features, dimensions or hidden units of a head that is loaded


class NotFittedError(AureoleError, ValueError):
    """The head is asked for posteriors before it was fitted."""


class FrozenHead:
    r"""Posteriors :math:`\mathrm{vMF}(\hat\mu(v), \hat\kappa(v))` of vectors v, learned from which belong together.

    :math:`\hat\mu` is a linear map to ``dim`` dimensions, started at the whitened principal directions of the vectors,
    and :math:`\log\hat\kappa` a small network. Both are trained with the closed form of InfoNCE; of the steps taken,
    the one with the best held-out information is kept. The manners are scikit-learn's: ``fit`` returns self, what is
    fitted ends in an underscore, and ``get_params`` and ``set_params`` make it fit into a ``Pipeline``.

    Parameters
    ----------
    dim
        The D of the posteriors' sphere.
    kappa_pos
        How close partners' latents are; default 2 D. Pairs hardly tell it from kappa, so kappa is relative to it:
        ``profile`` shows how flat the held-out loss is.
    width
        Of the network for kappa.
    steps, items, lr
        Batches, vectors a batch, and the learning rate.
    held_out
        The share of the groups that selects the step and is never trained on.
    seed
        Decides everything random.

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
        dim: int = 32,
        *,
        kappa_pos: float | None = None,
        width: int = 128,
        steps: int = 600,
        items: int = 512,
        lr: float = 2e-3,
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
        vectors: Vectors,
        groups: Sequence[Any] | Vectors,
        *,
        checkpoint: Path | None = None,
        observer: Observer | None = None,
    ) -> "FrozenHead":
        """Learn from vectors [n, d] and one group label per vector; rows are read as they are needed.

        ``vectors`` may be a memory-mapped array that does not fit into memory. With ``checkpoint`` an interrupted fit
        goes on where it was.
        """
        _check_vectors(vectors)
        if len(groups) != len(vectors):
            raise InvalidInputError(
                f"{len(vectors)} vectors need as many groups, not {len(groups)}."
            )
        rng = torch.Generator().manual_seed(self.seed)
        training, held = Groups.of(groups).split(self.held_out, rng)
        encoder = self._new_encoder(vectors, training, rng)
        loss = ClosedFormInfoNCE(self._kappa_pos())
        probe = _probe(vectors, held, rng)

        def draw_batch(_: int, generator: torch.Generator) -> PairBatch:
            return _batch(vectors, training, self.items, generator)

        self.fit_ = fit(
            encoder,
            loss,
            draw_batch,
            phases=[Phase("joint", self.steps, self.lr)],
            seed=self.seed,
            average=0.99,
            checkpoint=checkpoint,
            evaluate=lambda model: {"information": _information(model, loss, probe)},
            evaluate_every=max(1, self.steps // 20),
            select="information",
            observer=observer,
        )
        self.encoder_: nn.Module = self.fit_.encoder
        self.n_features_in_ = int(vectors.shape[1])
        self.information_ = max(point["information"] for point in self.fit_.curve)
        return self

    @torch.no_grad()
    def predict(self, vectors: Vectors) -> VonMisesFisher:
        """The posteriors of vectors [n, d], in chunks."""
        self._check_fitted(vectors)
        rows = torch.arange(len(vectors)).split(_CHUNK)
        parts = [self.encoder_(_take(vectors, chunk)) for chunk in rows]
        return VonMisesFisher(
            torch.cat([q.mu for q in parts]),
            torch.cat([q.kappa for q in parts]),
            validate_args=False,
        )

    def score(self, vectors: Vectors, groups: Sequence[Any] | Vectors) -> float:
        """How much the posteriors tell about a partner, in nats: log of the candidates minus the loss.

        Higher is better. At most as many vectors as held-out ones are used, two of each group.
        """
        self._check_fitted(vectors)
        rng = torch.Generator().manual_seed(self.seed)
        probe = _probe(vectors, Groups.of(groups), rng)
        return _information(self.encoder_, ClosedFormInfoNCE(self._kappa_pos()), probe)

    def profile(
        self,
        vectors: Vectors,
        groups: Sequence[Any] | Vectors,
        *,
        factors: Sequence[float] = (0.25, 0.5, 1.0, 2.0, 4.0),
    ) -> dict[float, float]:
        """``score`` at other kappa_pos, as multiples of the one that was fitted with; nearly flat as a rule."""
        self._check_fitted(vectors)
        rng = torch.Generator().manual_seed(self.seed)
        probe = _probe(vectors, Groups.of(groups), rng)
        values = [factor * self._kappa_pos() for factor in factors]
        return {v: _information(self.encoder_, ClosedFormInfoNCE(v), probe) for v in values}

    def save(self, folder: Path | str) -> Path:
        """Write the fitted head as ``config.json`` and ``weights.safetensors`` into a folder, and return it."""
        self._require_fit()
        config = {
            "format": _FORMAT,
            "parameters": self.get_params(),
            "n_features_in": self.n_features_in_,
            "information": self.information_,
        }
        return save_folder(folder, config, self.encoder_.state_dict())

    @classmethod
    def load(cls, folder: Path | str) -> "FrozenHead":
        """The head that was saved in a folder. A file from anywhere is safe: it holds numbers alone, and is checked."""
        config, weights = load_folder(folder, format=_FORMAT)
        try:
            head = cls(**config["parameters"])
            n_in, information = int(config["n_features_in"]), float(config["information"])
            sizes = (n_in, int(head.dim), int(head.width))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(f"the config in {folder} is damaged: {error!r}.") from error
        if not all(1 <= size <= _LARGEST for size in sizes):
            raise InvalidInputError(
                f"the config in {folder} asks for layers of {sizes}; none may be above {_LARGEST}."
            )
        encoder = head._network(n_in)
        check_weights(weights, encoder.state_dict())
        encoder.load_state_dict(weights)
        head.encoder_ = encoder.requires_grad_(False).eval()
        head.n_features_in_, head.information_ = n_in, information
        return head

    def _network(self, n_in: int) -> IndependentEncoder:
        certainty = ResidualMLP(n_in, 1, width=self.width, n_blocks=2)
        return IndependentEncoder(nn.Linear(n_in, self.dim), certainty, n_in=n_in)

    def _kappa_pos(self) -> float:
        return 2.0 * self.dim if self.kappa_pos is None else float(self.kappa_pos)

    def _new_encoder(
        self, vectors: Vectors, groups: Groups, rng: torch.Generator
    ) -> IndependentEncoder:
        """An encoder whose mu starts at the whitened principal directions of a sample."""
        n_in = int(vectors.shape[1])
        if not 2 <= self.dim <= n_in:
            raise InvalidInputError(
                f"dim must be between 2 and the vectors' {n_in}, not {self.dim}."
            )
        order = torch.randperm(len(groups.members), generator=rng)[:_SAMPLE]
        sample = _take(vectors, groups.members[order])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            encoder = self._network(n_in)
        spread = sample.std(0)
        standard = (sample - sample.mean(0)) / torch.where(spread > 0, spread, 1.0)
        _, directions = torch.linalg.eigh(torch.cov(standard.T).double())
        assert isinstance(encoder.location, nn.Linear)
        with torch.no_grad():
            encoder.location.weight.copy_(directions[:, -self.dim :].T)
        encoder.initialise(sample)
        return encoder

    def _require_fit(self) -> None:
        if not hasattr(self, "encoder_"):
            raise NotFittedError("this head is not fitted yet: call fit(vectors, groups) first.")

    def _check_fitted(self, vectors: Vectors) -> None:
        self._require_fit()
        _check_vectors(vectors)
        if vectors.shape[1] != self.n_features_in_:
            raise InvalidInputError(
                f"the head was fitted on vectors of {self.n_features_in_} dimensions, not {vectors.shape[1]}."
            )


_PARAMETERS = ("dim", "kappa_pos", "width", "steps", "items", "lr", "held_out", "seed")


def _check_vectors(vectors: Vectors) -> None:
    if len(vectors.shape) != 2 or 0 in vectors.shape:
        raise InvalidInputError(f"vectors must be [n, d], but have shape {tuple(vectors.shape)}.")


def _take(vectors: Vectors, rows: Tensor) -> Float[Tensor, "n d"]:
    """Rows as float32; an error names the first row that is not finite."""
    chosen = (
        vectors[rows]
        if isinstance(vectors, Tensor)
        else torch.from_numpy(np.ascontiguousarray(vectors[rows.numpy()]))
    )
    bad = ~torch.isfinite(chosen).all(-1)
    if bool(bad.any()):
        raise InvalidInputError(
            f"vectors[{int(rows[bad][0])}] holds NaN or infinity. Drop such rows first."
        )
    return chosen.float()


def _batch(vectors: Vectors, groups: Groups, items: int, rng: torch.Generator) -> PairBatch:
    rows, pairs = groups.draw(items, rng)
    return PairBatch(_take(vectors, rows), pairs, float(len(pairs)))


def _probe(vectors: Vectors, groups: Groups, rng: torch.Generator) -> PairBatch:
    return _batch(vectors, groups, _HELD_OUT_ITEMS, rng)


@torch.no_grad()
def _information(model: nn.Module, loss: ClosedFormInfoNCE, probe: PairBatch) -> float:
    """Log of the number of candidates minus the loss, in nats."""
    value = loss.among(model(probe.inputs), probe.pairs).item()
    return math.log(len(probe.inputs) - 1) - value
