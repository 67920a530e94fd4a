"""Crops of a batch of images, each to a window of its own, resized back to the frame in one step."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from aureole._validation import first_index
from aureole.errors import InvalidInputError


def crop_batch(
    images: Float[Tensor, "n c h w"], boxes: Float[Tensor, "n 4"]
) -> Float[Tensor, "n c h w"]:
    """Images whose boxes (left, top, width, height, as fractions of the image's sides) fill the frame.

    Bilinear, and equal to cutting the window out and resizing it when its edges lie on edges of pixels: what lies
    outside of a window does not enter. A window that reaches over the edge of its image sees it reflected.

    Examples
    --------
    >>> image = torch.tensor([[[[0.0, 1.0], [2.0, 3.0]]]])
    >>> crop_batch(image, torch.tensor([[0.5, 0.0, 0.5, 1.0]]))
    tensor([[[[1., 1.],
              [3., 3.]]]])
    """
    left, top, width, height = boxes.to(images).unsqueeze(-1).unbind(1)
    x = _positions(left, width, images.shape[-1]).unsqueeze(1)
    y = _positions(top, height, images.shape[-2]).unsqueeze(2)
    grid = torch.stack(torch.broadcast_tensors(x, y), -1)
    return torch.nn.functional.grid_sample(
        images, grid, padding_mode="reflection", align_corners=False
    )


def deteriorate(
    images: UInt8[Tensor, "n c h w"],
    sizes: Float[Tensor, " n"],
    generator: torch.Generator | None = None,
) -> UInt8[Tensor, "n c h w"]:
    """Images cropped to windows of ``sizes`` (fractions of the sides, in (0, 1]) and enlarged again to the frame.

    The windows lie anywhere in the image, uniformly; without a generator in the middle, as in the paper's code. A
    size of 1 gives the image back exactly.

    Examples
    --------
    >>> image = torch.arange(4, dtype=torch.uint8).expand(1, 1, 4, 4)
    >>> deteriorate(image, torch.tensor([0.5]))[0, 0, 0]
    tensor([1, 1, 2, 2], dtype=torch.uint8)
    """
    outside = ~((sizes > 0) & (sizes <= 1))
    if bool(outside.any()):
        raise InvalidInputError(
            f"sizes must be in (0, 1], but sizes{first_index(outside)} is {sizes[outside][0]:g}."
        )
    size = sizes.unsqueeze(-1).expand(-1, 2)
    place = torch.full_like(size, 0.5)
    if generator is not None:
        place = torch.rand(size.shape, generator=generator).to(size)
    boxes = torch.cat([place * (1 - size), size], -1)
    return crop_batch(images.float(), boxes).round().to(torch.uint8)


def _positions(
    start: Float[Tensor, "n 1"], length: Float[Tensor, "n 1"], pixels: int
) -> Float[Tensor, "n {pixels}"]:
    """Where an axis is read, from -1 to 1: evenly in the window, but not within half a pixel of its ends."""
    steps = (torch.arange(pixels).to(start) + 0.5) / pixels
    margin = (length / 2).clamp(max=0.5 / pixels)
    at = (start + length * steps).clamp(start + margin, start + length - margin)
    return 2 * at - 1


def augment(images: Tensor, cropped: float, rng: torch.Generator) -> Tensor:
    """Images in [0, 1], half of them mirrored, and a share of them cropped as the deteriorated ones are."""
    n = len(images)
    images = images.float() / 255
    if cropped > 0:
        chosen = torch.rand(n, 1, generator=rng) < cropped
        size = torch.where(chosen, 0.25 + 0.75 * torch.rand(n, 1, generator=rng), 1.0).expand(n, 2)
        place = torch.rand(n, 2, generator=rng) * (1 - size)
        images = crop_batch(images, torch.cat([place, size], -1))
    mirrored = torch.rand(n, 1, 1, 1, generator=rng) < 0.5
    return torch.where(mirrored, images.flip(-1), images)
