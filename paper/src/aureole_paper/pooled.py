"""Encoders pooled over mirrored views or over the members of an ensemble."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aureole.distributions import VonMisesFisher, fuse
from aureole.sphere import align


def pool(posteriors: list[VonMisesFisher]) -> VonMisesFisher:
    r"""The vMF with the mean of the natural parameters, :math:`\kappa\mu = \frac1V \sum_v \kappa_v \mu_v`.

    It is the normalised geometric mean of the densities: views that agree keep their kappa, views that disagree get a
    smaller one. (Their product, ``distributions.fuse``, would count one input as V independent observations.)
    """
    if len(posteriors) == 1:
        return posteriors[0]
    product = fuse(*posteriors)
    return VonMisesFisher(product.mu, product.kappa / len(posteriors), validate_args=False)


class MirroredViews(nn.Module):
    """An image encoder whose posteriors are pooled over each image and its mirror image. Twice the cost."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Float[Tensor, "n c h w"] | Tensor) -> VonMisesFisher:
        """The pooled posteriors."""
        return pool([self.encoder(images), self.encoder(images.flip(-1))])


class Ensemble(nn.Module):
    """Several encoders of the same inputs, pooled.

    Encoders trained independently agree only up to a rotation, so all but the first are rotated to match the first on
    a sample of inputs.

    Examples
    --------
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
        posteriors = (encoder(inputs) for encoder in self.encoders)
        turned = ((q, q.mu @ turn.T) for q, turn in zip(posteriors, self.turns, strict=True))
        return pool([VonMisesFisher(mu, q.kappa, validate_args=False) for q, mu in turned])
