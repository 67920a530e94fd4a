"""Atomic writes: a file is written under a temporary name in its folder and renamed when it is complete.

Errors of the disk become ``WriteError``.
"""

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from aureole.errors import AureoleError, InvalidInputError, WriteError

PART = ".part"  # suffix of temporary files
_FULL = {
    errno.ENOSPC: "disk full",
    errno.EDQUOT: "disk full",
    errno.EFBIG: "file size limit reached",
}
_PLACE = ("ENOTDIR", "EISDIR", "EEXIST", "ENOTEMPTY", "ENAMETOOLONG", "EIO")
_REASONS = {getattr(errno, name): os.strerror(getattr(errno, name)) for name in _PLACE} | {
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/{1,2}(.*)")


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to that replaces ``path`` when the block ends; if the block fails, it is removed.

    Missing parent folders are created. As with ``open``, a replaced file keeps its mode, and the umask decides the mode
    of a new one. A full or read-only disk raises ``WriteError``.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "page.html"
    >>> with atomic_file(path) as file:
    ...     _ = file.write(b"<p>")
    ...     path.exists()
    False
    >>> path.read_bytes()
    b'<p>'
    """
    check_local(path)
    with reporting_writes(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}{PART}")
        try:
            with part.open("xb") as file:
                with suppress(FileNotFoundError):
                    part.chmod(stat.S_IMODE(path.stat().st_mode))
                yield file
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def atomic_write(path: Path, content: bytes | str) -> Path:
    """Write bytes, or text as UTF-8, atomically, and return the path."""
    with atomic_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return path


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder, to be created by the block, that is renamed to ``path`` when the block ends.

    The temporary name has the suffix of the path, which may select a format. What an interrupted process left there is
    removed first, so only one process may write a folder.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "gallery.lance"
    >>> with atomic_folder(path) as part:
    ...     part.mkdir()
    >>> path.is_dir(), len(list(path.parent.iterdir()))
    (True, 1)
    """
    check_local(path)
    with reporting_writes(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.stem}.partial{path.suffix}")
        try:
            _remove(part)
            yield part
            part.rename(path)
        finally:
            _remove(part)
            Path(f"{part}.lock").unlink(missing_ok=True)  # of writers of Lance tables


@contextmanager
def reporting_writes(path: Path | str) -> Iterator[None]:
    """Raise errors of a full, read-only or otherwise unsuitable disk as ``WriteError``, with what to do.

    Errors about other files, such as one that is read meanwhile, pass unchanged.

    Examples
    --------
    >>> with reporting_writes("scored.csv"):
    ...     raise OSError(errno.ENOSPC, "No space left on device")
    Traceback (most recent call last):
    aureole.errors.WriteError: disk full while writing scored.csv. Free some space and run it again.
    """
    try:
        yield
    except (AureoleError, FileNotFoundError):
        raise
    except OSError as error:
        number = error.errno or 0
        if number in _FULL:
            text = f"{_FULL[number]} while writing {path}. Free some space and run it again."
        elif number in _REASONS and _concerns(error.filename, path):
            text = f"{path} cannot be written: {_REASONS[number]}. Choose another place."
        else:
            raise
        failure = WriteError(text)
        failure.errno = error.errno
        raise failure from error


def _concerns(named: object, path: Path | str) -> bool:
    """Return True if an error's file is the path, one of its parents, or in the same folder, as temporary files are."""
    if not isinstance(named, str | os.PathLike):
        return named is None
    target, other = Path(path).absolute(), Path(named).absolute()
    return other.parent == target.parent or other in target.parents


def check_local(path: Path | str) -> None:
    """Raise if a path to write to is the address of an object store, which would become a folder named ``s3:``.

    Examples
    --------
    >>> check_local(Path("s3://bucket/scored.parquet"))
    Traceback (most recent call last):
    aureole.errors.InvalidInputError: s3://bucket/scored.parquet is the address of a remote store, ...
    """
    address = _SCHEME.fullmatch(os.fspath(path))
    if address is not None and not Path(f"{address[1]}:").exists():
        raise InvalidInputError(  # Path shortens s3:// to s3:/
            f"{address[1]}://{address[2]} is the address of a remote store, but only local files can be written here. "
            "Write to a local path and copy the result. Remote addresses are supported for Lance tables: "
            "s3://bucket/name.lance."
        )


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):  # a gallery in one file
        path.unlink()
