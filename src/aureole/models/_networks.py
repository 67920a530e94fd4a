"""Networks: MLPs for vectors, residual networks for small images, and tools to prepare them for training."""

from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn.functional import pad, relu, silu

from aureole.errors import InvalidInputError

# channel statistics of the images that the published CIFAR-10 classifiers were trained on
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Images = UInt8[Tensor, "n 3 h w"] | Float[Tensor, "n 3 h w"]
_RIDGE = 0.01  # added to the eigenvalues when whitening, as a fraction of their mean


class ResidualMLP(nn.Module):
    r"""A linear layer, blocks :math:`h \leftarrow h + W_2\,\mathrm{silu}(W_1\,\mathrm{norm}(h))`, norm, linear layer.

    Blocks start as the identity (W_2 = 0) with He initialisation of W_1, so the first steps see a well-conditioned,
    nearly linear map.

    Examples
    --------
    >>> ResidualMLP(10, 3)(torch.zeros(5, 10)).shape
    torch.Size([5, 3])
    """

    def __init__(self, n_in: int, n_out: int, *, width: int = 256, n_blocks: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(n_in, width)
        self.n_blocks = n_blocks
        self.blocks = nn.ModuleList(_MLPBlock(width) for _ in range(n_blocks))
        self.norm = nn.LayerNorm(width)
        self.last = nn.Linear(width, n_out)

    def forward(self, x: Float[Tensor, "*batch n_in"]) -> Float[Tensor, "*batch n_out"]:
        """The outputs."""
        hidden = self.first(x)
        for block in self.blocks:
            hidden = block(hidden)
        return self.last(self.norm(hidden))


class _MLPBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)
        nn.init.kaiming_normal_(self.up.weight)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.down(silu(self.up(self.norm(hidden))))


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, which is He's option A where the shape changes."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.stride, self.margin = stride, (n_out - n_in) // 2

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        return relu(hidden + self.short(x))

    def short(self, x: Tensor) -> Tensor:
        """Return the shortcut: every ``stride``-th pixel, with channels of zeros on both sides."""
        if self.stride == 1 and not self.margin:
            return x
        return pad(x[..., :: self.stride, :: self.stride], (0, 0, 0, 0, self.margin, self.margin))


class ImageNetwork(nn.Module):
    """A stem, stages of blocks, and the mean over pixels: uint8 images or floats in [0, 1] to features."""

    block: type[ResidualBlock] = ResidualBlock
    mean: Tensor
    std: Tensor

    def __init__(self, widths: tuple[int, ...], n_blocks: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1), persistent=False)
        self.conv1 = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.n_stages, self.n_out = len(widths), widths[-1]
        n_in = widths[0]
        for stage, width in enumerate(widths, 1):
            first = self.block(n_in, width, 2 if stage > 1 else 1)
            rest = [self.block(width, width, 1) for _ in range(n_blocks - 1)]
            self.add_module(f"layer{stage}", nn.Sequential(first, *rest))
            n_in = width
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Images) -> Float[Tensor, "n features"]:
        """Return the features [n, n_out] of images."""
        if images.dtype == torch.uint8:
            images = images.float() / 255
        x = (images - self.mean) / self.std
        x = x.contiguous(memory_format=torch.channels_last)
        x = relu(self.bn1(self.conv1(x)))
        for stage in range(1, self.n_stages + 1):
            x = getattr(self, f"layer{stage}")(x)
        return x.mean((2, 3))


class CifarResNet(ImageNetwork):
    r"""He et al.'s ResNet for CIFAR of depth 6 n + 2, option A shortcuts, widths 16, 32, 64, without its classifier.

    Examples
    --------
    >>> CifarResNet(20)(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
    torch.Size([2, 64])
    """

    def __init__(self, depth: int = 20) -> None:
        if depth < 8 or (depth - 2) % 6:
            raise InvalidInputError(f"a CIFAR ResNet has depth 6 n + 2 (20, 56, ...), not {depth}.")
        super().__init__((16, 32, 64), (depth - 2) // 6)
        self.depth = depth


def hold_statistics(network: nn.Module) -> nn.Module:
    """Freeze the running statistics of all batch norms, in training mode too, and return the network."""
    for module in network.modules():
        for name, child in module.named_children():
            if type(child) in _HELD:
                like = child.state_dict().get("running_mean", torch.empty(()))
                held = _HELD[type(child)](child.num_features, eps=child.eps, affine=child.affine)
                held.to(like).load_state_dict(child.state_dict())
                setattr(module, name, held.eval())
    return network


def holds_statistics(network: nn.Module) -> bool:
    """Whether all batch norms' statistics are frozen; raises if only some are."""
    norms = [m for m in network.modules() if isinstance(m, tuple(_HELD))]
    held = sum(isinstance(m, tuple(_HELD.values())) for m in norms)
    if held not in (0, len(norms)):
        counts = f"{held} of {len(norms)}"
        raise InvalidInputError(f"{counts} batch norms have frozen statistics: freeze all or none.")
    return held > 0


class _HeldBatchNorm1d(nn.BatchNorm1d):
    def train(self, mode: bool = True) -> "_HeldBatchNorm1d":  # noqa: ARG002
        return super().train(False)


class _HeldBatchNorm2d(nn.BatchNorm2d):
    def train(self, mode: bool = True) -> "_HeldBatchNorm2d":  # noqa: ARG002
        return super().train(False)


_HELD: dict[type[nn.Module], Any] = {
    nn.BatchNorm1d: _HeldBatchNorm1d,
    nn.BatchNorm2d: _HeldBatchNorm2d,
}


@torch.no_grad()
def whiten_last_layer(network: nn.Module, x: Tensor) -> None:
    """Scale and shift a network's last linear layer so that its outputs have mean 0 and covariance near the identity.

    Directions with little variance (below 1 % of the mean) are not blown up: where a network has more outputs than its
    inputs have dimensions, that would make the layer's weights huge and training diverge.

    Parameters
    ----------
    network
        Its last linear layer must have a bias.
    x
        A sample of inputs [n, ...], more of them than outputs.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> layer, x = nn.Linear(4, 2), torch.randn(1000, 4)
    >>> whiten_last_layer(layer, x)
    >>> torch.cov(layer(x).T).diag().round(decimals=1).tolist()
    [1.0, 1.0]
    """
    last = last_linear(network)
    outputs = at_least_float32(network(x))
    mean = outputs.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov(outputs.T).double().reshape(len(mean), -1))
    scale = ((vectors * (values + _RIDGE * values.mean()).rsqrt()) @ vectors.T).to(last.weight)
    last.weight.copy_(scale @ last.weight)
    last.bias.copy_(scale @ (last.bias - mean))


def last_linear(network: nn.Module) -> nn.Linear:
    """The last linear layer; raises if the network has none, or if it has no bias."""
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    if not layers or layers[-1].bias is None:
        raise InvalidInputError("the network must end in a linear layer with a bias.")
    return layers[-1]


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor in float32 if it has half precision, otherwise unchanged: float64 stays float64."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def bfloat16_in_hardware() -> bool:
    """Whether matrix products in bfloat16 are faster than in float32: on GPUs, and on CPUs with AMX or AVX512-BF16."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported()
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
