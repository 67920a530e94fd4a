"""Pictures on disk as tensors. The one file that imports Pillow."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from aureole.errors import InvalidInputError, MissingInputError, MissingPackageError

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # others may start programs
_WARNINGS = Lock()


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
    with _opened(path) as picture:
        picture.thumbnail((side, side))
        buffer = io.BytesIO()
        picture.convert("RGB").save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def read_square(source: Path | bytes, side: int) -> UInt8[Tensor, "3 side side"]:
    """The middle square of the picture in a file from anywhere, or in its bytes, in RGB, scaled to ``side`` pixels."""
    with _opened(source) as picture:
        short = min(picture.size)
        left, top = ((length - short) // 2 for length in picture.size)
        box = (left, top, left + short, top + short)
        square = picture.convert("RGB").resize((side, side), box=box)
        pixels = np.array(square)
    return torch.from_numpy(pixels).permute(2, 0, 1)


def write_picture(picture: UInt8[Tensor, "3 h w"], path: Path) -> None:
    """Write a picture; the ending of the path names the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = picture.permute(1, 2, 0).contiguous().numpy()
    _pillow().fromarray(pixels).save(path, optimize=True)


@contextmanager
def _opened(source: Path | bytes) -> Iterator[Any]:
    """A picture of a known format and of a size that fits memory; errors of its decoding name the file."""
    image = _pillow()
    name = "this" if isinstance(source, bytes) else source
    try:
        # the filters of warnings belong to all threads: one at a time, and not while pixels are decoded
        with _WARNINGS, warnings.catch_warnings():
            warnings.simplefilter("error", image.DecompressionBombWarning)
            picture = image.open(
                io.BytesIO(source) if isinstance(source, bytes) else source, formats=_FORMATS
            )
        with picture:
            yield picture
    except _unidentified() as error:
        raise InvalidInputError(
            f"{name} can't be read as a picture: it is none of {', '.join(_FORMATS)}."
        ) from error
    except FileNotFoundError as error:
        raise MissingInputError(f"{name} is not there. Check the name.") from error
    except (
        OSError,
        ValueError,
        SyntaxError,
        image.DecompressionBombError,
        image.DecompressionBombWarning,
    ) as error:
        raise InvalidInputError(f"{name} can't be read as a picture: {error}.") from error


def _unidentified() -> type[Exception]:
    from PIL import UnidentifiedImageError

    return UnidentifiedImageError


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError("pictures need Pillow: pip install 'aureole[images]'.") from error
    return Image
