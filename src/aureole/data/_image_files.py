"""Image files: reading and writing them, and finding them in folders. The only file that imports Pillow."""

import io
import math
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

from aureole._io import check_local, reporting_writes
from aureole.data._addresses import RemotePath
from aureole.errors import AureoleError, InvalidInputError, MissingInputError, MissingPackageError

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # decoders of others may start programs
_WARNINGS = Lock()
_LONGEST_NAME = 1024  # bytes, the limit for ids
_LARGEST_FILE = 2**28  # bytes
_LARGEST_AREA = 2**22  # pixels of a picture that is not reduced
_LONGEST_SIDE = 16_384  # pixels: a decoder may need gigabytes for one row of a narrow picture


@contextmanager
def open_picture(source: Any) -> Iterator[Any]:
    """An untrusted image file, its bytes, a Pillow image or an array [h, w, 3], opened as a Pillow image.

    The only place where Pillow opens anything. The format is detected from the content and must be one of JPEG, PNG,
    WEBP, GIF, BMP and TIFF: Pillow's decoders of other formats may start programs, such as Ghostscript for EPS. The
    number of pixels is read from the header and checked before decoding (at most 89 million). Errors name the file.

    Examples
    --------
    >>> with open_picture(np.zeros((2, 3, 3), np.uint8)) as picture:
    ...     picture.size
    (3, 2)
    >>> with open_picture(b"%!PS-Adobe-3.0 EPSF-3.0") as picture:
    ...     picture.load()
    Traceback (most recent call last):
    aureole.errors.InvalidInputError: the input cannot be read as an image: its format is not one of JPEG, PNG, ...
    """
    image = _pillow()
    if isinstance(source, image.Image):
        yield source
        return
    if isinstance(source, np.ndarray) and source.dtype == np.uint8 and source.shape[2:] == (3,):
        yield image.fromarray(source)
        return
    name = "the input" if isinstance(source, bytes) else source
    if isinstance(source, RemotePath):
        source = source.read(_LARGEST_FILE)
    if not isinstance(source, bytes | Path):
        raise InvalidInputError(
            f"a picture must be the bytes of a file or a path, not {type(source).__name__}."
        )
    if (
        isinstance(source, Path) and not source.is_file()
    ):  # reading a FIFO or a device might never end
        raise MissingInputError(f"{name} does not exist or is not a regular file. Check the path.")
    bombs = (image.DecompressionBombError, image.DecompressionBombWarning)
    try:
        # warning filters are shared by all threads: hold the lock, but not while pixels are decoded
        file = io.BytesIO(source) if isinstance(source, bytes) else source
        with _WARNINGS, warnings.catch_warnings():
            warnings.simplefilter("error", image.DecompressionBombWarning)
            picture = image.open(file, formats=_FORMATS)
        with picture:
            if max(picture.size) > _LONGEST_SIDE:
                raise InvalidInputError(
                    f"{name} has {picture.width} x {picture.height} pixels, at most {_LONGEST_SIDE} on a side."
                )
            yield picture
    except AureoleError:
        raise
    except image.UnidentifiedImageError as error:
        raise InvalidInputError(
            f"{name} cannot be read as an image: its format is not one of {', '.join(_FORMATS)}."
        ) from error
    except (OSError, ValueError, SyntaxError, *bombs) as error:
        raise InvalidInputError(f"{name} cannot be read as an image: {error}.") from error


def read_picture(path: Path) -> UInt8[Tensor, "3 h w"]:
    """The image in a file, in RGB."""
    with open_picture(path) as picture:
        pixels = np.array(picture.convert("RGB"))
    return torch.from_numpy(pixels).permute(2, 0, 1)


def read_thumbnail(source: Any, side: int) -> bytes:
    """A JPEG of an image as in ``open_picture``, at most ``side`` pixels wide and high."""
    with open_picture(source) as opened:
        picture = opened if isinstance(source, Path | bytes) else opened.copy()
        picture.thumbnail((side, side))
        buffer = io.BytesIO()
        picture.convert("RGB").save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def read_rgb(source: Any) -> Any:
    """An untrusted image file, its bytes, a Pillow image or an array [h, w, 3] as a Pillow image in RGB.

    Pictures of more than 4 megapixels are first reduced by a whole factor, which bounds memory.
    """
    with open_picture(source) as picture:
        factor = math.ceil(math.sqrt(picture.width * picture.height / _LARGEST_AREA))
        if factor == 1:
            return picture.convert("RGB")
        return _as_rgb(picture).reduce(factor)


def read_square(source: Any, side: int) -> UInt8[Tensor, "3 side side"]:
    """The central square of an image as in ``read_rgb``, scaled to ``side`` pixels; such a square is returned as is."""
    if isinstance(source, Tensor) and source.shape == (3, side, side):
        return source
    with open_picture(source) as picture:
        short = min(picture.size)
        left, top = ((length - short) // 2 for length in picture.size)
        box = (left, top, left + short, top + short)
        pixels = np.array(_as_rgb(picture).resize((side, side), box=box))
    return torch.from_numpy(pixels).permute(2, 0, 1)


def count_pixels(source: Path | bytes) -> int:
    """The number of pixels of an untrusted image file or its bytes, read from its header."""
    with open_picture(source) as picture:
        return picture.width * picture.height


def _as_rgb(picture: Any) -> Any:
    """A picture in RGB; one that is in RGB already is not copied."""
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def write_picture(picture: UInt8[Tensor, "3 h w"], path: Path) -> None:
    """Write an image in the format of the path's suffix."""
    check_local(path)
    pixels = picture.permute(1, 2, 0).contiguous().numpy()
    with reporting_writes(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _pillow().fromarray(pixels).save(path, optimize=True)


def find_picture(folder: Path, name: str) -> Path | None:
    """The image ``folder/name`` or ``folder/name.png`` (.jpg, ...), or None; never a file outside of the folder.

    ``folder`` must be resolved. The name may contain slashes. ``..``, absolute names, links to the outside, folders and
    suffixes of other formats give None.
    """
    parts = name.split("/")
    if not name or "\0" in name or "\\" in name or any(part in ("", ".", "..") for part in parts):
        return None
    if len(name.encode(errors="replace")) > _LONGEST_NAME:
        return None
    for ending in ("", *ENDINGS):
        path = folder / f"{name}{ending}"
        if path.suffix.lower() not in ENDINGS:
            continue
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            continue
        if real.is_relative_to(folder) and real.is_file():
            return real
    return None


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError("images need Pillow: pip install 'aureole[images]'.") from error
    return Image
