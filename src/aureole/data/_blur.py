"""Blur of a batch of pictures, each by a width of its own."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from aureole._validation import first_index
from aureole.errors import InvalidInputError


def blur_batch(
    images: Float[Tensor, "n c h w"], widths: Float[Tensor, " n"]
) -> Float[Tensor, "n c h w"]:
    """Images under Gaussians of standard deviations ``widths``, in pixels; a width of 0 leaves an image as it is.

    At the edge the part of the Gaussian that lies in the image is used, and sums to 1 again.

    Examples
    --------
    >>> image = torch.tensor([[[[0.0, 0.0, 1.0, 0.0, 0.0]]]])
    >>> blur_batch(image, torch.tensor([1.0])).round(decimals=2)
    tensor([[[[0.0800, 0.2600, 0.4000, 0.2600, 0.0800]]]])
    """
    outside = ~((widths >= 0) & widths.isfinite())
    if bool(outside.any()):
        raise InvalidInputError(
            f"widths must be finite and not negative, but widths{first_index(outside)} is {widths[outside][0]:g}."
        )
    down, across = (_kernel(widths.to(images), n)[:, None] for n in images.shape[-2:])
    return down @ images @ across.mT


def blur_pictures(
    pictures: UInt8[Tensor, "n c h w"], widths: Float[Tensor, " n"]
) -> UInt8[Tensor, "n c h w"]:
    """Pictures under Gaussians of standard deviations ``widths``, in pixels, rounded to bytes again.

    Examples
    --------
    >>> picture = torch.tensor([[[[0, 0, 200, 0, 0]]]], dtype=torch.uint8)
    >>> blur_pictures(picture, torch.tensor([1.0]))[0, 0, 0]
    tensor([15, 51, 81, 51, 15], dtype=torch.uint8)
    """
    return blur_batch(pictures.float(), widths).round().clamp(0, 255).to(torch.uint8)


def _kernel(widths: Float[Tensor, " n"], pixels: int) -> Float[Tensor, "n pixels pixels"]:
    """What each pixel of an axis takes from each other."""
    at = torch.arange(pixels).to(widths)
    squares = (at[:, None] - at).square()
    sharp = widths == 0
    scale = torch.where(sharp, 1.0, widths)
    soft = torch.softmax(-squares / (2 * scale.square()[:, None, None]), -1)
    return torch.where(sharp[:, None, None], torch.eye(pixels).to(widths), soft)
