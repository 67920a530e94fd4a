"""Atomic writes: a file is written under a temporary name in its folder and renamed when it is complete.

The process that writes holds a lock on the temporary file, so the next write of the same file recognises those that
killed processes left behind, and removes them. Errors of the disk become ``WriteError``.
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

try:
    import fcntl
except ImportError:  # Windows has no flock: temporary files of killed processes stay
    fcntl = None

PART = ".part"  # suffix of temporary files
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
_PLACE = (
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENOTEMPTY,
    errno.ENAMETOOLONG,
    errno.EIO,
)
_ERRNO = re.compile(r"\b(?:os error|errno) (\d{1,3})\b", re.IGNORECASE)  # in errors of Rust and C++
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/{1,2}")
_LONGEST_NAME = 100  # characters of a file's name that its temporary name repeats


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
        part, lock = _temporary(path)
        try:
            with part.open("wb") as file:
                with suppress(FileNotFoundError):
                    part.chmod(stat.S_IMODE(path.stat().st_mode))
                yield file
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        finally:
            os.close(lock)


def atomic_write(path: Path, content: bytes | str) -> Path:
    """Write bytes, or text as UTF-8, atomically, and return the path."""
    with atomic_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return path


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder, to be created by the block, that is renamed to ``path`` when the block ends.

    What a killed process left under the temporary name is removed first. Raises if another process is writing the
    same folder. The temporary name has the suffix of the path, which may select a format.

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
        guard = path.with_name(f".{path.stem}.partial{path.suffix}{PART}")
        lock = _claim(guard, create=True, needed=False)
        if lock is None:
            raise InvalidInputError(f"another process is writing {path}. Wait for it to end.")
        try:
            _remove_folder(part)
            yield part
            part.rename(path)
        finally:
            _remove_folder(part)
            guard.unlink(missing_ok=True)
            os.close(lock)


@contextmanager
def reporting_writes(path: Path | str) -> Iterator[None]:
    """Raise errors of a full, read-only or otherwise unsuitable disk as ``WriteError``, with what to do.

    Recognises ``OSError`` and errors of packages in Rust or C++ whose message has the number of a system error.

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
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        if number is None and (match := _ERRNO.search(str(error))):
            number = int(match.group(1))
        text = _write_message(number, path, error)
        if text is None:
            raise
        failure = WriteError(text)
        failure.errno = number
        raise failure from error


def check_local(path: Path | str) -> None:
    """Raise if a path to write to is the address of an object store, which would become a folder named ``s3:``.

    Examples
    --------
    >>> check_local(Path("s3://bucket/scored.parquet"))
    Traceback (most recent call last):
    aureole.errors.InvalidInputError: s3://bucket/scored.parquet is the address of a remote store, ...
    """
    text = os.fspath(path)
    scheme = _SCHEME.match(text)
    if scheme is not None and not Path(text.partition("/")[0]).exists():
        name, rest = scheme[0].rstrip("/"), text[scheme.end() :]  # Path shortens s3:// to s3:/
        raise InvalidInputError(
            f"{name}//{rest} is the address of a remote store, but only local files can be written here. Write to a "
            "local path and copy the result. Remote addresses are supported for Lance tables: s3://bucket/name.lance."
        )


def _write_message(number: int | None, path: Path | str, error: Exception) -> str | None:
    """What a ``WriteError`` says about a system error, or None for an error that is not about writing."""
    if number in _FULL:
        reason = "file size limit reached" if number == errno.EFBIG else "disk full"
        return f"{reason} while writing {path}. Free some space and run it again."
    named = getattr(error, "filename", None)
    if named is not None and not _same_place(str(named), str(path)):
        return None  # of another file, such as one that is read meanwhile
    if number in _FORBIDDEN:
        reason = "the file system is read-only" if number == errno.EROFS else "permission denied"
        return (
            f"{path} cannot be written: {reason}. Choose another place, or change its permissions."
        )
    if number in _PLACE:
        return f"{path} cannot be written: {os.strerror(number)}. Choose another place."
    return None


def _same_place(named: str, path: str) -> bool:
    """Whether a file is a path, one of its parent folders, or lies in the same folder, as temporary files do."""
    parent = os.path.dirname(os.path.abspath(path))
    folder = os.path.abspath(named)
    return os.path.dirname(folder) == parent or (parent + os.sep).startswith(folder + os.sep)


def _temporary(path: Path) -> tuple[Path, int]:
    """(A new temporary file for a path, its descriptor, which holds a lock); removes those of killed processes."""
    prefix = f".{path.name[:_LONGEST_NAME]}."
    with os.scandir(path.parent) as entries:
        left = [e.path for e in entries if e.name.startswith(prefix) and e.name.endswith(PART)]
    for name in left:
        lock = _claim(Path(name))
        if lock is not None:
            Path(name).unlink(missing_ok=True)
            os.close(lock)
    while True:
        part = path.with_name(f"{prefix}{secrets.token_hex(8)}{PART}")
        part.touch(exist_ok=False)
        lock = _claim(part, needed=False)
        if lock is not None:  # otherwise another process has just removed it as a leftover
            return part, lock


def _claim(path: Path, *, create: bool = False, needed: bool = True) -> int | None:
    """A descriptor of a file with an exclusive lock; None if another process holds it or the file was removed.

    On file systems without locks the result is None if the lock is ``needed``, else a descriptor without one.
    """
    try:
        handle = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644)
    except FileNotFoundError:
        return None
    try:
        claimed = not needed
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            claimed = True
        claimed = claimed and os.path.samestat(os.fstat(handle), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        claimed = False
    except OSError:  # such as a network file system without locks
        claimed = not needed
    if claimed:
        return handle
    os.close(handle)
    return None


def _remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        Path(f"{folder}.lock").unlink()  # of writers of Lance tables
