"""What contrastive losses share: one signature, checks, negatives, reduction, and the profile over kappa_pos."""

import functools
import math
import warnings
from collections.abc import Iterable
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from aureole._validation import first_index
from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.distributions._constraint import check_kappa, check_unit
from aureole.errors import AureoleWarning, InvalidInputError
from aureole.losses._negatives import InBatch, Negatives, resolve_negatives
from aureole.losses._self_pairs import listed_pairs


class ContrastiveLoss(nn.Module):
    """Base of the losses ``loss(anchor, positive, negative=None)`` over posteriors; subclasses give ``per_anchor``.

    Parameters
    ----------
    in_batch
        Where negatives come from when none are given: "both" is all other anchors and their partners, "all" their
        partners alone, "next" the partner of the next anchor (the paper's M = 0).
    gather
        Whether shared and in-batch negatives come from all ranks of torch.distributed.
    reduction
        "mean", or "none" for one value per anchor.
    """

    trusted = False  # set by the training loop: the posteriors of a step are those of its encoder, made valid

    def __init__(
        self,
        *,
        in_batch: InBatch = "both",
        gather: bool = False,
        reduction: Literal["mean", "none"] = "mean",
    ) -> None:
        super().__init__()
        if in_batch not in ("both", "next", "all") or reduction not in ("mean", "none"):
            raise InvalidInputError(
                f"in_batch must be 'both', 'next' or 'all' and reduction 'mean' or 'none', but they are {in_batch!r} "
                f"and {reduction!r}."
            )
        self.in_batch: InBatch = in_batch
        self.gather = gather
        self.reduction = reduction

    def forward(
        self,
        anchor: VonMisesFisher,
        positive: VonMisesFisher,
        negative: VonMisesFisher | None = None,
    ) -> Float[Tensor, "..."]:
        """The loss of anchors [B], their partners [B] and negatives [M], [B, M] or None."""
        if not self.trusted:
            self.check_parameters()
            check_posteriors(anchor, positive, negative)
        anchor, positive, negative = _same_dtype(anchor, positive, negative)
        with torch.autocast(anchor.mu.device.type, enabled=False):
            negatives = resolve_negatives(
                anchor, positive, negative, in_batch=self.in_batch, gather=self.gather
            )
            value = self.per_anchor(anchor, positive, negatives)
        return value.mean() if self.reduction == "mean" else value

    def per_anchor(
        self, anchor: VonMisesFisher, positive: VonMisesFisher, negatives: Negatives
    ) -> Float[Tensor, " batch"]:
        """The loss of each anchor."""
        raise NotImplementedError

    def among(
        self,
        posterior: VonMisesFisher | MixtureVMF,
        pairs: Tensor,
        *,
        weights: Float[Tensor, " p"] | None = None,
        self_weight: float = 0.0,
        agreement: Float[Tensor, " n"] | None = None,
    ) -> Float[Tensor, "..."]:
        r"""The loss of P positive pairs among N items [N], each pair's negatives all items but its own two.

        Where the items are drawn from the data's marginal and a pair is kept by a chance that depends on its own two
        items alone, the other items are fresh negatives, so this is InfoNCE as exact as with separate ones, at N
        encodings instead of 2P + M. A constant factor of that chance per anchor changes nothing.

        Parameters
        ----------
        posterior
            The items.
        pairs
            Indices [P, 2] (anchor, partner); a pair seen twice is listed twice. Or a matrix [N, N] of weights, dense
            or sparse, for example how often two items matched.
        weights
            Weight of each listed pair. The mean is then the weighted one.
        self_weight
            Number of copies of the anchor itself among its candidates; with it, ``pairs`` may hold (i, i), an input
            seen twice. The loss of (i, j) is then :math:`\log(w h_{ii} + \sum_{k \ne i} h_{ik}) - \log h_{ij}`. To stay
            consistent, list (or weigh) each self-pair w times as often as it occurs. For ``ClosedFormInfoNCE`` and
            ``MCInfoNCE``.
        agreement
            Share of the pairs of annotators of each item that agree, NaN where it was not observed. Adds
            ``agreement_term``, for ``ClosedFormInfoNCE``.

        Examples
        --------
        >>> from aureole.losses import ClosedFormInfoNCE
        >>> q, loss = VonMisesFisher(torch.eye(4), 10.0), ClosedFormInfoNCE(20.0)
        >>> loss.among(q, torch.tensor([[0, 1], [1, 0], [2, 3]]))
        tensor(1.0986)
        >>> loss.among(q, torch.tensor([[0, 0], [1, 2]]), self_weight=1.0)
        tensor(2.1705)
        """
        value, weights = self._of_pairs(posterior, pairs, slice(None), weights, self_weight)
        if self.reduction == "mean":
            value = value.mean() if weights is None else value.sum() / weights.sum()
        if agreement is not None:
            with torch.autocast(posterior.mu.device.type, enabled=False):
                value = value + self.agreement_term(posterior, agreement)
        return value

    def _of_pairs(
        self,
        posterior: VonMisesFisher | MixtureVMF,
        pairs: Tensor,
        anchors: slice,
        weights: Float[Tensor, " p"] | None,
        self_weight: float,
    ) -> tuple[Float[Tensor, " p"], Float[Tensor, " p"] | None]:
        """The (weighted) losses of the pairs whose anchor is one of some items, and their weights."""
        if not self.trusted:
            self.check_parameters()
            check_items(posterior)
        n = len(posterior)
        pairs, weights = listed_pairs(pairs, weights, n)
        check_pairs(pairs, n, with_itself=check_self_weight(self_weight))
        first, last, _ = anchors.indices(n)
        if (first, last) != (0, n):
            chosen = (pairs[:, 0] >= first) & (pairs[:, 0] < last)
            pairs, weights = pairs[chosen], None if weights is None else weights[chosen]
        if not len(pairs):  # a graph all the same: other ranks wait for this one's gradient
            return posterior.kappa.flatten()[:0] + posterior.mu[:0].sum(), None
        with torch.autocast(posterior.mu.device.type, enabled=False):
            value = self.per_pairs(posterior, pairs, slice(first, last), self_weight)
        if weights is None:
            return value, None
        weights = weights.to(value)
        return weights * value, weights

    def per_pairs(
        self,
        posterior: VonMisesFisher | MixtureVMF,
        pairs: Int[Tensor, "p 2"],
        anchors: slice,  # noqa: ARG002
        self_weight: float,
    ) -> Float[Tensor, " p"]:
        """The loss of each pair (i, j) among the items, all others its negatives: the hook of ``among``.

        By default ``per_anchor``, at P N pairs; a subclass may do better. All anchors i lie in the slice ``anchors``,
        so that a loss can leave out the work for others. A loss that takes no mixtures or no ``self_weight`` gets its
        posteriors through ``single``.
        """
        q = self.single(posterior, self_weight)
        i, j = pairs.unbind(-1)
        anchor, positive = (
            VonMisesFisher(q.mu[k], q.kappa[k], validate_args=False) for k in (i, j)
        )
        items = torch.arange(len(q.kappa), device=pairs.device)
        own = (items == i.unsqueeze(-1)) | (items == j.unsqueeze(-1))
        return self.per_anchor(anchor, positive, Negatives(q, own))

    def single(
        self, posterior: VonMisesFisher | MixtureVMF, self_weight: float = 0.0
    ) -> VonMisesFisher:
        """Return the posteriors of a loss that takes no mixtures and, if a ``self_weight`` is passed, no self-pairs."""
        name = type(self).__name__
        if self_weight:
            raise InvalidInputError(
                f"{name} does not take self-pairs: ClosedFormInfoNCE and MCInfoNCE do."
            )
        if isinstance(posterior, MixtureVMF):
            raise InvalidInputError(
                f"{name} needs single vMF posteriors here, but got {len(posterior.kappa)} mixtures: ClosedFormInfoNCE "
                "takes mixtures, without self-pairs and agreement."
            )
        return posterior

    def agreement_term(
        self,
        posterior: VonMisesFisher | MixtureVMF,  # noqa: ARG002
        agreement: Float[Tensor, " n"],  # noqa: ARG002
    ) -> Float[Tensor, ""]:
        """The term of how often two annotators of one item agree, for losses that have one."""
        raise InvalidInputError(
            f"{type(self).__name__} does not take agreement: ClosedFormInfoNCE does."
        )

    def share_among(
        self,
        posterior: VonMisesFisher | MixtureVMF,
        pairs: Tensor,
        anchors: slice,
        *,
        weights: Float[Tensor, " p"] | None = None,
        self_weight: float = 0.0,
    ) -> Float[Tensor, ""]:
        """The (weighted) sum of the losses of the pairs whose anchor is one of some items, e.g. those of a rank.

        Over slices that make up all items, the sum of these is P times ``among``, or the sum of the weights times it.
        Losses that draw need the same state of torch's generator in each.

        Examples
        --------
        >>> from aureole.losses import ClosedFormInfoNCE
        >>> q, pairs = VonMisesFisher(torch.eye(4), 10.0), torch.tensor([[0, 1], [1, 0], [2, 3]])
        >>> [ClosedFormInfoNCE(20.0).share_among(q, pairs, s) for s in (slice(0, 2), slice(2, 4))]
        [tensor(2.1972), tensor(1.0986)]
        """
        return self._of_pairs(posterior, pairs, anchors, weights, self_weight)[0].sum()

    def share(
        self,
        anchor: VonMisesFisher,
        positive: VonMisesFisher,
        negative: VonMisesFisher | None,
        anchors: slice,
    ) -> Float[Tensor, ""]:
        """The sum of the losses of some of the anchors, e.g. a rank's; negatives are those of the whole batch."""
        self.check_parameters()
        check_posteriors(anchor, positive, negative)
        anchor, positive, negative = _same_dtype(anchor, positive, negative)
        own, partner = (
            VonMisesFisher(q.mu[anchors], q.kappa[anchors], validate_args=False)
            for q in (anchor, positive)
        )
        if not len(own.kappa):
            return anchor.mu[:0].sum() + anchor.kappa[:0].sum()
        with torch.autocast(anchor.mu.device.type, enabled=False):
            negatives = resolve_negatives(anchor, positive, negative, in_batch=self.in_batch)
            return self.per_anchor(own, partner, negatives.of_anchors(anchors)).sum()

    def check_parameters(self) -> None:
        """Raise an error if a learned parameter has left its range; a loss without one has nothing to check."""

    def extra_repr(self) -> str:
        """What print shows."""
        return f"in_batch={self.in_batch!r}, gather={self.gather}"


class PositivityLoss(ContrastiveLoss):
    """Base of the losses that model how close the latents of a positive pair are.

    Parameters
    ----------
    kappa_pos
        Concentration of a partner's latent around its anchor's. The learned kappa is relative to it.
    learn_kappa_pos
        Make kappa_pos a parameter. To leading order only 1/kappa1 + 1/kappa2 + 1/kappa_pos is identified, so its
        optimum means little: look at ``profile_kappa_pos`` instead. Nothing keeps its steps above 0; a loss at a
        kappa_pos that is not positive is an error.
    in_batch, gather, reduction
        See ``ContrastiveLoss``.
    """

    kappa_pos: Tensor

    def __init__(
        self,
        kappa_pos: float,
        *,
        learn_kappa_pos: bool = False,
        in_batch: InBatch = "both",
        gather: bool = False,
        reduction: Literal["mean", "none"] = "mean",
    ) -> None:
        super().__init__(in_batch=in_batch, gather=gather, reduction=reduction)
        if not 0 < kappa_pos < math.inf:
            raise InvalidInputError(f"kappa_pos must be positive and finite, but is {kappa_pos!r}.")
        if learn_kappa_pos:
            warnings.warn(
                "kappa_pos is learnable, but contrastive pairs identify little more than 1/kappa1 + 1/kappa2 + "
                "1/kappa_pos: kappa is only known relative to kappa_pos. Look at losses.profile_kappa_pos before "
                "trusting its optimum.",
                AureoleWarning,
                stacklevel=3,
            )
        register_scalar(self, "kappa_pos", kappa_pos, learned=learn_kappa_pos)
        self._known = (self.kappa_pos._version, float(kappa_pos))

    def known_kappa_pos(self) -> float:
        """kappa_pos as a number, read from the device only where it has changed."""
        if self._known[0] != self.kappa_pos._version:
            self._known = (self.kappa_pos._version, self.kappa_pos.item())
        return self._known[1]

    def check_parameters(self) -> None:
        """Raise an error if kappa_pos is not a concentration: a learned one may have stepped past 0."""
        if not 0 < (value := self.kappa_pos.item()) < math.inf:
            raise InvalidInputError(
                f"kappa_pos must be positive and finite, but has become {value!r}: if it is learned, lower its "
                "learning rate, or hold it fixed and look at profile_kappa_pos."
            )

    def extra_repr(self) -> str:
        """What print shows."""
        return f"kappa_pos={self.kappa_pos.item():g}, {super().extra_repr()}"


class TemperatureLoss(ContrastiveLoss):
    """Base of the losses whose scores are divided by a temperature.

    Parameters
    ----------
    temperature
        What scores are divided by; positive and finite.
    learn_temperature
        Make the temperature learnable. The parameter is ``inverse_temperature``.
    in_batch, gather, reduction
        See ``ContrastiveLoss``.
    """

    inverse_temperature: Tensor

    def __init__(
        self,
        *,
        temperature: float,
        learn_temperature: bool = False,
        in_batch: InBatch = "both",
        gather: bool = False,
        reduction: Literal["mean", "none"] = "mean",
    ) -> None:
        super().__init__(in_batch=in_batch, gather=gather, reduction=reduction)
        if not 0 < temperature < math.inf:
            raise InvalidInputError(
                f"temperature must be positive and finite, but is {temperature!r}."
            )
        register_scalar(self, "inverse_temperature", 1 / temperature, learned=learn_temperature)

    @property
    def temperature(self) -> float:
        """What scores are divided by."""
        return 1 / self.inverse_temperature.item()

    def check_parameters(self) -> None:
        """Raise an error if the inverse temperature is not positive: a learned one may have stepped past 0."""
        if not 0 < (value := self.inverse_temperature.item()) < math.inf:
            raise InvalidInputError(
                f"inverse_temperature must be positive and finite, but has become {value!r}: lower its learning rate, "
                "or hold it fixed."
            )

    def extra_repr(self) -> str:
        """What print shows."""
        return f"temperature={self.temperature:g}, {super().extra_repr()}"


def register_scalar(module: nn.Module, name: str, value: float, *, learned: bool) -> None:
    """Register a scalar as a parameter of the module if it is learned, else as a buffer."""
    tensor = torch.tensor(float(value), dtype=torch.float64)
    if learned:
        module.register_parameter(name, nn.Parameter(tensor))
    else:
        module.register_buffer(name, tensor)


def check_posteriors(
    anchor: VonMisesFisher, positive: VonMisesFisher, negative: VonMisesFisher | None
) -> None:
    """Raise an error that names what is wrong with the posteriors given to a loss."""
    named = {"anchor": anchor, "positive": positive, "negative": negative}
    for name, posterior in named.items():
        if posterior is None and name == "negative":
            continue
        if not isinstance(posterior, VonMisesFisher):
            raise InvalidInputError(
                f"{name} must be a VonMisesFisher posterior, but is {type(posterior).__name__}. Wrap point embeddings "
                "as VonMisesFisher(sphere.normalize(embedding), kappa)."
            )
        if posterior.dim != anchor.dim:
            raise InvalidInputError(
                f"{name} lies on the sphere in R^{posterior.dim}, but anchor in R^{anchor.dim}."
            )
        check_unit(f"{name}.mu", posterior.mu)
        check_kappa(posterior.kappa)
    if len(anchor.batch_shape) != 1 or anchor.batch_shape != positive.batch_shape:
        raise InvalidInputError(
            "anchor and positive must hold B posteriors each, batch shape (B,), item i of one the partner of item i of "
            f"the other; but they have {tuple(anchor.batch_shape)} and {tuple(positive.batch_shape)}."
        )
    if anchor.batch_shape[0] == 0:
        raise InvalidInputError("the batch is empty: a loss needs at least one pair.")


def _same_dtype(
    anchor: VonMisesFisher, positive: VonMisesFisher, negative: VonMisesFisher | None
) -> tuple[VonMisesFisher, VonMisesFisher, VonMisesFisher | None]:
    """The posteriors in the widest of their dtypes, with mu normalised again where it was widened."""
    posteriors = [q for q in (anchor, positive, negative) if q is not None]
    dtype = functools.reduce(torch.promote_types, (q.mu.dtype for q in posteriors))
    wide = [
        q if q.mu.dtype == dtype else VonMisesFisher(q.mu, q.kappa.to(dtype), validate_args=False)
        for q in posteriors
    ]
    return wide[0], wide[1], wide[2] if negative is not None else None


def check_items(posterior: VonMisesFisher | MixtureVMF) -> int:
    """The number of items N, if these are N posteriors or mixtures that a loss can take."""
    shape = tuple(posterior.batch_shape)
    if len(shape) != 1:
        raise InvalidInputError(
            f"the items must be N posteriors, batch shape (N,), but have batch shape {shape}."
        )
    check_unit("posterior.mu", posterior.mu)
    check_kappa(posterior.kappa)
    if isinstance(posterior, MixtureVMF):
        bad = ~((posterior.weights >= 0) & torch.isfinite(posterior.weights))
        if bool(bad.any()):
            raise InvalidInputError(
                f"weights must be at least 0 and finite, but weights{first_index(bad)} is "
                f"{posterior.weights[bad][0].item():.6g} ({int(bad.sum())} of {bad.numel()} are off)."
            )
    return shape[0]


def check_self_weight(self_weight: float) -> bool:
    """Whether an item is among its own candidates; an error if the weight is not a number of copies."""
    if not 0 <= self_weight < math.inf:
        raise InvalidInputError(
            f"self_weight must be at least 0 and finite, but is {self_weight!r}."
        )
    return self_weight > 0


def check_pairs(pairs: Tensor, n_items: int, *, with_itself: bool = False) -> None:
    """Raise an error that names what is wrong with the pairs among n items."""
    if pairs.dim() != 2 or pairs.shape[-1] != 2 or len(pairs) == 0 or pairs.is_floating_point():
        raise InvalidInputError(
            "pairs must hold the indices (anchor, partner) of at least one pair, shape (P, 2), but has shape "
            f"{tuple(pairs.shape)} and dtype {pairs.dtype}."
        )
    if n_items < 3:
        raise InvalidInputError(
            f"{n_items} items hold no negatives for a pair of them: give three or more."
        )
    low, high = pairs.aminmax()
    if low < 0 or high >= n_items:
        raise InvalidInputError(
            f"pairs must index {n_items} items, but they run from {low} to {high}."
        )
    same = pairs[:, 0] == pairs[:, 1]
    if not with_itself and bool(same.any()):
        first = int(same.int().argmax())
        raise InvalidInputError(
            f"pairs[{first}] pairs item {int(pairs[first, 0])} with itself: pass self_weight, the number of copies of "
            "an item among its own candidates."
        )


def pair_cosines(
    anchor: VonMisesFisher, positive: VonMisesFisher, negatives: Negatives
) -> tuple[Float[Tensor, " b"], Float[Tensor, "b m"]]:
    """(Cosines of the pairs [B], of each anchor with its negatives [B, M])."""
    pairs = (anchor.mu * positive.mu).sum(-1)
    if negatives.shared:
        others = anchor.mu @ negatives.posterior.mu.T
    else:
        others = torch.einsum("bd,bmd->bm", anchor.mu, negatives.posterior.mu)
    return clamped(pairs), clamped(others)


def clamped(cosine: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Return the cosines within [-1, 1]: only rounding is removed, so the gradient passes through."""
    return cosine + (cosine.clamp(-1, 1) - cosine).detach()


def profile_kappa_pos(
    loss: PositivityLoss,
    anchor: VonMisesFisher,
    positive: VonMisesFisher,
    negative: VonMisesFisher | None = None,
    *,
    grid: Iterable[float] = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0),
) -> dict[float, float]:
    """The mean loss at each kappa_pos of a grid: nearly flat where kappa_pos is not identified.

    The values of the grid must be positive and finite.

    Examples
    --------
    >>> from aureole.losses import ClosedFormInfoNCE
    >>> q = VonMisesFisher(torch.eye(8), 50.0)
    >>> profile = profile_kappa_pos(ClosedFormInfoNCE(20.0), q, q, grid=(10.0, 20.0))
    >>> sorted(profile)
    [10.0, 20.0]
    """
    values = [float(value) for value in grid]
    if not values or not all(0 < value < math.inf for value in values):
        raise InvalidInputError(
            f"the grid must hold positive, finite values of kappa_pos, one or more, but is {values}."
        )
    profile = {}
    kept = loss.kappa_pos.detach().clone()
    with torch.no_grad():
        try:
            for value in values:
                loss.kappa_pos.fill_(value)
                profile[value] = loss(anchor, positive, negative).mean().item()
        finally:
            loss.kappa_pos.copy_(kept)
    return profile
