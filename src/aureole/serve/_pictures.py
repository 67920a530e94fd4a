"""Pictures of items: ids to files that exist under one folder, sent as small JPEGs made anew."""

import hashlib
import threading
from collections import OrderedDict
from pathlib import Path

from aureole.data import find_picture, read_thumbnail
from aureole.errors import MissingInputError


class Pictures:
    """A folder of pictures named after ids, and the thumbnails of those that were asked for last.

    What is sent was decoded and encoded again, so a file that is no picture is never sent, whatever its name.
    """

    def __init__(self, folder: Path, *, memory: int = 64 * 2**20) -> None:
        if not folder.is_dir():
            raise MissingInputError(f"{folder} is no folder of pictures. Check the name.")
        self._folder = folder.resolve()
        self._memory, self._used = memory, 0
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._known: OrderedDict[str, bool] = OrderedDict()
        self._lock = threading.Lock()

    def has(self, name: str) -> bool:
        """Whether there is a picture of an id, by the file system the first time."""
        with self._lock:
            if name in self._known:
                return self._known[name]
        found = find_picture(self._folder, name) is not None
        with self._lock:
            self._known[name] = found
            if len(self._known) > 100_000:
                self._known.popitem(last=False)
        return found

    def tag(self, name: str, side: int) -> tuple[Path, str] | None:
        """(The file, what changes whenever the answer would), or None where there is no picture."""
        path = find_picture(self._folder, name)
        if path is None:
            return None
        status = path.stat()
        text = f"{path}\0{status.st_mtime_ns}\0{status.st_size}\0{side}"
        return path, hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]

    def thumbnail(self, path: Path, tag: str, side: int) -> bytes:
        """The JPEG, at most ``side`` pixels wide and high."""
        with self._lock:
            if tag in self._kept:
                self._kept.move_to_end(tag)
                return self._kept[tag]
        found = read_thumbnail(path, side)
        with self._lock:
            self._used += len(found) - len(self._kept.pop(tag, b""))
            self._kept[tag] = found
            while self._used > self._memory and len(self._kept) > 1:
                self._used -= len(self._kept.popitem(last=False)[1])
        return found
