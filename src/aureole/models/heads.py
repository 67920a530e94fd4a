"""Heads: from a backbone's features to a posterior."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aureole.distributions import VonMisesFisher
from aureole.sphere import normalize

__all__ = ["KappaFromNorm"]


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
            embedding = self.linear(features.float())
            kappa = self.log_scale.exp() * embedding.norm(dim=-1)
            return VonMisesFisher(normalize(embedding), kappa, validate_args=False)

    @torch.no_grad()
    def initialise(self, features: Float[Tensor, "n n_in"], *, kappa: float) -> None:
        """Set the scale so that the median kappa of a sample of features is this."""
        norm = self.linear(features.float()).norm(dim=-1)
        self.log_scale.copy_((kappa / norm.median()).log())

    @torch.no_grad()
    def start_from(self, classifier: nn.Linear) -> None:
        """Set e to a classifier's logits, centred, and turned at random into D dimensions (projected if D is fewer).

        Then cosines of embeddings are cosines of logits: the best start that a pretrained classifier offers.
        """
        weight = classifier.weight - classifier.weight.mean(0)
        bias = classifier.bias - classifier.bias.mean()
        dim, classes = self.linear.out_features, len(weight)
        turn = torch.linalg.qr(torch.randn(max(dim, classes), min(dim, classes)))[0]
        turn = turn if dim >= classes else turn.T
        self.linear.weight.copy_(turn @ weight)
        self.linear.bias.copy_(turn @ bias)
