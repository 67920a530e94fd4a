"""The last linear layer of a network: found, and whitened on a sample of inputs."""

import torch
from torch import Tensor, nn

from aureole.errors import InvalidInputError

_FAINT = 0.01


@torch.no_grad()
def whiten_last_layer(network: nn.Module, x: Tensor) -> None:
    """Scale and shift a network's last linear layer so that its outputs have mean 0 and covariance near the identity.

    Directions with little variance (below 1 % of the mean) are not blown up: where a network has more outputs than its
    inputs have dimensions, that would make the layer's weights huge and training explode.
    """
    last = last_linear(network)
    outputs = network(x).float()
    mean = outputs.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov(outputs.T).double().reshape(len(mean), -1))
    scale = ((vectors * (values + _FAINT * values.mean()).rsqrt()) @ vectors.T).to(last.weight)
    last.weight.copy_(scale @ last.weight)
    last.bias.copy_(scale @ (last.bias - mean))


def last_linear(network: nn.Module) -> nn.Linear:
    """The last linear layer, or an error where there is none, or none with a bias."""
    found = [module for module in network.modules() if isinstance(module, nn.Linear)]
    if not found or found[-1].bias is None:
        raise InvalidInputError("the network must end in a linear layer with a bias.")
    return found[-1]
