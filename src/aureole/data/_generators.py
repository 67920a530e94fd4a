"""Generators: random networks mu(x) and kappa(x) that define the true posteriors of a controlled process."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from aureole.errors import InvalidInputError
from aureole.sphere import normalize

Kind = Literal["paper", "whitened"]

_COLLAPSED = (
    0.5  # the paper draws again while all of 1000 mu(x) lie within this cosine of one another
)
_WIDTH = 10  # of the hidden layers in the paper, whose inputs and latents have ten dimensions
_SHAPING_STEPS = 5000


class Generator(nn.Module):
    r"""Networks :math:`\mu(x) = f(x)/|f(x)|` and :math:`\kappa(x)`, log-affine in softplus g(x), for x in [0, 1]^d.

    f has three linear layers and g two, with leaky ReLUs. kappa spans [kappa_min, kappa_max] on 1000 inputs; on others
    it may leave the range a little. An infinite range gives points. With ``shared`` g is a head on f(x) instead (the
    paper's B.8). Parameters are frozen: this is the truth.
    """

    low: Tensor
    gain: Tensor

    def __init__(self, dim: int, kappa_range: tuple[float, float], *, shared: bool = False) -> None:
        super().__init__()
        width = max(_WIDTH, dim)
        self.dim, self.kappa_range, self.shared = dim, kappa_range, shared
        self.location = nn.Sequential(
            nn.Linear(dim, width),
            nn.LeakyReLU(),
            nn.Linear(width, width),
            nn.LeakyReLU(),
            nn.Linear(width, dim),
        )
        self.certainty = nn.Sequential(nn.Linear(dim, width), nn.LeakyReLU(), nn.Linear(width, 1))
        self.register_buffer("low", torch.tensor(0.0))
        self.register_buffer("gain", torch.tensor(1.0))
        self.span_range(torch.rand(1000, dim))

    @torch.no_grad()
    def span_range(self, x: Float[Tensor, "n d"]) -> None:
        """Make kappa span its range on these inputs."""
        raw = softplus(self.certainty(self.location(x) if self.shared else x))
        self.low.copy_(raw.min())
        self.gain.copy_(1 / (raw.max() - raw.min()))

    def inputs(self, n: int, generator: torch.Generator | None = None) -> Float[Tensor, "n d"]:
        """Inputs, uniform on the cube."""
        return torch.rand(n, self.dim, generator=generator)

    @torch.no_grad()
    def forward(
        self, x: Float[Tensor, "*batch d"]
    ) -> tuple[Float[Tensor, "*batch d"], Float[Tensor, "*batch"]]:
        """(mu, kappa) of inputs."""
        embedding = self.location(x)
        mu = normalize(embedding)
        low, high = self.kappa_range
        if math.isinf(low):
            return mu, torch.full_like(mu[..., 0], math.inf)
        raw = softplus(self.certainty(embedding if self.shared else x)).squeeze(-1)
        share = (raw - self.low) * self.gain
        return mu, low * (high / low) ** share


def draw_generator(
    dim: int,
    kappa_range: tuple[float, float],
    *,
    kind: Kind = "paper",
    shared: bool = False,
    seed: int,
) -> Generator:
    """A generator for a seed, drawn again while its mu all lie close together or, whitened, in a plane.

    ``kind="paper"`` does as the public reference code of the paper does: mu(x) is first trained for 5,000 small steps
    to keep distances, without which random networks send all inputs to one spot. Most have a collapsed direction
    left (smallest eigenvalue of E[mu mu^T] below 1e-3 / D). ``kind="whitened"`` scales the last layer of a random
    network instead so that f(x) has mean 0 and the identity as covariance: mu fills the sphere, as the theorem assumes.
    The seed decides everything; the state of torch's global generator is left alone.
    """
    low, high = kappa_range
    if not 0 < low <= high or (math.isinf(high) and not math.isinf(low)):
        raise InvalidInputError(
            f"kappa_range must be 0 < low <= high, both finite or both inf, but is {kappa_range}."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for _ in range(100):
            found = Generator(dim, kappa_range, shared=shared)
            if kind == "paper":
                _keep_distances(found)
            elif not _whiten(found):
                continue
            if shared:  # its head saw another f when it was made
                found.span_range(found.inputs(1000))
            found.requires_grad_(False)
            mu, _ = found(found.inputs(1000))
            if (mu @ mu.T).min() < _COLLAPSED:
                return found
    raise InvalidInputError(
        f"100 generators of dimension {dim} were collapsed; try kind='whitened'."
    )


def _keep_distances(generator: Generator) -> None:
    """Train mu(x) so that cosines follow the distances of inputs, weighted towards the close ones."""
    optimiser = torch.optim.Adam(generator.location.parameters(), lr=0.01)
    i, j = torch.tril_indices(64, 64)
    for _ in range(_SHAPING_STEPS):
        x = generator.inputs(64)
        mu = normalize(generator.location(x))
        wanted = torch.cdist(x, x)[i, j]
        got = 1 - (mu @ mu.T)[i, j] / 2
        loss = ((wanted - got).square() * (math.sqrt(2) - got.detach()) ** 4).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


@torch.no_grad()
def _whiten(generator: Generator) -> bool:
    """Scale the last layer so that its outputs have mean 0 and the identity as covariance, if they have full rank."""
    last = generator.location[-1]
    assert isinstance(last, nn.Linear)
    outputs = generator.location(generator.inputs(10_000))
    mean = outputs.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov(outputs.T).double())
    if values[0] < 1e-12 * values[-1]:
        return False
    scale = ((vectors * values.rsqrt()) @ vectors.T).float()
    last.weight.copy_(scale @ last.weight)
    last.bias.copy_(scale @ (last.bias - mean))
    return True
