"""Heads: modules that map a backbone's features to posteriors."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.models._networks import at_least_float32, hold_statistics, whiten_last_layer
from aureole.sphere import normalize

MAX_LOG_KAPPA = math.log(1e8)  # beyond this, a larger kappa does not change any digit of a loss
_APART = 0.3  # how far a new component's offset moves it from the first


class PosteriorHead(nn.Module):
    r"""The default head: :math:`\hat\mu` is linear in standardised features, :math:`\log\hat\kappa` a small network.

    Features are standardised by a batch norm. The last layer of the network starts at 0, so that every kappa starts at
    one value: its order has to be learned from the pairs and cannot start reversed. A batch norm on several ranks sees
    only a part of each batch: call ``initialise`` first, which holds its statistics.

    Parameters
    ----------
    n_in, dim
        Number of features, and the ambient dimension D of the sphere.
    width
        Hidden units of the network for kappa (default 64).
    kappa
        Initial kappa of all inputs (default 2 D).

    Examples
    --------
    >>> head = PosteriorHead(64, 16)
    >>> head(torch.randn(5, 64))
    VonMisesFisher(batch_shape=(5,), dim=16, kappa 32)
    """

    def __init__(self, n_in: int, dim: int, *, width: int = 64, kappa: float | None = None) -> None:
        super().__init__()
        kappa = 2.0 * dim if kappa is None else kappa
        if not 0 < kappa < math.inf:
            raise InvalidInputError(f"kappa must be positive and finite, but is {kappa!r}.")
        self.norm: nn.BatchNorm1d = nn.BatchNorm1d(n_in, affine=False)
        self.location = nn.Linear(n_in, dim)
        self.hidden = nn.Linear(n_in, width)
        self.certainty = nn.Linear(width, 1)
        nn.init.zeros_(self.certainty.weight)
        nn.init.constant_(self.certainty.bias, math.log(kappa))

    def forward(self, features: Float[Tensor, "*batch n_in"]) -> VonMisesFisher:
        """The posteriors of features, in float32, or in float64 after ``double()``."""
        with torch.autocast(features.device.type, enabled=False):
            standard = self._standardise(features)
            hidden = nn.functional.silu(linear_in_full(self.hidden, standard))
            log_kappa = linear_in_full(self.certainty, hidden).squeeze(-1)
            kappa = torch.exp(log_kappa.clamp(max=MAX_LOG_KAPPA))
            mu = normalize(linear_in_full(self.location, standard))
            return VonMisesFisher(mu, kappa, validate_args=False)

    def _standardise(self, features: Tensor) -> Tensor:
        """The features with mean 0 and variance 1: over the batch in training, else over what training has seen."""
        mean, variance = (self.norm.get_buffer(f"running_{name}") for name in ("mean", "var"))
        rows = features.reshape(-1, features.shape[-1])
        if self.norm.training and len(rows) > 1:
            rows = at_least_float32(self.norm(rows.to(mean.dtype)))
        else:  # one row alone has no variance
            mean, variance = at_least_float32(mean), at_least_float32(variance)
            rows = (rows.to(mean.dtype) - mean) / (variance + self.norm.eps).sqrt()
        return rows.view(features.shape)

    @torch.no_grad()
    def initialise(self, features: Float[Tensor, "n n_in"], *, kappa: float | None = None) -> None:
        """Hold the statistics of a sample of features for all training, whiten mu on it, and set every kappa.

        Not required. It helps where features do not change, or where batches are small or spread over ranks.
        """
        mean, variance = (self.norm.get_buffer(f"running_{name}") for name in ("mean", "var"))
        rows = features.to(mean)
        mean.copy_(rows.mean(0))
        variance.copy_(rows.var(0))
        hold_statistics(self)
        whiten_last_layer(self.location, self._standardise(rows))
        if kappa is not None:
            self.certainty.bias.fill_(math.log(kappa))


class KappaFromNorm(nn.Module):
    r"""A linear layer to e(x), with :math:`\hat\mu = e/|e|` and :math:`\hat\kappa = s\,|e|` (the paper's section 5.2).

    Inputs that show little have weak features, so e is short and kappa small: the features of a pretrained network
    already carry some uncertainty before the first training step. ``initialise`` sets s. In a network trained
    from scratch on inputs with added noise, where features may grow with the noise, kappa ended with the wrong order:
    use ``PosteriorHead`` there.

    Examples
    --------
    >>> head = KappaFromNorm(64, 16)
    >>> head(torch.randn(5, 64)).kappa.shape
    torch.Size([5])
    """

    def __init__(self, n_in: int, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(n_in, dim)
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, features: Float[Tensor, "*batch n_in"]) -> VonMisesFisher:
        """The posteriors of features, in float32, or in float64 after ``double()``."""
        with torch.autocast(features.device.type, enabled=False):
            embedding = linear_in_full(self.linear, features)
            kappa = self.log_scale.exp() * embedding.norm(dim=-1)
            return VonMisesFisher(normalize(embedding), kappa, validate_args=False)

    @torch.no_grad()
    def initialise(self, features: Float[Tensor, "n n_in"], *, kappa: float) -> None:
        """Set the scale so that the median kappa of a sample of features is ``kappa``."""
        norm = linear_in_full(self.linear, features).norm(dim=-1)
        self.log_scale.copy_((kappa / norm.median()).log())

    @torch.no_grad()
    def start_from(self, classifier: nn.Linear) -> None:
        """Set e to a classifier's centred logits, rotated at random into D dimensions (projected if D is smaller).

        Then cosines of embeddings are cosines of logits, the best start from a pretrained classifier.
        """
        weight = classifier.weight - classifier.weight.mean(0)
        bias = classifier.bias - classifier.bias.mean()
        dim, classes = self.linear.out_features, len(weight)
        turn = torch.linalg.qr(torch.randn(max(dim, classes), min(dim, classes)))[0].to(weight)
        turn = turn if dim >= classes else turn.T
        self.linear.weight.copy_(turn @ weight)
        self.linear.bias.copy_(turn @ bias)


def mixture_from(
    raw: Float[Tensor, "*batch k dim"],
    log_kappa: Float[Tensor, "*batch k"],
    scores: Float[Tensor, "*batch k"],
) -> MixtureVMF:
    r"""The mixture whose first component has the direction of raw[0], and each other that of raw[0] + 0.3 raw[j].

    Weights are the softmax of the scores; log kappa is clamped at log 1e8. Components start near one another, because
    components that start apart compete before any has found a mode, and training fails.
    """
    base, offsets = raw[..., :1, :], raw[..., 1:, :]
    mu = normalize(torch.cat([base, base + _APART * offsets], -2))
    kappa = torch.exp(log_kappa.clamp(max=MAX_LOG_KAPPA))
    return MixtureVMF(torch.softmax(scores, -1), mu, kappa, validate_args=False)


class MixtureHead(nn.Module):
    r"""Posteriors with several modes: linear layers to k directions, k log kappas and k weights.

    For inputs with a few distinct meanings, which a single vMF can only cover with a small kappa.
    ``ClosedFormInfoNCE.among`` takes mixtures. Train the part "mu" first, in which all components coincide and share
    one kappa, then "joint" (``Phase("mu", ...)`` and ``Phase("joint", ...)`` of ``aureole.training``): components that
    separate before mu is found compete for it.

    Parameters
    ----------
    n_in, dim
        Number of features, and the ambient dimension D of the sphere.
    n_components
        Number of modes of a posterior (default 2).
    kappa
        Initial kappa of all components (default 10).

    Examples
    --------
    >>> head = MixtureHead(64, 16, n_components=2)
    >>> head(torch.randn(5, 64))
    MixtureVMF(batch_shape=(5,), k=2, dim=16, kappa 10)
    """

    def __init__(self, n_in: int, dim: int, *, n_components: int = 2, kappa: float = 10.0) -> None:
        super().__init__()
        if n_components < 1 or not 0 < kappa < math.inf:
            raise InvalidInputError(
                f"n_components must be at least 1 and kappa positive, but they are {n_components} and {kappa!r}."
            )
        self.dim, self.n_components = dim, n_components
        self.location = nn.Linear(n_in, n_components * dim)
        self.certainty = nn.Linear(n_in, 2 * n_components)
        self.log_kappa = nn.Parameter(torch.tensor(math.log(kappa)))
        nn.init.zeros_(self.certainty.weight)  # start with one kappa and equal weights
        nn.init.zeros_(self.certainty.bias)
        self.part = "joint"

    def forward(self, features: Float[Tensor, "*batch n_in"]) -> MixtureVMF:
        """The posteriors of features, in float32, or in float64 after ``double()``."""
        with torch.autocast(features.device.type, enabled=False):
            raw = linear_in_full(self.location, features).unflatten(-1, (self.n_components, -1))
            deviation, scores = linear_in_full(self.certainty, features).chunk(2, -1)
            if self.part == "mu":
                first = raw.new_zeros(self.n_components, 1)
                first[0] = 1  # the rest is multiplied by 0, which keeps it in the graph for DDP
                raw, deviation, scores = raw * first, 0 * deviation, 0 * scores
            return mixture_from(raw, self.log_kappa + deviation, scores)

    def enter(self, part: str) -> None:
        """Train "mu", with all components merged into one, or "joint", everything."""
        if part not in ("mu", "joint"):
            raise InvalidInputError(f"MixtureHead trains 'mu' or 'joint', not {part!r}.")
        self.part = part

    @torch.no_grad()
    def initialise(self, features: Float[Tensor, "n n_in"], *, kappa: float) -> None:
        """Whiten the directions on a sample of features, and set every kappa to ``kappa``."""
        whiten_last_layer(self.location, features.to(self.location.weight.dtype))
        self.log_kappa.fill_(math.log(kappa))


def linear_in_full(layer: nn.Linear, features: Tensor) -> Tensor:
    """The layer's outputs in float32 or float64, even if a library has cast the layer to half precision."""
    weight = at_least_float32(layer.weight)
    bias = None if layer.bias is None else layer.bias.to(weight.dtype)
    return nn.functional.linear(features.to(weight.dtype), weight, bias)
