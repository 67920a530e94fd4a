"""Addresses of object stores, such as ``s3://bucket/photos/``, opened through ``pyarrow.fs``.

Endpoint and credentials come from the usual variables (``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID``, ...), never from
the address. Nothing else is fetched from a network: addresses with other schemes are refused.
"""

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from aureole.errors import AureoleError, InvalidInputError, MissingInputError, MissingPackageError

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/{1,2}([^/].*)", re.DOTALL)
_SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs")
_LONGEST = 2048  # characters of an address
Result = TypeVar("Result")


class RemotePath(PurePosixPath):
    """A file or folder on an object store, printed as ``s3://bucket/key``."""

    def __str__(self) -> str:
        return re.sub(r"^([A-Za-z][A-Za-z0-9+.-]+):/", r"\1://", super().__str__())

    def check(self) -> None:
        """Raise if it cannot be a path: names in a table may be anything, such as ``../x`` or ``/etc/passwd``."""
        text, parts = str(self), self.parts
        known = len(parts) > 1 and parts[0].removesuffix(":").lower() in _SCHEMES
        if not known or ".." in parts or not text.isprintable() or len(text) > _LONGEST:
            raise InvalidInputError(
                f"{text[:60]!r} is not a valid address: it has '..', characters that are not printable, more than "
                f"{_LONGEST} characters, or lies outside of its bucket."
            )

    def is_file(self) -> bool:
        """Return whether it is a file."""
        return self._info().is_file

    def is_dir(self) -> bool:
        """Return whether it is a folder, that is, whether files exist below it."""
        return self._info().type.name == "Directory"

    def state(self) -> list[Any]:
        """Return the address, size and time of change of a file, which identify its contents."""
        info = self._info()
        return [str(self), info.size, info.mtime_ns]

    def entries(self, *, recursive: bool = False) -> list[Any]:
        """Return ``pyarrow.fs.FileInfo`` of what lies in the folder, sorted by path."""
        from pyarrow import fs

        found = self.call(
            lambda store, key: store.get_file_info(fs.FileSelector(key, recursive=recursive))
        )
        return sorted(found, key=lambda info: info.path)

    def open(self) -> Any:
        """Open the file for random access."""
        return self.call(lambda store, key: store.open_input_file(key))

    def stream(self) -> Any:
        """Open the file from its start on; one that ends in ``.gz`` is decompressed."""
        return self.call(lambda store, key: store.open_input_stream(key, compression="detect"))

    def read(self, limit: int) -> bytes:
        """Return the contents of a file; raises if it has more than ``limit`` bytes."""
        with self.open() as file:
            size = file.size()
            if size > limit:
                raise InvalidInputError(
                    f"{self} has {size:,} bytes, but the limit is {limit:,} bytes."
                )
            return self.call(lambda *_: file.read())

    def call(self, function: Callable[[Any, str], Result]) -> Result:
        """Return a function of the file system and the key; an error becomes one line with the address."""
        self.check()
        try:
            return function(_file_system(*self.parts[:2]), "/".join(self.parts[1:]))
        except AureoleError:
            raise
        except FileNotFoundError as error:
            raise MissingInputError(f"{self} does not exist. Check the address.") from error
        except (OSError, ValueError, NotImplementedError) as error:
            line = next(iter(str(error).splitlines()), type(error).__name__)
            raise InvalidInputError(
                f"{self} cannot be read: {line[:200].rstrip('.')}. Check the address, the network and the credentials."
            ) from error

    def _info(self) -> Any:
        return self.call(lambda store, key: store.get_file_info(key))


def resolve(source: Path | str) -> Path | RemotePath:
    """Return a local path, or the ``RemotePath`` of an address, also of one that ``Path`` shortened to ``s3:/bucket``.

    Examples
    --------
    >>> resolve("s3://bucket/a/b.parquet").name, str(resolve(Path("s3://bucket/a/")))
    ('b.parquet', 's3://bucket/a')
    >>> resolve("ftp://host/file")
    Traceback (most recent call last):
    aureole.errors.InvalidInputError: addresses that start with ftp:// cannot be read; supported: s3://, ...
    """
    match = _ADDRESS.fullmatch(os.fspath(source))
    if match is None or Path(os.fspath(source).partition("/")[0]).exists():
        return Path(source)
    scheme, rest = match[1].lower(), match[2]
    if scheme not in _SCHEMES:
        raise InvalidInputError(
            f"addresses that start with {scheme[:20]}:// cannot be read; supported: "
            f"{', '.join(f'{name}://' for name in _SCHEMES)}, and local paths."
        )
    if "@" in rest.partition("/")[0] and not scheme.startswith("abfs"):
        raise InvalidInputError(
            f"an address of {scheme}:// must not contain credentials: pass them in variables such as AWS_ACCESS_KEY_ID."
        )
    path = RemotePath(f"{scheme}:/{rest}")
    path.check()
    return path


def full_address(source: os.PathLike[str] | str) -> str:
    """Return a path as text; an address that ``Path`` has shortened to ``s3:/bucket`` is complete again."""
    return str(resolve(source)) if isinstance(source, Path) else os.fspath(source)


def is_remote(source: object) -> bool:
    """Return whether a source is the address of an object store."""
    return isinstance(source, str | Path) and isinstance(resolve(source), RemotePath)


def check_bucket(where: str) -> None:
    """Raise if the bucket of an address does not exist or cannot be read; does nothing for local paths."""
    path = resolve(where)
    if isinstance(path, RemotePath) and not (bucket := RemotePath(*path.parts[:2])).is_dir():
        raise MissingInputError(f"the bucket {bucket} does not exist. Check the name.")


def lance_options(where: str) -> dict[str, str] | None:
    """Return the storage options with which Lance opens an address: timeouts, and plain HTTP if the endpoint is such.

    Lance reads the endpoint and the credentials from the variables of AWS, but refuses ``http://`` without an option.
    """
    if not where.startswith("s3://"):
        return None
    options = {"connect_timeout": "3s", "client_max_retries": "2", "client_retry_timeout": "10"}
    endpoint = _endpoint()
    if endpoint is not None:
        options["aws_endpoint"] = endpoint
        options["allow_http"] = str(endpoint.startswith("http://")).lower()
        options["aws_region"] = _region() or "us-east-1"
    return options


def local_folder(source: Path | str) -> Path:
    """Return a local path as it is; a folder on an object store is copied to a temporary folder of this process."""
    path = resolve(source)
    return path if isinstance(path, Path) else _copied(path)


@lru_cache(maxsize=16)
def _copied(folder: RemotePath) -> Path:
    if not folder.is_dir():
        raise MissingInputError(f"{folder} does not exist or is not a folder. Check the address.")
    from pyarrow import fs

    for info in folder.entries(recursive=True):  # a key may contain '..'
        RemotePath(folder.parts[0], info.path).check()
    target = tempfile.mkdtemp(prefix="aureole-model-")
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    local = fs.LocalFileSystem()
    folder.call(lambda store, key: fs.copy_files(key, target, store, local))
    return Path(target)


@lru_cache(maxsize=32)
def _file_system(scheme: str, bucket: str) -> Any:
    try:
        from pyarrow import fs
    except ImportError as error:
        raise MissingPackageError(
            "object stores need pyarrow: pip install 'aureole[search]'."
        ) from error
    if scheme != "s3:":
        return fs.FileSystem.from_uri(f"{scheme}//{bucket}")[0]
    endpoint = _endpoint()
    region = _region() or ("us-east-1" if endpoint else fs.resolve_s3_region(bucket))
    timeouts: Any = {"connect_timeout": 3, "request_timeout": 10}  # the defaults are minutes
    return fs.S3FileSystem(region=region, endpoint_override=endpoint, **timeouts)


def _endpoint() -> str | None:
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _region() -> str | None:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
