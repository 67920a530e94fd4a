"""A posterior encoder: any backbone, and a head that makes posteriors of its features."""

from collections.abc import Iterator

from torch import Tensor, nn

from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError

__all__ = ["PosteriorEncoder"]


class PosteriorEncoder(nn.Module):
    """``head(backbone(inputs))``, a posterior per input.

    Parameters
    ----------
    backbone
        Any module whose output the head takes.
    head
        Returns posteriors, as ``KappaFromNorm`` does.
    head_rate
        How many times the backbone's learning rate the head has: more than 1 where the backbone is pretrained.

    Examples
    --------
    >>> import torch
    >>> from aureole.models import CifarResNet, KappaFromNorm
    >>> encoder = PosteriorEncoder(CifarResNet(20), KappaFromNorm(64, 16))
    >>> encoder(torch.zeros(2, 3, 32, 32)).mu.shape
    torch.Size([2, 16])
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, *, head_rate: float = 1.0) -> None:
        super().__init__()
        self.backbone, self.head, self.head_rate = backbone, head, head_rate

    def forward(self, inputs: Tensor) -> VonMisesFisher:
        """The posteriors of inputs."""
        return self.head(self.backbone(inputs))

    def enter(self, part: str) -> None:
        """Check that both mu and kappa are to be trained: they come from one embedding."""
        if part != "joint":
            raise InvalidInputError(
                f"{type(self).__name__} has one embedding for mu and kappa and trains them jointly, not {part!r} alone."
            )

    def parameter_groups(self, lr: float) -> Iterator[dict]:
        """The parameters to train with their learning rates."""
        for module, rate in ((self.backbone, lr), (self.head, lr * self.head_rate)):
            chosen = [p for p in module.parameters() if p.requires_grad]
            if chosen:
                yield {"params": chosen, "lr": rate}
