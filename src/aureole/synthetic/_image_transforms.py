"""Image transforms of a batch, with a separate blur width or crop window for each image."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import grid_sample

from aureole._validation import first_index
from aureole.errors import InvalidInputError

Images = Float[Tensor, "n c h w"]
Pictures = UInt8[Tensor, "n c h w"]


def blur_batch(images: Images, widths: Float[Tensor, " n"]) -> Images:
    """Images blurred by Gaussians of standard deviations ``widths``, in pixels; a width of 0 leaves an image unchanged.

    At the edge, the Gaussian is truncated to the image and renormalised.
    """
    outside = ~((widths >= 0) & widths.isfinite())
    if bool(outside.any()):
        raise InvalidInputError(
            f"widths must be finite and not negative, but widths{first_index(outside)} is {widths[outside][0]:g}."
        )
    down, across = (_kernel(widths.to(images), n)[:, None] for n in images.shape[-2:])
    return down @ images @ across.mT


def blur_pictures(pictures: Pictures, widths: Float[Tensor, " n"]) -> Pictures:
    """Pictures blurred by Gaussians of standard deviations ``widths``, in pixels, and rounded to bytes.

    Examples
    --------
    >>> picture = torch.tensor([[[[0, 0, 200, 0, 0]]]], dtype=torch.uint8)
    >>> blur_pictures(picture, torch.tensor([1.0]))[0, 0, 0]
    tensor([15, 51, 81, 51, 15], dtype=torch.uint8)
    """
    return blur_batch(pictures.float(), widths).round().clamp(0, 255).to(torch.uint8)


def _kernel(widths: Float[Tensor, " n"], pixels: int) -> Float[Tensor, "n pixels pixels"]:
    """The weights of all pixels of an axis in each blurred pixel."""
    at = torch.arange(pixels).to(widths)
    squares = (at[:, None] - at).square()
    sharp = widths == 0
    scale = torch.where(sharp, 1.0, widths)
    soft = torch.softmax(-squares / (2 * scale.square()[:, None, None]), -1)
    return torch.where(sharp[:, None, None], torch.eye(pixels).to(widths), soft)


def crop_batch(images: Images, boxes: Float[Tensor, "n 4"]) -> Images:
    """Images whose boxes (left, top, width, height, as fractions of the image's sides) fill the frame.

    Interpolation is bilinear and ignores pixels outside of the window: the result equals cropping and then resizing if
    the edges of the window are edges of pixels. Beyond the edge of the image, a window sees its reflection.
    """
    left, top, width, height = boxes.to(images).unsqueeze(-1).unbind(1)
    x = _positions(left, width, images.shape[-1]).unsqueeze(1)
    y = _positions(top, height, images.shape[-2]).unsqueeze(2)
    grid = torch.stack(torch.broadcast_tensors(x, y), -1)
    return grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def deteriorate(
    images: Pictures, sizes: Float[Tensor, " n"], generator: torch.Generator | None = None
) -> Pictures:
    """Images cropped to windows of ``sizes`` (fractions of the sides, in (0, 1]) and enlarged again to the frame.

    The windows are uniform in the image; without a generator they are central, as in the paper's code. A size of 1
    returns the image unchanged.

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


def _positions(start: Tensor, length: Tensor, pixels: int) -> Float[Tensor, "n {pixels}"]:
    """Sampling positions on an axis from -1 to 1: even in the window, but not within half a pixel of its ends."""
    steps = (torch.arange(pixels).to(start) + 0.5) / pixels
    margin = (length / 2).clamp(max=0.5 / pixels)
    at = (start + length * steps).clamp(start + margin, start + length - margin)
    return 2 * at - 1


def augment(images: Tensor, cropped: float, rng: torch.Generator, *, shifted: int = 0) -> Tensor:
    """Images in [0, 1], half of them mirrored, and a share ``cropped`` of them cropped to 25-100 % of their sides.

    With ``shifted``, all are also moved by up to that many pixels in both directions; the gap shows a reflection.
    """
    n = len(images)
    images = images.float() / 255
    if cropped > 0 or shifted > 0:
        size = torch.ones(n, 1)
        if cropped > 0:
            chosen = torch.rand(n, 1, generator=rng) < cropped
            size = torch.where(chosen, 0.25 + 0.75 * torch.rand(n, 1, generator=rng), 1.0)
        size = size.expand(n, 2)
        place = torch.rand(n, 2, generator=rng) * (1 - size)
        if shifted > 0:
            steps = torch.randint(-shifted, shifted + 1, (n, 2), generator=rng)
            place = place + steps / torch.tensor(images.shape[:-3:-1])
        images = crop_batch(images, torch.cat([place, size], -1))
    mirrored = torch.rand(n, 1, 1, 1, generator=rng) < 0.5
    return torch.where(mirrored, images.flip(-1), images)
