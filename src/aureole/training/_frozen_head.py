"""Heads on frozen vectors: a posterior for every vector of a finished encoder, without retraining the encoder.

A head needs to know which vectors match: a group label per row, pairs of rows, or the votes of annotators. Vectors are
read as they are needed, so they may be a memory-mapped array that is larger than the memory.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from aureole.data import PairBatch, Votes
from aureole.data._columns import as_vectors
from aureole.data._pairs import Groups, PairIndex
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.evaluation import Calibration, diagnose, predictive_coverage
from aureole.evaluation._calibration import CAP_MASSES
from aureole.evaluation._diagnosis import Diagnosis
from aureole.losses import ClosedFormInfoNCE
from aureole.models import Card
from aureole.models._card import model_card
from aureole.models._saving import check_weights, find_model, load_folder, save_folder
from aureole.training._fit import Fit, Observer, Phase, fit
from aureole.training._head_network import (
    CHUNK,
    Head,
    Vectors,
    best_information,
    check_vectors,
    head_encoder,
    head_network,
    information,
    judged,
    take,
)
from aureole.training._voted_items import AGREEMENT_WEIGHT, VotedItems

Partners = Groups | PairIndex | VotedItems
HEAD_FORMAT = "aureole-frozen-head-2"
_HELD_OUT_ITEMS, _PAIRS = 2048, 4096
_ROUNDS = 4  # pairs per group at most, when pairs are sampled
_LARGEST = 65_536  # features, dimensions or hidden units of a head that is loaded
_USAGE = (
    "import aureole as au",
    "",
    'head = au.FrozenHead.load("folder")',
    "posterior = head.predict(vectors)  # posterior.mu, posterior.kappa",
)


class FrozenHead(Head):
    r"""Posteriors :math:`\mathrm{vMF}(\hat\mu(v), \hat\kappa(v))` of vectors v, learned from matching pairs of vectors.

    :math:`\hat\mu` is a linear map to ``dim`` dimensions, initialised with the whitened principal directions of the
    vectors, and :math:`\log\hat\kappa` a small network. Both are trained with the closed form of InfoNCE, and the step
    with the highest held-out information is selected. Then kappa is calibrated on other held-out pairs, so that
    predictive caps of 90 % contain 90 % of the partners. The interface follows scikit-learn: ``fit`` returns self,
    fitted attributes end in an underscore, and a head can be the last step of a ``Pipeline``.

    Parameters
    ----------
    dim
        Dimension D of the sphere (default 32). "auto" tries 8, 16, 32 and 64 for a fifth of the steps each, and takes
        the smallest after which the held-out information grows by less than 0.02 nats.
    kappa_pos
        Concentration of the latents of a matching pair around each other. The default is 2 D; with votes it is the
        value at which two items without ambiguity match as often, compared with two random ones, as items of one class
        do. Pairs hardly distinguish it from kappa, so kappa is relative to it: ``profile_`` shows how flat the
        held-out information is.
    width
        Hidden units of the kappa network (default 128).
    steps
        Number of training steps (default 400); fewer where the held-out information has long stopped growing.
    items
        Vectors per batch (default 1,024). Larger batches contain harder negatives, which separate a large kappa from a
        very large one; the cost grows with the square.
    lr
        Learning rate (default 4e-3).
    held_out
        Share of the groups, or of the items with votes, that is not trained on (default 0.1): one half selects the
        step, the other calibrates.
    seed
        Seed of all randomness (default 0).

    Attributes
    ----------
    dim_, kappa_pos_
        The values that were used.
    information_
        Held-out information of the posteriors about a partner, in nats.
    profile_
        The same by kappa_pos.
    dims_
        The same by dim, if dim was "auto".
    calibration_
        The calibration of kappa.
    square_length_
        Mean squared length of held-out vectors: 1 for unit vectors.
    coverage_
        Share of held-out partners in predictive caps of 50, 80, 90 and 95 %, after calibration.
    fingerprint_
        Fingerprint of the encoder of the vectors (``aureole.encoders``), or None; set it before ``save``. It is only
        ever compared.
    diagnosis_
        What ``diagnose`` found on held-out pairs; not saved.

    Examples
    --------
    >>> rng = torch.Generator().manual_seed(0)
    >>> centres, groups = torch.randn(200, 8, generator=rng), torch.arange(200).repeat(4)
    >>> blur = 0.1 + torch.rand(800, 1, generator=rng)
    >>> vectors = centres[groups] + blur * torch.randn(800, 8, generator=rng)
    >>> head = FrozenHead(dim=4, steps=30, items=128).fit(vectors, groups)
    >>> head.predict(vectors).kappa.shape
    torch.Size([800])
    >>> head
    FrozenHead(dim=4, steps=30, items=128, fitted: 8 -> 4 dimensions)
    """

    fingerprint_: str | None = None

    def fit(
        self,
        vectors: Any,
        groups: Sequence[Any] | Vectors | None = None,
        pairs: Sequence[Sequence[int]] | Vectors | None = None,
        *,
        votes: Votes | Any = None,
        calibrate: bool = True,
        checkpoint: Path | None = None,
        observer: Observer | None = None,
    ) -> "FrozenHead":
        """Fit to vectors [n, d] and one group label per vector, to pairs [p, 2] of row numbers that match, or to votes.

        With ``votes`` (``data.Votes``, or counts [n, classes], one row per vector), two vectors match as often as the
        votes on them do. kappa is also learned from how often the annotators of an item agree, with each other and with
        those of its nearest neighbours. Vectors without a vote are not used.

        ``vectors`` is a tensor, an array or an Arrow column of lists; memory-mapped arrays are read in parts
        (``data.read_vectors`` opens a Parquet file as one). ``calibrate=False`` leaves kappa as the network predicts
        it. With ``checkpoint``, an interrupted fit resumes.
        """
        self._check_parameters()
        vectors = as_vectors(vectors)
        check_vectors(vectors)
        if len(getattr(groups, "shape", ())) == 2:
            raise InvalidInputError(
                "groups have two dimensions. For vectors of two encoders, use TwoTowerHead.fit(images, texts, pairs)."
            )
        rng = torch.Generator().manual_seed(self.seed)
        training, held = partners_of(vectors, groups, pairs, votes).split(self.held_out, rng)
        selecting, calibrating = halves(held, rng)
        probe = draw_probe(vectors, selecting, rng)

        def train(dim: int, steps: int, path: Path | None) -> Fit:
            encoder = head_encoder(vectors, training.members, dim, width=self.width, seed=self.seed)
            value = self._kappa_pos(dim, training)
            if isinstance(training, VotedItems):
                training.initialise(encoder, value, dim)
            loss, judge = (
                ClosedFormInfoNCE(value, agreement_weight=AGREEMENT_WEIGHT) for _ in range(2)
            )
            return fit(
                encoder,
                loss,  # may move to a GPU with the encoder; ``judge`` stays on the CPU
                lambda _, generator: draw_batch(vectors, training, self.items, generator),
                phases=[Phase("joint", steps, self.lr)],
                options=self._options(steps, "held_out"),
                checkpoint=path,
                evaluate=lambda model: judged(model, judge, probe),
                observer=observer,
            )

        self._choose_dim(train, int(vectors.shape[1]), checkpoint)
        self.kappa_pos_ = self._kappa_pos(self.dim_, training)
        self.fit_ = train(self.dim_, self.steps, checkpoint)
        self.encoder_: nn.Module = self.fit_.encoder
        self.n_features_in_ = int(vectors.shape[1])
        self.square_length_ = float(probe.inputs.double().square().sum(1).mean())
        self.information_ = best_information(self.fit_)
        self.profile_ = self._profile(
            lambda value: information(self.encoder_, ClosedFormInfoNCE(value), probe)
        )
        self._calibrate(*self._one_way(vectors, calibrating, rng), calibrate=calibrate)
        self.diagnosis_ = self._diagnosed(probe)
        return self

    def _diagnosed(self, probe: PairBatch) -> Diagnosis | None:
        """The diagnosis of held-out posteriors, which warns; None if none of them match."""
        if not len(probe.pairs) or len(probe.inputs) < 3:
            return None
        posterior = self._model(probe.inputs)
        return diagnose(posterior, probe.pairs, kappa_pos=self.kappa_pos_, seed=self.seed)

    @torch.no_grad()
    def predict(self, vectors: Any) -> VonMisesFisher:
        """The posteriors of vectors [n, d] (a tensor, an array or an Arrow column), in chunks."""
        vectors = as_vectors(vectors)
        self._check_fitted(vectors)
        mu = torch.empty(len(vectors), self.dim_)
        kappa = torch.empty(len(vectors))
        for start in range(0, len(vectors), CHUNK):
            rows = slice(start, start + CHUNK)
            part = self.encoder_(take(vectors, rows))
            mu[rows], kappa[rows] = part.mu, part.kappa
        overflow = torch.nonzero(~(torch.isfinite(kappa) & torch.isfinite(mu).all(-1)))
        if len(overflow):
            raise InvalidInputError(
                f"row {int(overflow[0])} is too large: its posterior overflows. The vectors have another scale than "
                "those the head was fitted on. Check that they come from the same encoder."
            )
        return self._calibrated(VonMisesFisher(mu, kappa, validate_args=False))

    def score(
        self,
        vectors: Any,
        groups: Sequence[Any] | Vectors | None = None,
        *,
        pairs: Sequence[Sequence[int]] | Vectors | None = None,
        votes: Votes | Any = None,
    ) -> float:
        """Return the information of the posteriors about a partner, in nats: log of the candidates minus the loss.

        Higher is better. At most 2,048 vectors are used, two of each group. The data are those of ``fit``.
        """
        vectors, partners, rng = self._measured(vectors, groups, pairs, votes)
        probe = draw_probe(vectors, partners, rng)
        return information(self._model, ClosedFormInfoNCE(self.kappa_pos_), probe)

    def profile(
        self,
        vectors: Any,
        groups: Sequence[Any] | Vectors | None = None,
        *,
        pairs: Sequence[Sequence[int]] | Vectors | None = None,
        votes: Votes | Any = None,
    ) -> dict[float, float]:
        """Return ``score`` at a quarter to four times the fitted kappa_pos, without refitting the encoder."""
        vectors, partners, rng = self._measured(vectors, groups, pairs, votes)
        probe = draw_probe(vectors, partners, rng)
        return self._profile(
            lambda value: information(self._model, ClosedFormInfoNCE(value), probe)
        )

    @torch.no_grad()
    def coverage(
        self,
        vectors: Any,
        groups: Sequence[Any] | Vectors | None = None,
        *,
        pairs: Sequence[Sequence[int]] | Vectors | None = None,
        votes: Votes | Any = None,
        masses: Sequence[float] = CAP_MASSES,
    ) -> dict[float, float]:
        """Return the share of partners in predictive caps by mass, from at most 4,096 pairs, up to four per group.

        With votes, up to four per item.
        """
        ends = self._one_way(*self._measured(vectors, groups, pairs, votes))
        query, partner = (self._calibrated(q) for q in ends)
        return predictive_coverage(query, partner, kappa_pos=self.kappa_pos_, masses=masses)

    def _measured(
        self, vectors: Any, groups: Any, pairs: Any, votes: Any
    ) -> tuple[Vectors, Partners, torch.Generator]:
        """Return the vectors, their partners and the random generator of a measurement."""
        vectors = as_vectors(vectors)
        self._check_fitted(vectors)
        rng = torch.Generator().manual_seed(self.seed)
        return vectors, partners_of(vectors, groups, pairs, votes), rng

    @property
    def takes_unit_vectors(self) -> bool:
        """Return True if the head was fitted on unit vectors, judged by their mean squared length."""
        self._require_fit()
        return 0.8 < self.square_length_ < 1.25

    def save(self, folder: Path | str, *, card: Card | None = None) -> Path:
        """Save the fitted head as ``config.json``, ``weights.safetensors`` and a model card; return the folder.

        The card gets the kappa_pos and the coverage of the head.
        """
        self._require_fit()
        about = card or Card(name="A head on frozen vectors")
        about = replace(about, kappa_pos=self.kappa_pos_, coverage=self.coverage_)
        config = {
            "format": HEAD_FORMAT,
            "parameters": self.get_params(),
            "dim": self.dim_,
            "kappa_pos": self.kappa_pos_,
            "n_features_in": self.n_features_in_,
            "square_length": self.square_length_,
            "encoder": self.fingerprint_,
            "information": self.information_,
            "calibration": asdict(self.calibration_),
            "profile": list(self.profile_.items()),
            "dims": list(self.dims_.items()),
            "coverage": list(self.coverage_.items()),
        }
        text = model_card(about, format=HEAD_FORMAT, dim=self.dim_, usage=_USAGE)
        return save_folder(folder, config, self.encoder_.state_dict(), card=text)

    @classmethod
    def load(cls, folder: Path | str) -> "FrozenHead":
        """Load a head from a folder, or a packaged head by its name.

        Untrusted files are safe: they hold only numbers, which are validated.

        Examples
        --------
        >>> FrozenHead.load("minilm-captions").dim_
        32
        """
        parameters, fitted = read_head(folder)
        try:
            head = cls(**parameters)
        except TypeError as error:
            raise InvalidInputError(f"the config in {folder} is damaged: {error!r}.") from error
        vars(head).update(fitted)
        return head

    def __sklearn_tags__(self) -> Any:
        """Tags for scikit-learn pipelines."""
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=True))

    def _sizes(self) -> str:
        return str(self.n_features_in_)

    def _kappa_pos(self, dim: int, partners: Partners | None = None) -> float:
        if self.kappa_pos is None and isinstance(partners, VotedItems):
            return partners.kappa_pos(dim)
        return super()._kappa_pos(dim)

    @torch.no_grad()
    def _one_way(
        self, vectors: Vectors, partners: Partners, rng: torch.Generator
    ) -> tuple[VonMisesFisher, VonMisesFisher]:
        """Return the uncalibrated posteriors of a sample of pairs, up to four of each group: (queries, partners)."""
        left, right = pair_rows(partners, _PAIRS, rng)
        query, partner = (self.encoder_(take(vectors, rows)) for rows in (left, right))
        return query, partner

    def _model(self, inputs: Tensor) -> VonMisesFisher:
        """Return the calibrated posteriors of inputs."""
        return self._calibrated(self.encoder_(inputs))

    def _check_fitted(self, vectors: Vectors) -> None:
        self._require_fit()
        check_vectors(vectors)
        if vectors.shape[1] != self.n_features_in_:
            raise InvalidInputError(
                f"the head was fitted on vectors of {self.n_features_in_} dimensions, not {vectors.shape[1]}."
            )


def read_head(folder: Path | str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters and the fitted attributes of a saved head. Untrusted folders are safe: all is validated."""
    config, weights = load_folder(find_model(folder), format=HEAD_FORMAT)
    try:
        parameters = dict(config["parameters"])
        fitted: dict[str, Any] = {
            "dim_": int(config["dim"]),
            "kappa_pos_": float(config["kappa_pos"]),
            "n_features_in_": int(config["n_features_in"]),
            "square_length_": float(config["square_length"]),
            "fingerprint_": config.get("encoder"),  # compared, never loaded
            "information_": float(config["information"]),
            "calibration_": Calibration(**config["calibration"]),
            "profile_": {float(k): float(v) for k, v in config["profile"]},
            "dims_": {int(k): float(v) for k, v in config["dims"]},
            "coverage_": {float(k): float(v) for k, v in config["coverage"]},
        }
        if not isinstance(fitted["fingerprint_"], str | None):
            raise TypeError("encoder is not a fingerprint")
        sizes = (fitted["n_features_in_"], fitted["dim_"], int(parameters["width"]))
    except (KeyError, TypeError, ValueError, OverflowError, InvalidInputError) as error:
        raise InvalidInputError(f"the config in {folder} is damaged: {error!r}.") from error
    if not all(1 <= size <= _LARGEST for size in sizes):
        raise InvalidInputError(
            f"the config in {folder} asks for layers of sizes {sizes}; none may be above {_LARGEST}."
        )
    if not 0 < fitted["kappa_pos_"] < float("inf"):
        raise InvalidInputError(
            f"the config in {folder} is damaged: kappa_pos is {fitted['kappa_pos_']}."
        )
    with torch.device("meta"):  # allocates no memory before the shapes of the weights are checked
        outline = head_network(*sizes)
    check_weights(weights, outline.state_dict())
    encoder = head_network(*sizes)
    encoder.load_state_dict(weights)
    return parameters, {**fitted, "encoder_": encoder.requires_grad_(False).eval()}


def partners_of(
    vectors: Vectors,
    groups: Sequence[Any] | Vectors | None,
    pairs: Sequence[Sequence[int]] | Vectors | None,
    votes: Votes | Any = None,
) -> Partners:
    """The matching rows, from one label per row, from pairs of rows, or from votes."""
    if sum(given is not None for given in (groups, pairs, votes)) != 1:
        raise InvalidInputError(
            "pass either groups (one label per vector), pairs of rows, or votes."
        )
    if votes is not None:
        votes = votes if isinstance(votes, Votes) else Votes.of(votes)
        if len(votes) != len(vectors):
            raise InvalidInputError(
                f"{len(vectors)} vectors need one row of votes each, but got votes on {len(votes)} items. "
                "Votes.from_table(..., order=ids) gives every vector a row."
            )
        return VotedItems.of(votes, vectors)
    if groups is None:
        assert pairs is not None  # exactly one is given
        return PairIndex.of(pairs, len(vectors))
    if len(groups) != len(vectors):
        raise InvalidInputError(
            f"{len(vectors)} vectors need one group each, but got {len(groups)} groups."
        )
    return Groups.of(groups)


def halves(partners: Partners, rng: torch.Generator) -> tuple[Partners, Partners]:
    """Two disjoint halves, or the whole twice if a half would be too small to contain negatives."""
    if isinstance(partners, Groups) and not partners.classes and len(partners.sizes) < 4:
        return partners, partners
    try:
        first, second = partners.split(0.5, rng)
    except InvalidInputError:
        return partners, partners
    if min(len(first.members), len(second.members)) < 3:
        return partners, partners
    return first, second


def draw_batch(
    vectors: Vectors, partners: Partners, n_items: int, rng: torch.Generator
) -> PairBatch:
    """A batch of rows and the pairs among them; with votes, also the agreement of annotators."""
    if isinstance(partners, VotedItems):
        return partners.batch(vectors, n_items, rng)
    rows, pairs = partners.draw(n_items, rng)
    return PairBatch(take(vectors, rows), pairs, float(len(pairs)))


def draw_probe(vectors: Vectors, partners: Partners, rng: torch.Generator) -> PairBatch:
    """The held-out batch by which a head is judged."""
    rows, pairs = partners.draw(_HELD_OUT_ITEMS, rng)
    agreement = partners.agreement(rows) if isinstance(partners, VotedItems) else None
    return PairBatch(take(vectors, rows), pairs, float(len(pairs)), agreement=agreement)


def pair_rows(
    partners: Partners, most: int, rng: torch.Generator
) -> tuple[Int[Tensor, " p"], Int[Tensor, " p"]]:
    """Rows and the rows of their partners, each pair once: up to four pairs per group, ``most`` in total."""
    if isinstance(partners, VotedItems):
        return partners.sample_pairs(most, rng)
    drawn = []
    for _ in range(_ROUNDS):
        rows, pairs = partners.draw(most, rng)
        drawn.append(rows[pairs[pairs[:, 0] < pairs[:, 1]]].sort(1).values)
    unique = torch.cat(drawn).unique(dim=0)
    left, right = unique[torch.randperm(len(unique), generator=rng)[:most]].T
    return left, right
