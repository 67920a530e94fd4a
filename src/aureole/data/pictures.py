"""Pictures on disk as tensors. The one file that imports Pillow."""

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from aureole.errors import AureoleError, InvalidInputError

__all__ = ["read_picture", "read_thumbnail", "write_picture"]

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # others may start programs


def read_picture(path: Path) -> UInt8[Tensor, "3 h w"]:
    """The picture in a file, in RGB."""
    try:
        with _pillow().open(path) as picture:
            pixels = np.array(picture.convert("RGB"))
    except OSError as error:
        raise InvalidInputError(f"{path} can't be read as a picture: {error}.") from error
    return torch.from_numpy(pixels).permute(2, 0, 1)


def read_thumbnail(path: Path, side: int) -> bytes:
    """A JPEG of the picture in a file, ``side`` pixels wide and high at most."""
    image = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", image.DecompressionBombWarning)
            with image.open(path, formats=_FORMATS) as picture:
                picture.thumbnail((side, side))
                buffer = io.BytesIO()
                picture.convert("RGB").save(buffer, "JPEG", quality=85)
    except (
        OSError,
        ValueError,
        SyntaxError,
        image.DecompressionBombError,
        image.DecompressionBombWarning,
    ) as error:
        raise InvalidInputError(f"{path} can't be read as a picture: {error}.") from error
    return buffer.getvalue()


def write_picture(picture: UInt8[Tensor, "3 h w"], path: Path) -> None:
    """Write a picture; the ending of the path names the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = picture.permute(1, 2, 0).contiguous().numpy()
    _pillow().fromarray(pixels).save(path, optimize=True)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise AureoleError("pictures need Pillow: pip install 'aureole[images]'.") from error
    return Image
