"""The networks, encoders and schedules of the paper, and other encoders of the controlled experiments."""

import math
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aureole.distributions import MixtureVMF
from aureole.models import IndependentEncoder
from aureole.models._encoders import Part
from aureole.models._heads import mixture_from
from aureole.models._networks import at_least_float32, last_linear
from aureole.training import Phase


def paper_mlp(n_in: int, n_out: int, *, dim: int | None = None, n_hidden: int = 6) -> nn.Sequential:
    """The paper's encoder network (supplement B.1): widths 10 D, then 50 D, then 10 D, leaky ReLUs, default init.

    ``dim`` is the D of the widths (default: ``n_in``). ``n_hidden`` counts the linear layers between the first and the
    last; 0 leaves three layers of width 10 D in all.

    Examples
    --------
    >>> [layer.out_features for layer in paper_mlp(10, 10) if isinstance(layer, nn.Linear)]
    [100, 500, 500, 500, 500, 500, 100, 10]
    """
    dim = n_in if dim is None else dim
    narrow, wide = 10 * dim, 50 * dim
    widths = [n_in, narrow, *([wide] * (n_hidden - 1)), narrow, n_out]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.LeakyReLU()]
    return nn.Sequential(*layers[:-1])


class SharedEncoder(IndependentEncoder):
    """One backbone: mu is its output (on the sphere) and log kappa a head on that output (the paper's B.8)."""

    def _outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        embedding = self.location(x)
        if self.part == "mu":
            return embedding, x.new_zeros(*x.shape[:-1], 1)
        return embedding, self.certainty(embedding)


class PaperEncoder(IndependentEncoder):
    """The paper's encoder: kappa = 1 + exp(g(x)), raw inputs, and g scaled to the true range before training."""

    floor = 1.0

    def _outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.location(x), self.certainty(x)

    @torch.no_grad()
    def match_range(self, x: Float[Tensor, "n d"], kappa_range: tuple[float, float]) -> None:
        """Scale g so that kappa spans the range on a sample of inputs."""
        low, high = (math.log(kappa - self.floor) for kappa in kappa_range)
        outputs = self.certainty(x)
        smallest, largest = outputs.min(), outputs.max()
        gain = (high - low) / (largest - smallest)
        last = last_linear(self.certainty)
        last.weight.mul_(gain)
        last.bias.sub_(smallest).mul_(gain).add_(low)
        self.log_kappa.zero_()


class MixtureEncoder(IndependentEncoder):
    """Posteriors of c components: mu from one network (c D outputs), log kappa and log weights from another (2 c).

    While the part "mu" is trained, all components coincide. Then they separate: each but the first is the first plus an
    offset. Components that start apart compete before any has found a mode, and training fails.
    """

    def __init__(
        self,
        location: nn.Module,
        certainty: nn.Module,
        *,
        n_in: int,
        n_components: int = 2,
        kappa: float = 10.0,
    ) -> None:
        super().__init__(location, certainty, n_in=n_in, kappa=kappa)
        self.n_components = n_components

    def forward(self, x: Float[Tensor, "*batch n"]) -> MixtureVMF:  # type: ignore[override]
        """The posteriors of inputs."""
        x = (x - self.centre) / self.scale
        raw = at_least_float32(self.location(x)).unflatten(-1, (self.n_components, -1))
        if self.part == "mu":
            deviation = scores = x.new_zeros(*x.shape[:-1], self.n_components)
            raw = torch.cat([raw[..., :1, :], torch.zeros_like(raw[..., 1:, :])], -2)
        else:
            deviation, scores = at_least_float32(self.certainty(x)).chunk(2, -1)
        return mixture_from(raw, self.log_kappa + deviation, scores)


def three_phases(steps: int, lr: float = 1e-3) -> list[Phase]:
    """First mu with a shared kappa (35 % of the steps), then kappa alone (20 %), then both at a third of the rate.

    The closed form does not need this: a single joint phase was faster and more accurate.
    """
    first, second = round(0.35 * steps), round(0.2 * steps)
    return [
        Phase("mu", first, lr),
        Phase("kappa", second, lr),
        Phase("joint", steps - first - second, lr / 3),
    ]


def two_phases(steps: int, lr: float = 1e-3) -> list[Phase]:
    """First mu, then kappa with mu frozen, half of the steps each: the phases of the paper with one-cycle rates.

    Monte Carlo losses need this: if mu is trained again after kappa, they contract mu and kappa diverges.
    """
    return [Phase("mu", steps // 2, lr), Phase("kappa", steps - steps // 2, lr)]


def paper_phases(steps: int, lr: float = 1e-4) -> list[Phase]:
    """The schedule of the paper: mu, then kappa, half of the steps each; the rate drops tenfold after each quarter.

    Examples
    --------
    >>> [(phase.part, phase.steps) for phase in paper_phases(10)]
    [('mu', 2), ('mu', 3), ('kappa', 2), ('kappa', 3)]
    """
    ends = [steps * quarter // 4 for quarter in range(5)]
    parts: tuple[Part, ...] = ("mu", "mu", "kappa", "kappa")
    return [
        Phase(part, ends[k + 1] - ends[k], lr * 0.1**k, "constant") for k, part in enumerate(parts)
    ]
