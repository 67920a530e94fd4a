"""Image files of strangers: only listed formats are decoded, no program is started, and errors name the file."""

import ast
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from aureole.data._image_files import (
    open_picture,
    read_picture,
    read_rgb,
    read_square,
    read_thumbnail,
    write_picture,
)
from aureole.errors import InvalidInputError, MissingInputError

pytest.importorskip("PIL")
ROOT = Path(__file__).parents[2]
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.fixture
def ghostscript(tmp_path, monkeypatch):
    """The file that a program named gs, first in PATH, would create."""
    from PIL import EpsImagePlugin

    folder, called = tmp_path / "bin", tmp_path / "called"
    folder.mkdir()
    (folder / "gs").write_text(f"#!/bin/sh\ntouch {called}\n")
    (folder / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    return called


@pytest.mark.parametrize(
    "read",
    [
        read_picture,
        read_rgb,
        lambda path: read_rgb(path.read_bytes()),
        lambda path: read_square(path, 8),
        lambda path: read_thumbnail(path, 8),
    ],
)
def test_postscript_with_the_name_of_a_picture_starts_no_program(tmp_path, ghostscript, read):
    path = tmp_path / "photo.png"
    path.write_bytes(POSTSCRIPT)
    with pytest.raises(InvalidInputError, match=r"its format is not one of JPEG, PNG"):
        read(path)
    assert not ghostscript.exists()


@pytest.mark.parametrize("kind", ["PPM", "PCX", "TGA", "ICO", "DDS", "SGI"])
def test_other_formats_are_refused(tmp_path, kind):
    from PIL import Image

    path = tmp_path / "photo.png"
    Image.new("RGB", (16, 16)).save(path, kind)
    with pytest.raises(InvalidInputError, match=r"photo\.png cannot be read as an image"):
        read_picture(path)


@pytest.mark.parametrize("ending", ["png", "jpg", "webp", "gif", "bmp", "tiff"])
def test_listed_formats_are_read(tmp_path, ending):
    path = tmp_path / f"photo.{ending}"
    write_picture(torch.full((3, 4, 5), 128, dtype=torch.uint8), path)
    assert (read_picture(path).int() - 128).abs().max() <= 1
    with open_picture(path) as picture:
        assert picture.size == (5, 4)


def test_damaged_files_and_bombs_are_errors_that_name_the_file(tmp_path):
    from PIL import Image

    path = tmp_path / "photo.png"
    with pytest.raises(MissingInputError, match=r"photo\.png does not exist"):
        read_picture(path)
    write_picture(
        torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 64, 64), np.uint8)), path
    )
    good = path.read_bytes()
    for bad in (b"", good[:20], good[: len(good) // 2], good[:100] + b"\0" * 40 + good[140:]):
        path.write_bytes(bad)
        with pytest.raises(InvalidInputError, match=r"photo\.png cannot be read as an image"):
            read_picture(path)
    Image.new("1", (30_000, 3_000)).save(path)  # 90 million pixels
    with pytest.raises(InvalidInputError, match="decompression bomb"):
        read_picture(path)


def test_narrow_pictures_and_pictures_without_an_end_are_refused_before_decoding(tmp_path):
    """A WebP of 74 bytes, one pixel wide and 89 million high, would take gigabytes: the decoder holds whole rows."""
    from PIL import Image

    Image.new("1", (1, 16_385)).save(tmp_path / "narrow.png")
    with pytest.raises(InvalidInputError, match="1 x 16385 pixels, at most 16384 on a side"):
        read_picture(tmp_path / "narrow.png")
    gif = b"GIF89a\x01\x00\xff\xff\x00\x00\x00,\x00\x00\x00\x00\x01\x00\xff\xff\x00\x02\x00;"
    with pytest.raises(InvalidInputError, match="1 x 65535 pixels"):
        read_rgb(gif)
    os.mkfifo(tmp_path / "fifo.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    for name in ("fifo.png", "zero.png"):
        with pytest.raises(MissingInputError, match="not a regular file"):
            read_picture(tmp_path / name)


@pytest.mark.parametrize("folder", ["src", "paper/src", "tools"])
def test_pictures_are_opened_in_one_place(folder):
    places = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            if any(m.partition(".")[0] in ("PIL", "imageio", "cv2") for m in modules):
                places.append(path.name)
            if isinstance(node, ast.Attribute) and node.attr in ("imread", "decode_image"):
                places.append(path.name)
    assert places == (["_image_files.py"] if folder == "src" else [])
