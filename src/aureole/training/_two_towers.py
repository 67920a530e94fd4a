"""Two encoders, one sphere: posteriors for the vectors of two finished encoders that can be searched across.

Pictures and their descriptions, questions and answers, or two languages: the vectors of both sides come from
different encoders and have no directions in common. The maps between them are learned from positive pairs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from aureole.data import Triplets
from aureole.data._columns import as_vectors
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.losses import ClosedFormInfoNCE, ContrastiveLoss
from aureole.models import IndependentEncoder
from aureole.training._fit import DrawBatch, Fit, Observer, Phase, fit
from aureole.training._frozen_head import FrozenHead
from aureole.training._head_network import (
    Head,
    Vectors,
    best_information,
    check_dim,
    check_vectors,
    head_network,
    numbered,
    take,
)

_HELD_OUT_PAIRS, _SAMPLE = 2048, 20_000
_LARGEST_SHARE = 0.05  # of the pairs in one group of connected rows
_FOLDS = 3  # of the training pairs, to train kappa with maps that have not seen a pair
_PRINCIPAL = 512  # directions of each side among which common ones are searched
_GROUPS_PER_DIRECTION = 4
_SIDES = ("left", "right")
_FITTED = (
    *("dim_", "dims_", "kappa_pos_", "calibration_"),
    *("information_", "profile_", "coverage_"),
)


class TwoTowerHead(Head):
    r"""Posteriors on one sphere for vectors of two encoders, learned from matching pairs (left row, right row).

    Each side has a linear map to ``dim`` dimensions and a small network for :math:`\log\hat\kappa`, as in
    ``FrozenHead``. The maps start with the directions of both sides that correlate most over the pairs, and are
    trained with the closed form of InfoNCE in both directions: of a left item, the negatives are right items, and the
    other way round. Maps match the pairs they were trained on better than others, so the kappa networks are trained
    afterwards by cross-fitting: with the mu of three further pairs of maps, each trained without a third of the pairs,
    on that third. In both phases, the step with the highest held-out information is selected, and a phase ends when it
    has not grown for a quarter of the steps. Then kappa is calibrated on other held-out pairs.

    ``left_`` and ``right_`` are fitted ``FrozenHead`` objects, whose posteriors can be searched across: create a
    ``CredibleIndex`` from one side, and search it with the other.

    Parameters
    ----------
    dim, kappa_pos, width, lr, held_out, seed
        As in ``FrozenHead``.
    steps
        Largest number of training steps (default 400), of each of the four pairs of maps and of the kappa networks.
    items
        Vectors per batch, half of each side (default 1,024).

    Attributes
    ----------
    left_, right_
        The fitted heads.
    dim_, kappa_pos_
        The values that were used.
    information_
        Held-out information of a posterior about the partner on the other side, in nats; the mean of both directions.
    profile_
        The same by kappa_pos.
    dims_
        The same by dim, if dim was "auto".
    calibration_
        The calibration of kappa, shared by both sides.
    coverage_
        Share of held-out partners in predictive caps of 50, 80, 90 and 95 %, after calibration.
    fit_
        The training of the kappa networks, with its learning curve; not saved.

    Examples
    --------
    >>> rng = torch.Generator().manual_seed(0)
    >>> things = torch.randn(400, 4, generator=rng)
    >>> images = things @ torch.randn(4, 12, generator=rng)
    >>> texts = things @ torch.randn(4, 8, generator=rng) + 0.1 * torch.randn(400, 8, generator=rng)
    >>> head = TwoTowerHead(dim=4, steps=30, items=128).fit(images, texts)
    >>> image, text = head.predict(images[:5], texts[:5])
    >>> (image.mu @ text.mu.T).argmax(1)
    tensor([0, 1, 2, 3, 4])
    """

    def fit(
        self,
        left: Any,
        right: Any,
        pairs: Sequence[Sequence[int]] | Vectors | None = None,
        *,
        calibrate: bool = True,
        checkpoint: Path | None = None,
        observer: Observer | None = None,
    ) -> "TwoTowerHead":
        """Fit to vectors [n, d] and [m, e], and pairs [p, 2] of a row on the left and one on the right that match.

        Without ``pairs``, row i on the left matches row i on the right. A row may have several partners; rows that are
        connected by pairs, such as all pictures and all captions of one thing, are held out together and are
        never each other's negatives. Vectors are tensors, arrays or Arrow columns, and are read in parts.
        """
        self._check_parameters()
        sides = _checked("left", left), _checked("right", right)
        rng = torch.Generator().manual_seed(self.seed)
        training, held = cross_pairs(pairs, *sides).split(self.held_out, rng)
        selecting, calibrating = held.split(0.5, rng)
        probe = selecting.draw(sides, _HELD_OUT_PAIRS, rng)
        plan = _Plan(self, sides, probe, observer)

        def train(dim: int, steps: int, path: Path | None) -> Fit:
            return plan.train_maps(training, dim, steps, path)

        self._choose_dim(train, min(int(vectors.shape[1]) for vectors in sides), checkpoint)
        self.kappa_pos_ = self._kappa_pos(self.dim_)
        maps = train(self.dim_, self.steps, checkpoint)
        folds = []
        for number, (rest, fold) in enumerate(training.folds(_FOLDS, rng)):
            path = numbered(checkpoint, f"fold{number}")
            folds.append((fold, plan.train_maps(rest, self.dim_, self.steps, path).encoder))
        path = numbered(checkpoint, "kappa")
        self.fit_ = plan.train_kappa(maps.encoder, folds or [(training, maps.encoder)], path)
        towers = self.fit_.encoder
        assert isinstance(towers, Towers)
        self.information_ = best_information(self.fit_)
        self.profile_ = self._profile(lambda value: cross_information(towers, _loss(value), probe))
        batch = calibrating.draw(sides, _HELD_OUT_PAIRS, rng)
        with torch.no_grad():
            ends = [towers(part) for part in (batch.anchor, batch.positive)]
        self._calibrate(_joined(ends), _joined(ends[::-1]), calibrate=calibrate)
        squares = [x.square().sum(1).mean() for x in towers.split(probe.anchor, probe.positive)]
        self.left_, self.right_ = (
            self._side(encoder, float(square))
            for encoder, square in zip(towers, squares, strict=True)
        )
        return self

    def predict(self, left: Any, right: Any) -> tuple[VonMisesFisher, VonMisesFisher]:
        """The posteriors of vectors of the left side and of vectors of the right side."""
        self._require_fit()
        with naming("left"):
            first = self.left_.predict(left)
        with naming("right"):
            return first, self.right_.predict(right)

    def save(self, folder: Path | str) -> Path:
        """Save both heads, ``folder/left`` and ``folder/right``, as ``FrozenHead.save`` does; return the folder."""
        self._require_fit()
        for side in _SIDES:
            getattr(self, f"{side}_").save(Path(folder) / side)
        return Path(folder)

    @classmethod
    def load(cls, folder: Path | str) -> "TwoTowerHead":
        """Load both heads from a folder. Untrusted files are safe: they hold only numbers, which are validated."""
        left, right = (FrozenHead.load(Path(folder) / side) for side in _SIDES)
        if any(getattr(left, name) != getattr(right, name) for name in _FITTED):
            raise InvalidInputError(f"the heads in {folder} are not the two sides of one fit.")
        head = cls(**left.get_params())
        head.left_, head.right_ = left, right
        for name in _FITTED:
            setattr(head, name, getattr(left, name))
        return head

    def _sizes(self) -> str:
        return f"{self.left_.n_features_in_} and {self.right_.n_features_in_}"

    def _side(self, encoder: IndependentEncoder, square_length: float) -> FrozenHead:
        """Return one side as a fitted head."""
        head = FrozenHead(**self.get_params() | {"dim": self.dim_})
        vars(head).update(
            **{name: getattr(self, name) for name in _FITTED},
            n_features_in_=len(encoder.centre),
            square_length_=square_length,
            encoder_=encoder.requires_grad_(False).eval(),
            fit_=self.fit_,
        )
        return head


@dataclass(frozen=True)
class _Plan:
    """How a head trains: first the maps with one kappa per side, then the kappa networks."""

    head: TwoTowerHead
    sides: tuple[Vectors, Vectors]
    probe: Triplets
    observer: Observer | None

    def train_maps(self, pairs: "CrossPairs", dim: int, steps: int, path: Path | None) -> Fit:
        """Towers with trained maps, and one kappa for all vectors of a side."""
        head = self.head
        towers = start_towers(self.sides, pairs, dim, width=head.width, seed=head.seed)

        def draw(step: int, generator: torch.Generator) -> Triplets:
            return turned(pairs.draw(self.sides, head.items // 2, generator), step)

        return self._fit(towers, draw, Phase("mu", steps, head.lr), dim, path)

    def train_kappa(
        self, towers: nn.Module, folds: "Sequence[tuple[CrossPairs, nn.Module]]", path: Path | None
    ) -> Fit:
        """The towers with trained kappa networks.

        The maps fit the pairs that they were trained on better than others, so kappa is trained with the mu of maps
        that were trained without the pairs of a batch: ``folds`` has pairs and such maps.
        """
        head = self.head
        dim = head.dim_

        @torch.no_grad()
        def draw(step: int, generator: torch.Generator) -> Triplets:
            pairs, maps = folds[step // 2 % len(folds)]
            batch = pairs.draw(self.sides, head.items // 2, generator)
            ends = [torch.cat([maps(x).mu, x], 1) for x in (batch.anchor, batch.positive)]
            return turned(Triplets(*ends), step)

        assert isinstance(towers, Towers)
        model = GivenMu(towers, dim)
        trained = self._fit(model, draw, Phase("kappa", head.steps, head.lr), dim, path)
        assert isinstance(trained.encoder, GivenMu)
        return replace(trained, encoder=trained.encoder.towers)

    def _fit(
        self, model: nn.Module, draw: DrawBatch, phase: Phase, dim: int, path: Path | None
    ) -> Fit:
        """Train, and select the step with the highest held-out information."""
        loss, judge = (_loss(self.head._kappa_pos(dim)) for _ in range(2))

        def evaluate(model: nn.Module) -> dict[str, float]:
            towers = model.towers if isinstance(model, GivenMu) else model
            return {"information": cross_information(towers, judge, self.probe)}

        return fit(
            model,
            loss,  # may move to a GPU with the towers; ``judge`` stays on the CPU
            draw,
            phases=[phase],
            options=self.head._options(phase.steps, "information"),
            checkpoint=path,
            evaluate=evaluate,
            observer=self.observer,
        )


class Towers(nn.Module):
    """Two encoders as one: inputs are padded to the same width, and their last entry is 0 (left) or 1 (right)."""

    def __init__(self, left: IndependentEncoder, right: IndependentEncoder) -> None:
        super().__init__()
        self.left, self.right = left, right

    def __iter__(self) -> Iterator[IndependentEncoder]:
        return iter((self.left, self.right))

    def forward(self, x: Float[Tensor, "n d"]) -> VonMisesFisher:
        """The posteriors of inputs of both sides, in their order."""
        is_right = x[:, -1] > 0.5
        parts = [tower(part) for tower, part in zip(self, self.split(x), strict=True)]
        place = torch.cat([torch.nonzero(~is_right)[:, 0], torch.nonzero(is_right)[:, 0]])
        both = _joined(parts)
        order = torch.argsort(place)
        return VonMisesFisher(both.mu[order], both.kappa[order], validate_args=False)

    def split(self, *inputs: Float[Tensor, "n d"]) -> list[Tensor]:
        """The inputs of either side, without padding."""
        x = torch.cat(inputs)
        is_right: Bool[Tensor, " n"] = x[:, -1] > 0.5
        return [
            x[mask][:, : len(tower.centre)]
            for tower, mask in zip(self, (~is_right, is_right), strict=True)
        ]

    def enter(self, part: str) -> None:
        """Train only this part of both."""
        for tower in self:
            tower.enter(part)

    def parameter_groups(self, lr: float) -> Iterator[dict]:
        """What the current part trains, with learning rates."""
        for tower in self:
            yield from tower.parameter_groups(lr)


class GivenMu(nn.Module):
    """Towers whose mu is given by the first ``dim`` entries of the input, so that only kappa is theirs."""

    def __init__(self, towers: Towers, dim: int) -> None:
        super().__init__()
        self.towers, self.dim = towers, dim

    def forward(self, x: Float[Tensor, "n d"]) -> VonMisesFisher:
        """Posteriors with the given mu and the kappa of the towers."""
        kappa = self.towers(x[:, self.dim :]).kappa
        return VonMisesFisher(x[:, : self.dim], kappa, validate_args=False)

    def enter(self, part: str) -> None:
        """Train only this part of both towers."""
        self.towers.enter(part)

    def parameter_groups(self, lr: float) -> Iterator[dict]:
        """What the current part trains, with learning rates."""
        return self.towers.parameter_groups(lr)


@dataclass(frozen=True)
class CrossPairs:
    """Matching rows of two sides; pairs with the same ``group`` are connected by common rows."""

    pairs: Int[Tensor, "p 2"]
    group: Int[Tensor, " p"]

    def __getitem__(self, mask: Bool[Tensor, " p"]) -> "CrossPairs":
        return CrossPairs(self.pairs[mask], self.group[mask])

    def split(self, share: float, rng: torch.Generator) -> tuple["CrossPairs", "CrossPairs"]:
        """(Pairs to keep, pairs to hold out), without a common group; a side with fewer than two groups keeps all."""
        names = self.group.unique()
        held = min(max(2, round(share * len(names))), len(names) - 2)
        if held < 2:
            return self, self
        out = torch.isin(self.group, names[torch.randperm(len(names), generator=rng)[:held]])
        return self[~out], self[out]

    def folds(
        self, count: int, rng: torch.Generator
    ) -> Iterator[tuple["CrossPairs", "CrossPairs"]]:
        """(The rest, a fold) for each of ``count`` folds of groups; nothing if folds would have fewer than two."""
        names = self.group.unique()
        if len(names) < 2 * count:
            return
        for chosen in names[torch.randperm(len(names), generator=rng)].chunk(count):
            inside = torch.isin(self.group, chosen)
            yield self[~inside], self[inside]

    def draw(self, sides: tuple[Vectors, Vectors], n_pairs: int, rng: torch.Generator) -> Triplets:
        """One pair of each of ``n_pairs`` groups, or of all groups if there are fewer, as padded inputs."""
        order = torch.randperm(len(self.pairs), generator=rng)
        # the first pair of each group in this order: random within the group, groups in random order
        _, group = self.group[order].unique(return_inverse=True)
        first = torch.full((int(group.max()) + 1,), len(order))
        first = first.scatter_reduce(0, group, torch.arange(len(order)), "amin")
        chosen = first[torch.randperm(len(first), generator=rng)[:n_pairs]]
        left, right = self.pairs[order[chosen]].T
        width = max(int(side.shape[1]) for side in sides)
        ends = []
        for number, rows in enumerate((left, right)):
            with naming(_SIDES[number]):
                ends.append(_padded(take(sides[number], rows), width, float(number)))
        return Triplets(*ends)


def cross_pairs(
    pairs: Sequence[Sequence[int]] | Vectors | None, left: Vectors, right: Vectors
) -> CrossPairs:
    """The pairs of rows of two sides, with the groups of connected ones.

    If one group has more than a twentieth of all pairs, as in a graph of clicks, each pair is a group of its own.
    """
    sizes = len(left), len(right)
    if pairs is None:
        if sizes[0] != sizes[1]:
            raise InvalidInputError(
                f"without pairs, row i matches row i, but there are {sizes[0]} rows on the left and {sizes[1]} on the "
                "right. Pass pairs of rows that match."
            )
        pairs = torch.arange(sizes[0]).repeat(2, 1).T
    rows = np.asarray(pairs.cpu() if isinstance(pairs, Tensor) else pairs)
    if rows.ndim != 2 or rows.shape[1] != 2 or not np.issubdtype(rows.dtype, np.integer):
        raise InvalidInputError(
            f"pairs must be whole numbers [p, 2], a left row and a right row each, but are {rows.dtype} of shape "
            f"{rows.shape}."
        )
    outside = (rows < 0) | (rows >= np.array(sizes))
    if outside.any():
        place = int(outside.any(1).argmax())
        raise InvalidInputError(
            f"pairs[{place}] is {rows[place].tolist()}, but rows go from 0 to {sizes[0] - 1} on the left and to "
            f"{sizes[1] - 1} on the right."
        )
    rows = np.unique(rows.astype(np.int64), axis=0)
    if len(rows) < 4:
        raise InvalidInputError(
            f"{len(rows)} pairs are too few to learn from and to hold some out."
        )
    group = _connected(rows, sizes)
    if np.bincount(group).max() > max(1, _LARGEST_SHARE * len(rows)):
        group = np.arange(len(rows))
    return CrossPairs(torch.from_numpy(rows), torch.from_numpy(group))


def _connected(rows: np.ndarray, sizes: tuple[int, int]) -> np.ndarray:
    """The number of each pair's component in the graph of rows."""
    ends = rows + np.array([0, sizes[0]])
    name = np.arange(sum(sizes))
    while True:  # each row takes the smallest name among its partners, then the name of that name
        lowest = name[ends].min(1)
        new = name.copy()
        for side in (0, 1):
            np.minimum.at(new, ends[:, side], lowest)
        new = new[new]
        if (new == name).all():
            return np.unique(name[ends[:, 0]], return_inverse=True)[1].reshape(-1)
        name = new


def start_towers(
    sides: tuple[Vectors, Vectors], pairs: CrossPairs, dim: int, *, width: int, seed: int
) -> Towers:
    """Towers whose maps start with the directions of both sides that correlate most over a sample of pairs.

    These are the first canonical directions, searched among the principal directions of each side: 512, or one per
    four groups if there are fewer, so that they are not those of chance.
    """
    rng = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(pairs.pairs), generator=rng)[:_SAMPLE]
    n_groups = len(pairs.group[chosen].unique())
    encoders, samples, whitened, maps = [], [], [], []
    for name, vectors, rows in zip(_SIDES, sides, pairs.pairs[chosen].T, strict=True):
        with naming(name):
            n_in, sample = check_dim(dim, vectors), take(vectors, rows)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            encoder = head_network(n_in, dim, width)
        standard = encoder.standardise(sample).double()
        count = max(dim, min(n_in, _PRINCIPAL, n_groups // _GROUPS_PER_DIRECTION))
        values, directions = torch.linalg.eigh(torch.cov(standard.T))
        # directions of little variance are not blown up
        scale = (values[-count:].clamp(min=0) + 1e-3 * values.mean()).rsqrt()
        maps.append(directions[:, -count:] * scale)
        whitened.append(standard @ maps[-1])
        encoders.append(encoder)
        samples.append(sample)
    u, _, v = torch.linalg.svd(whitened[0].T @ whitened[1] / len(chosen))
    for encoder, sample, basis, common in zip(encoders, samples, maps, (u, v.T), strict=True):
        layer = encoder.location
        assert isinstance(layer, nn.Linear)
        with torch.no_grad():
            layer.weight.copy_((basis @ common[:, :dim]).T)
        encoder.initialise(sample)
    return Towers(*encoders)


@torch.no_grad()
def cross_information(towers: nn.Module, loss: ContrastiveLoss, batch: Triplets) -> float:
    """The information of a posterior about its partner, in nats: log of the candidates minus the loss, both ways."""
    left, right = towers(batch.anchor), towers(batch.positive)
    value = (loss(left, right) + loss(right, left)) / 2
    return float(np.log(len(batch.anchor)) - value.item())


def _loss(kappa_pos: float) -> ClosedFormInfoNCE:
    return ClosedFormInfoNCE(kappa_pos, in_batch="all")


@contextmanager
def naming(side: str) -> Iterator[None]:
    """Errors about vectors say on which side they are."""
    try:
        yield
    except InvalidInputError as error:
        raise InvalidInputError(f"{side} side: {error}") from error


def _checked(side: str, vectors: Any) -> Vectors:
    with naming(side):
        checked = as_vectors(vectors)
        check_vectors(checked)
    return checked


def turned(batch: Triplets, step: int) -> Triplets:
    """The batch, with the right side as anchors in every second step."""
    return batch if step % 2 else Triplets(batch.positive, batch.anchor)


def _padded(x: Float[Tensor, "n d"], width: int, side: float) -> Float[Tensor, "n w"]:
    rest = x.new_zeros(len(x), width + 1 - x.shape[1])
    rest[:, -1] = side
    return torch.cat([x, rest], 1)


def _joined(parts: Sequence[VonMisesFisher]) -> VonMisesFisher:
    mu, kappa = (torch.cat([getattr(q, name) for q in parts]) for name in ("mu", "kappa"))
    return VonMisesFisher(mu, kappa, validate_args=False)
