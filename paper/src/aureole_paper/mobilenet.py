"""MobileNetV2, a small encoder of photos: 1,280 features that were trained on ImageNet's classes.

Sandler et al. (2018), MobileNetV2: Inverted Residuals and Linear Bottlenecks.
"""

import zipfile
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from aureole.errors import InvalidInputError, MissingInputError
from aureole.models._networks import MEAN, STD
from aureole.models._saving import check_weights

# of each stage: expansion, channels, blocks, stride of the first
_STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
_COUNTER = "num_batches_tracked"


class MobileNetV2(nn.Module):
    """MobileNetV2 without its classifier: uint8 images or floats in [0, 1] to the 1,280 features before it.

    Images are enlarged or shrunk to ``side`` pixels (bicubic, kept in [0, 1]). The parts have the names that published
    weights have.
    """

    n_out = 1280
    mean: Tensor
    std: Tensor

    def __init__(self, side: int = 112) -> None:
        super().__init__()
        if side < 32:
            raise InvalidInputError(f"the network halves images five times: side {side} < 32.")
        self.side = side
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1), persistent=False)
        layers: list[nn.Module] = [_convolution(3, 32, 3, stride=2)]
        width = 32
        for expansion, n_out, count, stride in _STAGES:
            for index in range(count):
                layers.append(_Bottleneck(width, n_out, expansion, stride if index == 0 else 1))
                width = n_out
        layers.append(_convolution(width, self.n_out, 1))
        self.features = nn.Sequential(*layers)

    def forward(
        self, images: UInt8[Tensor, "n 3 h w"] | Float[Tensor, "n 3 h w"]
    ) -> Float[Tensor, "n features"]:
        """The features [n, 1280] of images: the mean over pixels of the last layer, so none is negative."""
        if images.dtype == torch.uint8:
            images = images.float() / 255
        if images.shape[-2:] != (self.side, self.side):
            shape = (self.side, self.side)
            images = nn.functional.interpolate(images, shape, mode="bicubic").clamp(0, 1)
        x = (images - self.mean) / self.std
        x = self.features(x.contiguous(memory_format=torch.channels_last))
        return x.float().mean((2, 3))


class _Bottleneck(nn.Module):
    """Widen, filter each channel, narrow without an activation; the input is added where the shape stays."""

    def __init__(self, n_in: int, n_out: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = n_in * expansion
        widen = [] if expansion == 1 else list(_convolution(n_in, hidden, 1))
        narrow = list(_convolution(hidden, n_out, 1))[:2]
        self.conv = nn.Sequential(
            *widen, *_convolution(hidden, hidden, 3, stride=stride, groups=hidden), *narrow
        )
        self.residual = stride == 1 and n_in == n_out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


def load_mobilenet(path: Path | str, side: int = 112) -> MobileNetV2:
    """MobileNetV2 with the weights of an .npz file, for inference: no gradients, batch norms folded in.

    The file must hold exactly the network's arrays, by name and shape; float16 is widened. It is read without pickle,
    so an untrusted file cannot run code.
    """
    network = MobileNetV2(side)
    wanted = {k: v for k, v in network.state_dict().items() if not k.endswith(_COUNTER)}
    if not Path(path).is_file():
        raise MissingInputError(f"no weights at {path}. Check the data folder.")
    try:
        # opened here, since numpy leaves a damaged file open
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: torch.from_numpy(np.array(stored[name])) for name in stored.files}
    except (OSError, ValueError, TypeError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise InvalidInputError(f"{path} is not an .npz file of numbers: {error}.") from error
    arrays = {k: v.float() if v.dtype == torch.float16 else v for k, v in arrays.items()}
    check_weights(arrays, wanted)
    network.load_state_dict(arrays, strict=False)
    network.requires_grad_(False).eval()
    _fold_batch_norms(network)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _convolution(
    n_in: int, n_out: int, size: int, *, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """A convolution that keeps the size up to its stride, a batch norm, and ReLU6."""
    convolution = nn.Conv2d(n_in, n_out, size, stride, padding=size // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(n_out), nn.ReLU6(inplace=True))


def _fold_batch_norms(network: nn.Module) -> None:
    """Make each batch norm part of the convolution before it: the same function at a lower cost."""
    for module in network.modules():
        if isinstance(module, nn.Sequential):
            for index in range(len(module) - 1):
                first, second = module[index], module[index + 1]
                if isinstance(first, nn.Conv2d) and isinstance(second, nn.BatchNorm2d):
                    module[index] = fuse_conv_bn_eval(first, second)
                    module[index + 1] = nn.Identity()
