"""Folders of small pictures, and of invalid picture files, for tests and benchmarks."""

import struct
import zlib
from pathlib import Path

import numpy as np
import torch

from aureole.data._image_files import write_picture

__all__ = ["bomb", "make_corrupt", "make_pictures"]


def make_pictures(folder: Path, count: int, *, seed: int = 0, first: int = 0) -> list[str]:
    """Write ``count`` random pictures of 32 pixels, a hundred per folder, half of them JPEG; their names."""
    rng = np.random.default_rng(seed)
    names = []
    for i in range(first, first + count):
        ending = "png" if i % 2 else "jpg"
        name = f"{i // 100:04d}/{i:06d}.{ending}"
        coarse = rng.integers(0, 256, (3, 4, 4), dtype=np.uint8)
        write_picture(torch.from_numpy(coarse.repeat(8, 1).repeat(8, 2)), folder / name)
        names.append(name)
    return names


def make_corrupt(folder: Path, count: int) -> list[str]:
    """Write invalid pictures (truncated, empty, text, random bytes, 30,000 x 30,000 pixels); their names."""
    place = folder / "bad"
    place.mkdir(parents=True, exist_ok=True)
    write_picture(torch.zeros(3, 64, 64, dtype=torch.uint8), place / "whole.jpg")
    whole = (place / "whole.jpg").read_bytes()
    (place / "whole.jpg").unlink()
    kinds = {
        "truncated.jpg": whole[: len(whole) // 2],
        "empty.png": b"",
        "text.png": b"this is no picture\n",
        "noise.webp": bytes(range(256)),
        "bomb.png": bomb(30_000),
    }
    names = []
    for i in range(count):
        kind, data = list(kinds.items())[i % len(kinds)]
        (place / f"{i:04d}-{kind}").write_bytes(data)
        names.append(f"bad/{i:04d}-{kind}")
    return names


def bomb(side: int) -> bytes:
    """A PNG of a few hundred kilobytes that would decode to ``side`` x ``side`` pixels."""

    def part(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = part(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    packer = zlib.compressobj(9)
    row = bytes(1 + (side + 7) // 8)
    data = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + head + part(b"IDAT", data) + part(b"IEND", b"")
