"""Views: one posterior from several looks at an input."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aureole.distributions import VonMisesFisher, fuse
from aureole.sphere import align


def pool(posteriors: list[VonMisesFisher]) -> VonMisesFisher:
    r"""The vMF with the mean of the natural parameters, :math:`\kappa\mu = \frac1V \sum_v \kappa_v \mu_v`.

    It is the normalised geometric mean of the densities: views that agree keep their kappa, views that disagree lose
    some; one view stays as it is. (Their product, ``distributions.fuse``, would count one input as V independent
    observations.)

    Examples
    --------
    >>> import torch
    >>> mu = torch.eye(2)
    >>> pool([VonMisesFisher(mu[0], 3.0), VonMisesFisher(mu[1], 4.0)]).kappa
    tensor(2.5000)
    """
    if len(posteriors) == 1:
        return posteriors[0]
    product = fuse(*posteriors)
    return VonMisesFisher(product.mu, product.kappa / len(posteriors), validate_args=False)


class MirroredViews(nn.Module):
    """An encoder of images that looks at each image and at its mirror image and pools what it saw. Twice the cost."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Float[Tensor, "n c h w"] | Tensor) -> VonMisesFisher:
        """The pooled posteriors."""
        return pool([self.encoder(images), self.encoder(images.flip(-1))])


class Ensemble(nn.Module):
    """Several encoders of the same inputs, pooled. Encoders that were trained apart agree up to a rotation only.

    So a sample of inputs is encoded by all, and each but the first turned to the first.

    Examples
    --------
    >>> import torch
    >>> from aureole.models import KappaFromNorm
    >>> heads, features = [KappaFromNorm(6, 3), KappaFromNorm(6, 3)], torch.randn(50, 6)
    >>> Ensemble(heads, features)(features).mu.shape
    torch.Size([50, 3])
    """

    turns: Tensor

    def __init__(self, encoders: Sequence[nn.Module], sample: Tensor) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)
        with torch.no_grad():
            first, *others = (encoder(sample).mu for encoder in encoders)
            turns = [align(mu, first) for mu in (first, *others)]
        self.register_buffer("turns", torch.stack(turns))

    def forward(self, inputs: Tensor) -> VonMisesFisher:
        """The pooled posteriors."""
        found = (encoder(inputs) for encoder in self.encoders)
        turned = [
            VonMisesFisher(q.mu @ turn.T, q.kappa, validate_args=False)
            for q, turn in zip(found, self.turns, strict=True)
        ]
        return pool(turned)
