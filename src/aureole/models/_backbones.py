"""Backbones for small images: the CIFAR ResNets of He et al. and a ResNet-18 with a stem for 32 x 32 pixels."""

from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from aureole.errors import InvalidInputError, MissingInputError
from aureole.models._saving import check_weights, read_weights

_COUNT = "num_batches_tracked"  # of a batch norm; files may leave it out
_LAST = ("linear.weight", "linear.bias")  # a classifier's last layer
# of the images that the published CIFAR-10 classifiers were trained on
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class _Block(nn.Module):
    """Two 3 x 3 convolutions around a shortcut; where the shape changes, a convolution or He's option A bridges it."""

    def __init__(self, n_in: int, n_out: int, stride: int, *, learned_shortcut: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.stride, self.margin = stride, (n_out - n_in) // 2
        self.shortcut = (
            nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False),
                nn.BatchNorm2d(n_out),
            )
            if learned_shortcut and (stride != 1 or n_in != n_out)
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        hidden = relu(self.bn1(self.conv1(x)))
        hidden = self.bn2(self.conv2(hidden))
        if self.shortcut is not None:
            x = self.shortcut(x)
        elif self.stride != 1 or self.margin:
            x = pad(x[..., :: self.stride, :: self.stride], (0, 0, 0, 0, self.margin, self.margin))
        return relu(hidden + x)


class _ImageNetwork(nn.Module):
    """A stem, stages of blocks, and the mean over pixels: uint8 images or floats in [0, 1] to features."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, widths: tuple[int, ...], blocks: tuple[int, ...], *, learned_shortcut: bool
    ) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1), persistent=False)
        self.conv1 = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.n_stages, self.n_out = len(widths), widths[-1]
        n_in = widths[0]
        for stage, (width, count) in enumerate(zip(widths, blocks, strict=True), 1):
            layers = []
            for index in range(count):
                stride = 2 if stage > 1 and index == 0 else 1
                layers.append(_Block(n_in, width, stride, learned_shortcut=learned_shortcut))
                n_in = width
            self.add_module(f"layer{stage}", nn.Sequential(*layers))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(
        self, images: UInt8[Tensor, "n 3 h w"] | Float[Tensor, "n 3 h w"]
    ) -> Float[Tensor, "n features"]:
        """The features [n, n_out] of images."""
        if images.dtype == torch.uint8:
            images = images.float() / 255
        x = (images - self.mean) / self.std
        x = x.contiguous(memory_format=torch.channels_last)
        x = relu(self.bn1(self.conv1(x)))
        for stage in range(1, self.n_stages + 1):
            x = getattr(self, f"layer{stage}")(x)
        return x.mean((2, 3))


class CifarResNet(_ImageNetwork):
    r"""He et al.'s ResNet for CIFAR of depth 6 n + 2, option A shortcuts, widths 16, 32, 64, without its classifier.

    Examples
    --------
    >>> CifarResNet(20)(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
    torch.Size([2, 64])
    """

    def __init__(self, depth: int = 20) -> None:
        if depth < 8 or (depth - 2) % 6:
            raise InvalidInputError(f"a CIFAR ResNet has depth 6 n + 2 (20, 56, ...), not {depth}.")
        super().__init__((16, 32, 64), ((depth - 2) // 6,) * 3, learned_shortcut=False)


class ResNet18(_ImageNetwork):
    """ResNet-18 with a 3 x 3 stem and no pooling after it, as is used for CIFAR; 512 features, 14 times the cost."""

    def __init__(self) -> None:
        super().__init__((64, 128, 256, 512), (2, 2, 2, 2), learned_shortcut=True)


def load_classifier(backbone: _ImageNetwork, path: Path | str) -> nn.Linear:
    """Load a classifier's weights (safetensors) into the backbone and return its last layer, trained on the classes."""
    if not Path(path).is_file():
        raise MissingInputError(
            f"there are no weights at {path}. Train from scratch, or give a data folder that has them."
        )
    weights = read_weights(Path(path))
    known = {k: v for k, v in backbone.state_dict().items() if not k.endswith(_COUNT)}
    # as many classes as the file has; what the backbone gives is what a row of the layer takes
    classes = len(weights[_LAST[1]]) if weights.get(_LAST[1], torch.empty(())).dim() == 1 else 1
    known[_LAST[0]], known[_LAST[1]] = (
        torch.empty(shape, device="meta") for shape in ((classes, backbone.n_out), (classes,))
    )
    try:
        check_weights(weights, known)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"the weights in {path} do not fit {type(backbone).__name__}: {error}"
        ) from error
    weight, bias = (weights.pop(name) for name in _LAST)
    backbone.load_state_dict(weights, strict=False)
    last = nn.Linear(weight.shape[1], weight.shape[0])
    last.load_state_dict({"weight": weight, "bias": bias})
    return last


def hold_statistics(network: nn.Module) -> nn.Module:
    """The network with its batch norms' statistics fixed for good, in training too: they stay as pretrained."""
    for module in network.modules():
        for name, child in module.named_children():
            if type(child) is nn.BatchNorm2d:
                like = child.state_dict().get("running_mean", torch.empty(()))
                held = _HeldBatchNorm(
                    child.num_features,
                    eps=child.eps,
                    affine=child.affine,
                    device=like.device,
                    dtype=like.dtype,
                )
                held.load_state_dict(child.state_dict())
                setattr(module, name, held.eval())
    return network


def holds_statistics(network: nn.Module) -> bool:
    """Whether the batch norms' statistics are fixed for good; an error where some are and some are not."""
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    held = sum(isinstance(m, _HeldBatchNorm) for m in norms)
    if held not in (0, len(norms)):
        raise InvalidInputError(
            f"{held} of {len(norms)} batch norms hold their statistics: hold all or none."
        )
    return held > 0


class _HeldBatchNorm(nn.BatchNorm2d):
    def train(self, mode: bool = True) -> "_HeldBatchNorm":  # noqa: ARG002
        return super().train(False)
