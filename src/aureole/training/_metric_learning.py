"""Adapter to pytorch-metric-learning: use any aureole loss as ``loss(embeddings, labels, indices_tuple=None)``."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from aureole.distributions import VonMisesFisher
from aureole.errors import AureoleWarning, InvalidInputError
from aureole.evaluation import diagnose
from aureole.evaluation._diagnosis import Diagnosis
from aureole.losses import ContrastiveLoss, Negatives, PositivityLoss
from aureole.losses._contrastive import check_posteriors
from aureole.sphere import normalize

Head = Callable[[Tensor], VonMisesFisher]
_FIRST_LOOK = 100  # steps before the first diagnosis


def posterior_from_norm(embeddings: Float[Tensor, "*batch dim"]) -> VonMisesFisher:
    r"""The posteriors with :math:`\mu = e/|e|` and :math:`\kappa = |e|`; a zero embedding is an error.

    Examples
    --------
    >>> posterior_from_norm(torch.tensor([[3.0, 4.0], [0.0, 20.0]]))
    VonMisesFisher(batch_shape=(2,), dim=2, kappa in [5, 20])
    """
    embeddings = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
    return VonMisesFisher(normalize(embeddings), torch.linalg.vector_norm(embeddings, dim=-1))


def posteriors_of(name: str, embeddings: Tensor, head: Head) -> VonMisesFisher:
    """The posteriors [n] that the head predicts for raw embeddings [n, D], both validated."""
    if embeddings.dim() != 2 or not embeddings.is_floating_point():
        raise InvalidInputError(
            f"{name} must be a floating-point tensor of shape (n, dim), but is {embeddings.dtype} of shape "
            f"{tuple(embeddings.shape)}. Pass the encoder's raw outputs, one row per item."
        )
    posterior = head(embeddings)
    if not isinstance(posterior, VonMisesFisher):
        raise InvalidInputError(
            f"head must return a VonMisesFisher posterior, but returned {type(posterior).__name__} for {name}."
        )
    if tuple(posterior.batch_shape) != (embeddings.shape[0],):
        raise InvalidInputError(
            f"head must return one posterior per row of {name}, batch shape ({embeddings.shape[0]},), but returned "
            f"{tuple(posterior.batch_shape)}."
        )
    return posterior


class WatchedLoss(nn.Module):
    """Base of the adapters: diagnoses the batch of training steps 100, 200, 400 and so on, and warns of problems.

    Loops of other libraries do not report their end; this way the last diagnosis is of the last half of the training.
    The cost grows with the log of the number of steps. ``diagnosis`` is the last one; it is of a training batch, so
    ``aureole.diagnose`` with held-out pairs is more reliable.
    """

    loss: ContrastiveLoss

    def __init__(self) -> None:
        super().__init__()
        self.n_steps = 0
        self.diagnosis: Diagnosis | None = None

    def watch(self, posterior: VonMisesFisher, pairs: Int[Tensor, "p 2"]) -> None:
        """Count a training step, and diagnose it if it is one of those."""
        if not (self.training and torch.is_grad_enabled()):
            return
        self.n_steps += 1
        due, rest = divmod(self.n_steps, _FIRST_LOOK)
        if rest or due & (due - 1) or not isinstance(self.loss, PositivityLoss):
            return
        if len(pairs) and len(posterior) > 2:
            kappa_pos = self.loss.kappa_pos.item()
            self.diagnosis = diagnose(posterior, pairs.cpu(), kappa_pos=kappa_pos, warn=False)
            for problem in self.diagnosis.problems:
                text = f"in training step {self.n_steps}, {problem}"
                warnings.warn(text, AureoleWarning, stacklevel=3)


class MetricLearningLoss(WatchedLoss):
    r"""An aureole loss with the interface of pytorch-metric-learning: ``loss(embeddings, labels, indices_tuple=None)``.

    Every pair of an anchor i and a partner p is contrasted with the negatives of i:
    :math:`\ell(q_i, q_p, \{q_j : y_j \ne y_i\})`.

    - From labels, each anchor forms one pair with a random item of the same label, drawn uniformly. The expected loss
      is the mean over anchors of the mean over their partners, at the cost of one pair per anchor, for any order of the
      batch. The negatives are all items with other labels.
    - From ``indices_tuple``, each listed pair is one term, and a negative pair listed twice counts twice, as in the
      pair losses of that library. Triplets (a, p, n) are split into pairs (a, p) and (a, n), so a pair is contrasted
      with every negative listed for its anchor.

    With ``InfoNCE(temperature=temperature)`` the value equals ``NTXentLoss(temperature)`` of that library: from
    labels if every class has two members, and for every ``indices_tuple`` with more than one positive or negative pair.
    Without indices, ``NTXentLoss`` uses all positive pairs, so that a class of k items has the weight k (k - 1): pass
    ``get_all_pairs_indices(labels)`` of ``loss_and_miner_utils`` to get the same.

    A pair whose anchor has no negatives contributes 0 to the mean. Without any pair the loss is a zero that still has a
    graph, as in that library, so ``backward`` works and every gradient is 0.

    The wrappers ``SelfSupervisedLoss`` and ``CrossBatchMemory`` check losses by class name: override their
    ``check_loss_support`` in a subclass to use this one.

    Parameters
    ----------
    loss
        The aureole loss. Its ``in_batch`` is ignored; the reduction "none" gives one value per pair.
    head
        Turns raw embeddings [n, D] into posteriors [n]. If it is a module, its parameters belong to this one: pass them
        to the optimiser.
    generator
        Random generator for the partners, on the device of the embeddings.

    Examples
    --------
    >>> from aureole.losses import ClosedFormInfoNCE
    >>> loss = MetricLearningLoss(ClosedFormInfoNCE(kappa_pos=20.0))
    >>> embeddings = 10 * torch.eye(4).repeat(2, 1)
    >>> loss(embeddings, torch.arange(4).repeat(2))
    tensor(0.0815)
    """

    def __init__(
        self,
        loss: ContrastiveLoss,
        head: Head = posterior_from_norm,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if loss.gather:
            raise InvalidInputError(
                "the loss has gather=True, but labels and indices refer to one process. Gather embeddings and labels "
                "first, pass them as ref_emb and ref_labels, and set gather=False."
            )
        self.loss = loss
        self.head = head
        self.generator = generator

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: Sequence[Tensor] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Float[Tensor, "..."]:
        """The loss of raw embeddings [n, D] with labels [n], or with a miner's indices.

        Anchors are rows of ``embeddings``; partners and negatives are rows of ``ref_emb`` [m, D] with ``ref_labels``
        [m] if given, otherwise of ``embeddings``, where no row is its own partner.
        """
        if ref_emb is None:
            ref_emb, ref_labels = embeddings, labels
        within = ref_emb is embeddings
        query = posteriors_of("embeddings", embeddings, self.head)
        reference = query if within else posteriors_of("ref_emb", ref_emb, self.head)
        n, m = query.batch_shape[0], reference.batch_shape[0]
        labels = _check_labels("labels", labels, n, embeddings.device)
        ref_labels = _check_labels("ref_labels", ref_labels, m, embeddings.device)
        if indices_tuple is not None:
            pairs = _listed_pairs(indices_tuple, n, m, embeddings.device)
        elif labels is None or ref_labels is None:
            raise InvalidInputError(
                f"pass {'labels' if labels is None else 'ref_labels'} or indices_tuple, from which pairs are formed."
            )
        else:
            same = labels.unsqueeze(1) == ref_labels
            pairs = _drawn_pairs(same, within=within, generator=self.generator)
        if within:
            self.watch(query, torch.stack([pairs.anchor, pairs.partner], 1))
        value = self._per_pair(query, reference, pairs)
        return value if self.loss.reduction == "none" else value.sum() / max(len(value), 1)

    def _per_pair(
        self, query: VonMisesFisher, reference: VonMisesFisher, pairs: "_Pairs"
    ) -> Float[Tensor, " p"]:
        """The loss of each pair; 0, with a graph, if the anchor has no negatives."""
        value = query.mu.new_zeros(len(pairs.anchor)) + query.mu[:0].sum() + query.kappa[:0].sum()
        contrasted = (pairs.times > 0).any(1)[pairs.anchor]
        if bool(contrasted.any()):
            rows = pairs.anchor[contrasted]
            anchor, positive = query[rows], reference[pairs.partner[contrasted]]
            columns, excluded = _columns(pairs.times[rows])
            negatives = Negatives(reference[columns], excluded)
            check_posteriors(anchor, positive, negatives.posterior)
            with torch.autocast(anchor.mu.device.type, enabled=False):
                losses = self.loss.per_anchor(anchor, positive, negatives)
            value = value.index_put((contrasted,), losses)
        return value[pairs.origin]


@dataclass(frozen=True)
class _Pairs:
    """Distinct pairs, how often item j is a negative of anchor i, and the distinct pair of each listed one."""

    anchor: Int[Tensor, " pairs"]
    partner: Int[Tensor, " pairs"]
    times: Int[Tensor, "n m"]
    origin: Int[Tensor, " listed"]


def _drawn_pairs(
    same: Bool[Tensor, "n m"], *, within: bool, generator: torch.Generator | None
) -> _Pairs:
    """Each anchor with a partner drawn uniformly among the items of its label, if it has any."""
    candidates = same.clone().fill_diagonal_(False) if within else same
    anchor = torch.nonzero(candidates.any(1)).squeeze(1)
    partner = anchor
    if len(anchor) > 0:
        weights = candidates[anchor].float()
        partner = torch.multinomial(weights, 1, generator=generator).squeeze(1)
    return _Pairs(anchor, partner, (~same).long(), torch.arange(len(anchor), device=same.device))


def _listed_pairs(indices_tuple: Sequence[Tensor], n: int, m: int, device: torch.device) -> _Pairs:
    """The pairs of (anchors, partners, anchors, negatives), or of triplets (anchors, partners, negatives)."""
    if len(indices_tuple) not in (3, 4):
        raise InvalidInputError(
            "indices_tuple must contain 4 tensors (anchors, positives, anchors, negatives) or 3 (anchors, positives, "
            f"negatives), but contains {len(indices_tuple)}."
        )
    if len(indices_tuple) == 3:
        indices_tuple = (*indices_tuple[:2], indices_tuple[0], indices_tuple[2])
    index = [
        _check_index(position, each, size, device)
        for position, (each, size) in enumerate(zip(indices_tuple, (n, m, n, m), strict=True))
    ]
    lengths = [len(each) for each in index]
    if lengths[0] != lengths[1] or lengths[2] != lengths[3]:
        raise InvalidInputError(
            "indices_tuple must contain one anchor per positive and one per negative, but the lengths of "
            f"(anchors, positives, anchors, negatives) are {tuple(lengths)}."
        )
    # a triplet miner lists a pair once per negative: compute each pair once and reuse its value
    distinct, origin = torch.unique(index[0] * m + index[1], return_inverse=True)
    times = torch.bincount(index[2] * m + index[3], minlength=n * m).reshape(n, m)
    size = max(m, 1)
    return _Pairs(distinct // size, distinct % size, times, origin)


def _columns(
    times: Int[Tensor, "pairs m"],
) -> tuple[Int[Tensor, " columns"], Bool[Tensor, "pairs columns"]]:
    """The items used as shared negatives, repeated as often as any anchor needs, and a mask that excludes them."""
    most = times.amax(0)
    columns = torch.repeat_interleave(most)
    copy = torch.arange(len(columns), device=times.device) - (most.cumsum(0) - most)[columns]
    return columns, times[:, columns] <= copy


def _check_labels(name: str, labels: Tensor | None, n: int, device: torch.device) -> Tensor | None:
    """The labels on the device of the embeddings, checked to be one per embedding."""
    if labels is None:
        return None
    if tuple(labels.shape) != (n,):
        rows = "embeddings" if name == "labels" else "ref_emb"
        raise InvalidInputError(
            f"{name} must have shape ({n},), one label per row of {rows}, but has {tuple(labels.shape)}."
        )
    return labels.to(device)


def _check_index(position: int, index: Tensor, size: int, device: torch.device) -> Tensor:
    """The index as int64 on the device of the embeddings, checked to be one-dimensional, of integers and in range."""
    kind = ("anchors", "positives", "anchors of negatives", "negatives")[position]
    if index.dim() != 1 or index.is_floating_point() or index.dtype == torch.bool:
        raise InvalidInputError(
            f"the {kind} of indices_tuple must be a one-dimensional tensor of integers, but are {index.dtype} of shape "
            f"{tuple(index.shape)}."
        )
    wrong = (index < 0) | (index >= size)
    if bool(wrong.any()):
        raise InvalidInputError(
            f"the {kind} of indices_tuple must be between 0 and {size - 1}, but {int(wrong.sum())} of {len(index)} are "
            f"not, the first {int(index[wrong][0])}. Anchors index embeddings, the others index ref_emb if given."
        )
    return index.to(device, torch.int64)
