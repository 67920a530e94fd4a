"""Views: one posterior from several looks at an input."""

from jaxtyping import Float
from torch import Tensor, nn

from aureole.distributions import VonMisesFisher, fuse

__all__ = ["MirroredViews", "pool"]


def pool(posteriors: list[VonMisesFisher]) -> VonMisesFisher:
    r"""The vMF with the mean of the natural parameters, :math:`\kappa\mu = \frac1V \sum_v \kappa_v \mu_v`.

    It is the normalised geometric mean of the densities: views that agree keep their kappa, views that disagree lose
    some. (Their product, ``distributions.fuse``, would count one input as V independent observations.)

    Examples
    --------
    >>> import torch
    >>> mu = torch.eye(2)
    >>> pool([VonMisesFisher(mu[0], 3.0), VonMisesFisher(mu[1], 4.0)]).kappa
    tensor(2.5000)
    """
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
