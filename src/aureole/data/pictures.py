"""Pictures on disk as tensors. The one file that imports Pillow."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from aureole.errors import AureoleError, InvalidInputError

__all__ = ["read_picture", "write_picture"]


def read_picture(path: Path) -> UInt8[Tensor, "3 h w"]:
    """The picture in a file, in RGB."""
    try:
        with _pillow().open(path) as picture:
            pixels = np.array(picture.convert("RGB"))
    except OSError as error:
        raise InvalidInputError(f"{path} can't be read as a picture: {error}.") from error
    return torch.from_numpy(pixels).permute(2, 0, 1)


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
