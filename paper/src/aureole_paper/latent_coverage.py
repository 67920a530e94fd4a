"""Coverage of credible caps where the true latents are known."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from aureole.distributions import VonMisesFisher
from aureole.evaluation._calibration import CAP_MASSES


def latent_coverage(
    posterior: VonMisesFisher,
    latents: Float[Tensor, "k n dim"],
    *,
    rotation: Float[Tensor, "dim dim"] | None = None,
    masses: Sequence[float] = CAP_MASSES,
) -> dict[float, float]:
    r"""Return the share of true latents inside the credible caps of their posteriors, by mass.

    ``rotation`` maps mu to the frame of the latents (``sphere.align`` estimates it); fit it on other inputs than those
    evaluated here. Heights 1 - cosine are compared, because cosines lose their digits near 1 where kappa is large.

    Examples
    --------
    >>> import torch
    >>> q = VonMisesFisher(torch.eye(5), 20.0)
    >>> rng = torch.Generator().manual_seed(0)
    >>> coverage = latent_coverage(q, q.sample((2000,), generator=rng), masses=(0.5, 0.9))
    >>> {mass: round(share, 2) for mass, share in coverage.items()}
    {0.5: 0.49, 0.9: 0.9}
    """
    mu = posterior.mu.double()
    mu = mu if rotation is None else mu @ rotation.T.double()
    height = 0.5 * (mu - latents.double()).square().sum(-1)  # 1 - cosine, with all its digits
    inside = {mass: height <= posterior.credible_height(mass) for mass in masses}
    return {mass: within.double().mean().item() for mass, within in inside.items()}
