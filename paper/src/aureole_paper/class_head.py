"""A head for classes: few large groups, among which an input can lie between two."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from aureole.data import PairBatch
from aureole.data._pairs import Groups
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.evaluation import Calibration, fit_calibration
from aureole.losses import ClosedFormInfoNCE
from aureole.models import KappaFromNorm
from aureole.sphere import inverse_mean_resultant_length, mean_resultant_length
from aureole.training import FitOptions, Phase, fit
from aureole.training._fit import Observer
from aureole.training._frozen_head import pair_rows
from aureole_paper.uncertainty_baselines import Probe, ProbeSetting, fit_probe

_CHUNK, _PAIRS = 8192, 4096


@dataclass(frozen=True)
class ClassHeadSetting:
    """How a class head is fitted: its votes by ``probe`` on most rows, its posteriors by pairs of the ``held_out``."""

    dim: int = 16
    kappa_pos: float = 16.0
    weight: float = 0.35
    probe: ProbeSetting = field(default_factory=lambda: ProbeSetting(hidden=256))
    held_out: float = 0.1
    steps: int = 200
    items: int = 256
    lr: float = 5e-4


class ClassHead(nn.Module):
    r"""Posteriors of features whose latent is near the place of one of C classes, but it is unknown which one.

    Features vote for classes, :math:`p = \mathrm{softmax}(g)`, and given the class, the latent follows a vMF around the
    class's place with a concentration :math:`\kappa_s`, for how much is seen at all: the norm of an embedding e. The
    single vMF nearest to that mixture (in the Kullback-Leibler sense) has its mean resultant length. For classes at
    right angles that is the following with w = 1; below, classes count as less far apart:

    .. math:: A_D(\hat\kappa) = A_D(\kappa_s)\,|p|^w.

    The direction is that of e. A single vMF that is trained only on pairs of classes needs no kappa to express
    that two classes are possible: its mu moves between the two, where no other class is.

    Parameters
    ----------
    probe
        A classifier with hidden units.
    dim
        The D of the sphere, at least the number of classes.
    weight
        The w of the votes. Its default was chosen on held-out training images of CIFAR-10.
    """

    def __init__(self, probe: Probe, dim: int, *, weight: float = 0.35) -> None:
        super().__init__()
        if dim < probe.last.out_features:
            raise InvalidInputError(
                f"{probe.last.out_features} classes need as many dimensions to be at right angles, not {dim}."
            )
        self.probe = probe
        self.seen = KappaFromNorm(probe.last.in_features, dim)
        self.seen.start_from(probe.last)
        self.weight = weight
        self.calibration = Calibration()

    @torch.no_grad()
    def forward(self, features: Float[Tensor, "n d"]) -> VonMisesFisher:
        """The posteriors of features."""
        parts = [self._posterior(chunk) for chunk in features.split(_CHUNK)]
        mu, kappa = (torch.cat(part) for part in zip(*parts, strict=True))
        return VonMisesFisher(mu, kappa, validate_args=False)

    def _posterior(self, features: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.probe.embed(features)
        seen = self.seen(hidden)
        votes = torch.softmax(self.probe.last(hidden), -1)
        # in float64: lengths close to 1 differ only in the last digits of float32
        length = mean_resultant_length(seen.kappa.double(), seen.dim)
        length = length * votes.double().norm(dim=-1) ** self.weight
        kappa = inverse_mean_resultant_length(length, seen.dim).float()
        return seen.mu, self.calibration(kappa)


def fit_class_head(
    features: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    setting: ClassHeadSetting,
    *,
    sources: Int[Tensor, " n"] | None = None,
    seed: int = 0,
    observer: Observer | None = None,
) -> ClassHead:
    """The head, fitted: the votes by cross-entropy on most rows, then e by the closed form of InfoNCE on the others.

    A probe is overconfident on its training rows, so the pairs are of other rows. Rows of one source (an image and its
    crops) stay on one side. Finally kappa is calibrated on pairs of the same rows.
    """
    sources = torch.arange(len(features)) if sources is None else sources
    rng = torch.Generator().manual_seed(seed)
    names, source = torch.unique(sources, return_inverse=True)
    count = max(1, round(setting.held_out * len(names)))
    chosen = torch.zeros(len(names), dtype=torch.bool)
    chosen[torch.randperm(len(names), generator=rng)[:count]] = True
    held = chosen[source]
    probe = fit_probe(features[~held], labels[~held], setting.probe, seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = ClassHead(probe, setting.dim, weight=setting.weight)
    with torch.no_grad():
        hidden = torch.cat([probe.embed(chunk) for chunk in features[held].split(_CHUNK)])
    head.seen.initialise(hidden, kappa=20.0)
    groups = Groups.of(labels[held])

    def draw(_: int, generator: torch.Generator) -> PairBatch:
        rows, pairs = groups.draw(setting.items, generator)
        return PairBatch(hidden[rows], pairs, float(len(pairs)))

    fitted = fit(
        _Trained(head.seen),
        ClosedFormInfoNCE(setting.kappa_pos),
        draw,
        phases=[Phase("joint", setting.steps, setting.lr)],
        options=FitOptions(seed=seed, average=0.9),
        observer=observer,
    )
    assert isinstance(fitted.encoder, _Trained)
    head.seen = fitted.encoder.head
    head.requires_grad_(False).eval()
    unseen = features[held]
    query, partner = (head(unseen[rows]) for rows in pair_rows(groups, _PAIRS, rng))
    head.calibration = fit_calibration(query, partner, kappa_pos=setting.kappa_pos)
    return head


class _Trained(nn.Module):
    """A head whose scale of kappa, a logarithm, learns faster than its weights."""

    def __init__(self, head: KappaFromNorm) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: Tensor) -> VonMisesFisher:
        return self.head(features)

    def enter(self, _: str) -> None:
        self.requires_grad_(True)

    def parameter_groups(self, lr: float) -> Iterator[dict]:
        yield {"params": list(self.head.linear.parameters()), "lr": lr}
        yield {"params": [self.head.log_scale], "lr": 50 * lr}


def shortened(setting: ClassHeadSetting, steps: int) -> ClassHeadSetting:
    """The setting with at most this many steps of each kind."""
    probe = replace(setting.probe, steps=min(steps, setting.probe.steps))
    return replace(setting, steps=min(steps, setting.steps), probe=probe)
