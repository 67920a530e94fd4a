"""Thumbnails of the pictures of a gallery's items."""

import hashlib
import threading
from collections import OrderedDict
from functools import lru_cache
from pathlib import Path

from aureole.data._image_files import find_picture, read_thumbnail
from aureole.errors import MissingInputError


class Pictures:
    """A folder of pictures named after item ids, with a cache of thumbnails. Thread-safe.

    Thumbnails are decoded and re-encoded, so a file that is not a picture is never sent, whatever its name.
    """

    def __init__(self, folder: Path, *, cache_bytes: int = 64 * 2**20) -> None:
        if not folder.is_dir():
            raise MissingInputError(
                f"the folder of pictures {folder} does not exist. Check the path."
            )
        self._folder = folder.resolve()
        self._cache_bytes, self._used = cache_bytes, 0
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._exists = lru_cache(100_000)(lambda name: find_picture(self._folder, name) is not None)

    def has(self, name: str) -> bool:
        """Whether an item has a picture; cached."""
        return self._exists(name)

    def find(self, name: str, side: int) -> tuple[Path, str] | None:
        """(The file, an ETag of its thumbnail), or None if the item has no picture."""
        path = find_picture(self._folder, name)
        if path is None:
            return None
        status = path.stat()
        text = f"{path}\0{status.st_mtime_ns}\0{status.st_size}\0{side}"
        return path, hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]

    def thumbnail(self, path: Path, tag: str, side: int) -> bytes:
        """A JPEG of at most ``side`` pixels in width and height."""
        with self._lock:
            if tag in self._cache:
                self._cache.move_to_end(tag)
                return self._cache[tag]
        jpeg = read_thumbnail(path, side)
        with self._lock:
            self._used += len(jpeg) - len(self._cache.pop(tag, b""))
            self._cache[tag] = jpeg
            while self._used > self._cache_bytes and len(self._cache) > 1:
                self._used -= len(self._cache.popitem(last=False)[1])
        return jpeg
