"""Baselines: uncertainties of frozen features to compare a posterior with, as functions of the features.

Each returns one uncertainty per row, higher for less certain rows. Those that learn use labels only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from aureole.errors import InvalidInputError
from aureole.sphere import normalize
from aureole.training import Phase

_CHUNK = 1000


@dataclass(frozen=True)
class ProbeSetting:
    """How a network on features is trained: AdamW, with one cycle of the learning rate.

    ``hidden`` units in one layer with ``dropout``, or none for a linear probe. Of three pairs of decay and
    length that were tried with hidden units, the defaults came within 0.002 of the lowest cross-entropy on held-out
    training images of CIFAR-10; the rest was not searched.
    """

    hidden: int = 0
    dropout: float = 0.5
    decay: float = 0.05
    steps: int = 1500
    batch: int = 256
    lr: float = 1e-3


class Probe(nn.Module):
    """A network on standardised features, linear or with one hidden layer; ``embed`` returns its last hidden layer."""

    centre: Tensor
    scale: Tensor

    def __init__(self, features: Float[Tensor, "n d"], n_out: int, setting: ProbeSetting) -> None:
        super().__init__()
        n_in, spread = features.shape[1], features.std(0)
        self.register_buffer("centre", features.mean(0))
        self.register_buffer("scale", torch.where(spread > 0, spread, 1.0))
        self.hidden = nn.Sequential()
        if setting.hidden:
            self.hidden.extend(
                [nn.Linear(n_in, setting.hidden), nn.ReLU(), nn.Dropout(setting.dropout)]
            )
        self.last = nn.Linear(setting.hidden or n_in, n_out)

    def embed(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n hidden"]:
        """The hidden layer's outputs, or the standardised features of a linear probe."""
        return self.hidden((features - self.centre) / self.scale)

    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n out"]:
        """The outputs, such as logits."""
        return self.last(self.embed(features))


def shortness(features: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """Minus the norm of each row: networks tend to give short features to unfamiliar inputs."""
    return -features.norm(dim=-1)


def nearest_cosines(
    known: Float[Tensor, "m d"], features: Float[Tensor, "n d"], neighbours: int
) -> Float[Tensor, "n k"]:
    """The cosines to the nearest known rows, largest first; m n d products, over blocks of rows."""
    if not 1 <= neighbours <= len(known):
        raise InvalidInputError(f"{len(known)} known rows do not have {neighbours} neighbours.")
    known = normalize(known)
    blocks = features.split(_CHUNK)
    return torch.cat([(normalize(block) @ known.T).topk(neighbours).values for block in blocks])


def fit_probe(
    features: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    setting: ProbeSetting,
    *,
    seed: int = 0,
) -> Probe:
    """A classifier of features, trained by cross-entropy with labels 0 ... C - 1; it returns logits."""

    def objective(probe: Probe, rows: Tensor) -> Tensor:
        return nn.functional.cross_entropy(probe(features[rows]), labels[rows])

    return _train(features, int(labels.max()) + 1, objective, setting, seed)


def softmax_uncertainty(probe: Probe, features: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """One minus a classifier's largest probability."""
    return 1 - _apply(probe, features).softmax(-1).amax(-1)


def entropy_of_mean(probes: Sequence[Probe], features: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """The entropy of the mean of several classifiers' probabilities: an ensemble's, or that of one."""
    mean = torch.stack([_apply(probe, features).softmax(-1) for probe in probes]).mean(0)
    return torch.special.entr(mean).sum(-1)


def mc_dropout(
    probe: Probe, features: Float[Tensor, "n d"], *, passes: int = 20, seed: int = 0
) -> Float[Tensor, " n"]:
    """The entropy of a classifier's mean probabilities over passes with dropout (Gal and Ghahramani 2016)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        probe.train()
        entropy = entropy_of_mean([probe] * passes, features)
        probe.eval()
    return entropy


def losses_on_unseen(
    features: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    setting: ProbeSetting,
    *,
    sources: Int[Tensor, " n"] | None = None,
    seed: int = 0,
    folds: int = 5,
) -> Float[Tensor, " n"]:
    """The cross-entropy of each row by a probe that was trained on the other folds: on its own rows it is too small.

    Rows of one source (an image and its crops) are in one fold.
    """
    losses = torch.empty(len(features))
    sources = torch.arange(len(features)) if sources is None else sources
    names, source = torch.unique(sources, return_inverse=True)
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
    for chosen in order.chunk(folds):
        fold = torch.isin(source, chosen)
        probe = fit_probe(features[~fold], labels[~fold], setting, seed=seed)
        logits = _apply(probe, features[fold])
        losses[fold] = nn.functional.cross_entropy(logits, labels[fold], reduction="none")
    return losses


def predict_loss(
    features: Float[Tensor, "n d"],
    losses: Float[Tensor, " n"],
    setting: ProbeSetting,
    *,
    seed: int = 0,
    ranked: bool = False,
) -> Callable[[Tensor], Tensor]:
    """A function from features to the loss a probe is predicted to have there (Kirchhof et al. 2024).

    A network learns the losses from the features, which get no gradient: by its squared error, or where ``ranked``
    by which of two rows has the larger loss (as in learning loss, Yoo and Kweon 2019, with a logistic margin).
    """

    def objective(probe: Probe, rows: Tensor) -> Tensor:
        guess, true = probe(features[rows]).squeeze(-1), losses[rows]
        if not ranked:
            return (nn.functional.softplus(guess) - true).square().mean()
        half = len(rows) // 2
        sign = torch.sign(true[:half] - true[half : 2 * half])
        return nn.functional.softplus(-sign * (guess[:half] - guess[half : 2 * half])).mean()

    predictor = _train(features, 1, objective, setting, seed)
    return lambda rows: _apply(predictor, rows).squeeze(-1)


def _train(
    features: Tensor,
    n_out: int,
    objective: Callable[[Probe, Tensor], Tensor],
    setting: ProbeSetting,
    seed: int,
) -> Probe:
    """The probe after its steps, in evaluation mode."""
    rng = torch.Generator().manual_seed(seed)
    phase = Phase("joint", setting.steps, setting.lr)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of the start, and of dropout
        probe = Probe(features, n_out, setting)
        optimiser = torch.optim.AdamW(
            probe.parameters(), lr=setting.lr, weight_decay=setting.decay, fused=True
        )
        for step in range(setting.steps):
            optimiser.param_groups[0]["lr"] = setting.lr * phase.rate(step)
            rows = torch.randint(len(features), (setting.batch,), generator=rng)
            loss = objective(probe, rows)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return probe.requires_grad_(False).eval()


@torch.no_grad()
def _apply(probe: Probe, features: Tensor) -> Tensor:
    return torch.cat([probe(chunk) for chunk in features.split(_CHUNK)])
