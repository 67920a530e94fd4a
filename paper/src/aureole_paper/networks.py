"""Networks of the CIFAR-10H experiments that the library does not need: a larger ResNet and a head with prototypes."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aureole.distributions import VonMisesFisher
from aureole.models import KappaFromNorm
from aureole.models._heads import linear_in_full
from aureole.models._networks import ImageNetwork, ResidualBlock, at_least_float32
from aureole.sphere import normalize


class LearnedShortcut(ResidualBlock):
    """A block whose shortcut is a convolution where the shape changes."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__(n_in, n_out, stride)
        self.shortcut = None
        if stride != 1 or n_in != n_out:
            conv = nn.Conv2d(n_in, n_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(n_out))

    def short(self, x: Tensor) -> Tensor:
        """Return the shortcut."""
        return x if self.shortcut is None else self.shortcut(x)


class ResNet18(ImageNetwork):
    """ResNet-18 with a 3 x 3 stem and no pooling after it, as usual for CIFAR; 512 features, 14 times the cost."""

    block = LearnedShortcut

    def __init__(self) -> None:
        super().__init__((64, 128, 256, 512), 2)


class KappaFromPrototypes(KappaFromNorm):
    r"""Two sources of uncertainty, whose variances add: :math:`1/\hat\kappa = 1/(s|e|) + w\,(1 - R^2)/(R (D - R^2))`.

    The first is that of ``KappaFromNorm``: the input shows little. The second is that it lies between several classes:
    features vote softly for learned prototypes on the sphere, :math:`p = \mathrm{softmax}(g/T)`, and
    :math:`R = |\sum_c p_c v_c|` is 1 if they vote for one and small if they disagree. The fraction is the inverse of
    Banerjee et al.'s (2005) estimate of the kappa whose mean resultant length is R. The direction is that of e.

    Parameters
    ----------
    n_in, dim
        Number of features, and the ambient dimension D of the sphere.
    n_prototypes
        Number of prototypes, such as the number of classes.
    temperature
        Initial T: the logits g of a pretrained classifier are overconfident at T = 1.

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
        if dim >= n_prototypes:  # orthogonal prototypes
            start = torch.linalg.qr(start)[0]
        self.prototypes = nn.Parameter(start[:n_prototypes])
        self.log_temperature = nn.Parameter(torch.tensor(temperature).log())
        self.log_weight = nn.Parameter(torch.zeros(()))

    def forward(self, features: Float[Tensor, "*batch n_in"]) -> VonMisesFisher:
        """The posteriors of features, in float32, or in float64 after ``double()``."""
        seen = super().forward(features)
        with torch.autocast(features.device.type, enabled=False):
            logits = linear_in_full(self.votes, features) * torch.exp(-self.log_temperature)
            mean = torch.softmax(logits, -1) @ normalize(at_least_float32(self.prototypes))
            square = mean.square().sum(-1)
            agreement = square.sqrt() * (seen.dim - square)
            variance = self.log_weight.exp() * (1 - square).clamp(min=0)
            kappa = seen.kappa * agreement / (agreement + seen.kappa * variance)
        return VonMisesFisher(seen.mu, kappa, validate_args=False)

    @torch.no_grad()
    def start_from(self, classifier: nn.Linear) -> None:
        """Set both e and the votes to a classifier's logits."""
        super().start_from(classifier)
        self.votes.load_state_dict(classifier.state_dict())
