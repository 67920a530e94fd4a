"""Heads: from a backbone's features to a posterior."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.models._last_layer import whiten_last_layer
from aureole.sphere import normalize

MAX_LOG_KAPPA = math.log(1e8)  # beyond, a posterior is a point to every digit of a loss
_APART = 0.3  # how far a new component's offset moves it from the first


class KappaFromNorm(nn.Module):
    r"""A linear layer to e(x), with :math:`\hat\mu = e/|e|` and :math:`\hat\kappa = s\,|e|` (the paper's section 5.2).

    Features that fade, because an input shows little, make a short e and so a small kappa: pretrained networks know
    something of their uncertainty before the first step. ``initialise`` sets s.

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
        """The posteriors of features, in float32."""
        with torch.autocast(features.device.type, enabled=False):
            embedding = _linear(self.linear, features)
            kappa = self.log_scale.exp() * embedding.norm(dim=-1)
            return VonMisesFisher(normalize(embedding), kappa, validate_args=False)

    @torch.no_grad()
    def initialise(self, features: Float[Tensor, "n n_in"], *, kappa: float) -> None:
        """Set the scale so that the median kappa of a sample of features is this."""
        norm = _linear(self.linear, features).norm(dim=-1)
        self.log_scale.copy_((kappa / norm.median()).log())

    @torch.no_grad()
    def start_from(self, classifier: nn.Linear) -> None:
        """Set e to a classifier's logits, centred, and turned at random into D dimensions (projected if D is fewer).

        Then cosines of embeddings are cosines of logits: the best start that a pretrained classifier offers.
        """
        weight = classifier.weight - classifier.weight.mean(0)
        bias = classifier.bias - classifier.bias.mean()
        dim, classes = self.linear.out_features, len(weight)
        turn = torch.linalg.qr(torch.randn(max(dim, classes), min(dim, classes)))[0].to(weight)
        turn = turn if dim >= classes else turn.T
        self.linear.weight.copy_(turn @ weight)
        self.linear.bias.copy_(turn @ bias)


class KappaFromPrototypes(KappaFromNorm):
    r"""Two reasons for doubt, whose variances add: :math:`1/\hat\kappa = 1/(s|e|) + w\,(1 - R^2)/(R (D - R^2))`.

    The first is that of ``KappaFromNorm``: little is seen of anything. The second is that what is seen lies between
    several things: features vote softly for learned prototypes on the sphere, :math:`p = \mathrm{softmax}(g/T)`, and
    :math:`R = |\sum_c p_c v_c|` is 1 if they vote for one and small if they disagree. The fraction is the inverse of
    Banerjee et al.'s (2005) estimate of the kappa whose mean resultant length is R. The direction is that of e.

    Parameters
    ----------
    n_in, dim
        Features, and the D of the sphere.
    n_prototypes
        How many things there are to vote for.
    temperature
        Where T starts: the logits g of a pretrained classifier are too sure of themselves at T = 1.

    Examples
    --------
    >>> head = KappaFromPrototypes(64, 16, n_prototypes=10)
    >>> features = torch.randn(5, 64)
    >>> bool((head(features).kappa < KappaFromNorm.forward(head, features).kappa).all())
    True
    """

    def __init__(
        self, n_in: int, dim: int, *, n_prototypes: int = 10, temperature: float = 4.0
    ) -> None:
        super().__init__(n_in, dim)
        self.votes = nn.Linear(n_in, n_prototypes)
        start = torch.randn(max(dim, n_prototypes), dim)
        if dim >= n_prototypes:  # as far from each other as may be
            start = torch.linalg.qr(start)[0]
        self.prototypes = nn.Parameter(start[:n_prototypes])
        self.log_temperature = nn.Parameter(torch.tensor(temperature).log())
        self.log_weight = nn.Parameter(torch.zeros(()))

    def forward(self, features: Float[Tensor, "*batch n_in"]) -> VonMisesFisher:
        """The posteriors of features, in float32."""
        seen = super().forward(features)
        with torch.autocast(features.device.type, enabled=False):
            logits = _linear(self.votes, features) * torch.exp(-self.log_temperature)
            mean = torch.softmax(logits, -1) @ normalize(self.prototypes.float())
            square = mean.square().sum(-1)
            agreement = square.sqrt() * (seen.dim - square)
            doubt = self.log_weight.exp() * (1 - square).clamp(min=0)
            kappa = seen.kappa * agreement / (agreement + seen.kappa * doubt)
        return VonMisesFisher(seen.mu, kappa, validate_args=False)

    @torch.no_grad()
    def start_from(self, classifier: nn.Linear) -> None:
        """Set both e and the votes to a classifier's logits."""
        super().start_from(classifier)
        self.votes.load_state_dict(classifier.state_dict())


def mixture_from(
    raw: Float[Tensor, "*batch k dim"],
    log_kappa: Float[Tensor, "*batch k"],
    scores: Float[Tensor, "*batch k"],
) -> MixtureVMF:
    r"""The mixture whose first component has the direction of raw[0], and each other that of raw[0] + 0.3 raw[j].

    Weights are the softmax of the scores; log kappa stops at log 1e8. Components that start apart compete before any
    has found a mode, and training fails: so they start near one another.

    Examples
    --------
    >>> mixture_from(torch.eye(3)[:2], torch.zeros(2), torch.zeros(2)).mu
    tensor([[1.0000, 0.0000, 0.0000],
            [0.9578, 0.2873, 0.0000]])
    """
    base, offsets = raw[..., :1, :], raw[..., 1:, :]
    mu = normalize(torch.cat([base, base + _APART * offsets], -2))
    kappa = torch.exp(log_kappa.clamp(max=MAX_LOG_KAPPA))
    return MixtureVMF(torch.softmax(scores, -1), mu, kappa, validate_args=False)


class MixtureHead(nn.Module):
    r"""Posteriors with several modes: linear layers to k directions, k log kappas and k weights.

    For inputs that may mean one of a few things: a single vMF can only be vague about them. ``ClosedFormInfoNCE.among``
    takes mixtures. Train the part "mu" first, in which all components are one with one kappa, then "joint"
    (``Phase("mu", ...)``, ``Phase("joint", ...)`` of ``aureole.training._schedule``): components that part before mu is
    found compete for it.

    Parameters
    ----------
    n_in, dim
        Features, and the D of the sphere.
    n_components
        How many modes a posterior may have.
    kappa
        Where every kappa starts.

    Examples
    --------
    >>> head = MixtureHead(64, 16, n_components=2)
    >>> head(torch.randn(5, 64))
    MixtureVMF(batch_shape=(5,), k=2, dim=16)
    """

    def __init__(self, n_in: int, dim: int, n_components: int = 2, *, kappa: float = 10.0) -> None:
        super().__init__()
        if n_components < 1 or not 0 < kappa < math.inf:
            raise InvalidInputError(
                f"a mixture has at least one component and a positive kappa, not {n_components} and {kappa!r}."
            )
        self.n_components = n_components
        self.location = nn.Linear(n_in, n_components * dim)
        self.certainty = nn.Linear(n_in, 2 * n_components)
        self.log_kappa = nn.Parameter(torch.tensor(math.log(kappa)))
        nn.init.zeros_(self.certainty.weight)  # one kappa and even weights, until there is a reason
        nn.init.zeros_(self.certainty.bias)
        self.part = "joint"

    def forward(self, features: Float[Tensor, "*batch n_in"]) -> MixtureVMF:
        """The posteriors of features, in float32."""
        with torch.autocast(features.device.type, enabled=False):
            raw = _linear(self.location, features).unflatten(-1, (self.n_components, -1))
            deviation, scores = _linear(self.certainty, features).chunk(2, -1)
            if self.part == "mu":
                still = raw.new_zeros(self.n_components, 1)
                still[0] = (
                    1  # offsets, kappas and weights wait; 0 times them keeps them in the graph
                )
                raw, deviation, scores = raw * still, 0 * deviation, 0 * scores
            return mixture_from(raw, self.log_kappa + deviation, scores)

    def enter(self, part: str) -> None:
        """Train "mu", with all components as one, or "joint", all of it."""
        if part not in ("mu", "joint"):
            raise InvalidInputError(f"MixtureHead trains 'mu' or 'joint', not {part!r}.")
        self.part = part

    @torch.no_grad()
    def initialise(self, features: Float[Tensor, "n n_in"], *, kappa: float) -> None:
        """Whiten the directions on a sample of features, and let every kappa start at this."""
        whiten_last_layer(self.location, features.float())
        self.log_kappa.fill_(math.log(kappa))


def _linear(
    layer: nn.Linear, features: Float[Tensor, "*batch n_in"]
) -> Float[Tensor, "*batch n_out"]:
    """The layer's outputs in float32, also where a library has cast the layer to half precision."""
    bias = None if layer.bias is None else layer.bias.float()
    return nn.functional.linear(features.float(), layer.weight.float(), bias)
