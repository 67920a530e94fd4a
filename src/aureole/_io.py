"""Atomic writes: a file is written under a temporary name in its folder and renamed when it is complete."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to that replaces ``path`` when the block ends; if the block fails, it is removed.

    Missing parent folders are created. The file is readable by everyone (mode 644), like one written with ``open``.

    Examples
    --------
    >>> path = Path(tempfile.mkdtemp()) / "page.html"
    >>> with atomic_file(path) as file:
    ...     _ = file.write(b"<p>")
    ...     path.exists()
    False
    >>> path.read_bytes()
    b'<p>'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    os.close(handle)
    part = Path(name)
    try:
        with part.open("wb") as file:
            yield file
        part.chmod(0o644)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def atomic_write(path: Path, content: bytes | str) -> Path:
    """Write bytes, or text as UTF-8, atomically, and return the path."""
    with atomic_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return path
