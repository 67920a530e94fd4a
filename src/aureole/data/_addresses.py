"""Addresses of files on object stores, such as ``s3://bucket/photos/``, read through ``pyarrow.fs``.

``resolve`` turns an address into a ``RemotePath``, which has the few methods of ``pathlib.Path`` that readers need.
Endpoint and credentials come from the usual variables (``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID``, ...), never from
the address. Requests have timeouts, and the first contact with a store has a deadline.
"""

import atexit
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from aureole.errors import AureoleError, InvalidInputError, MissingInputError, MissingPackageError

_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/{1,2}(?P<rest>[^/].*)", re.DOTALL)
_SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs")
_LONGEST = 2048  # characters of an address
_CONNECT_SECONDS, _REQUEST_SECONDS, _ATTEMPTS = 3, 30, 3
_DEADLINE = 20.0  # seconds for the first contact with a store
_MOST_ENTRIES = 1_000_000  # files in one folder
_MOST_FILES, _LARGEST_MODEL = 1000, 2**36  # files and bytes of a model that is copied
_PIECE = 2**20
Result = TypeVar("Result")


@dataclass(frozen=True)
class RemotePath:
    """A file or folder on an object store; ``key`` is its bucket and path, without slashes at the ends."""

    scheme: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.key}"

    def __truediv__(self, name: str) -> "RemotePath":
        return RemotePath(self.scheme, f"{self.key}/{name.removeprefix('./')}")

    def check(self) -> None:
        """Raise if it cannot be a path: names in a table may be anything, such as ``../x`` or ``/etc/passwd``."""
        bucket, *parts = self.key.split("/")
        if len(self.key) > _LONGEST or not self.key.isprintable() or {"", ".", ".."} & {*parts}:
            raise InvalidInputError(
                f"{self.key[:60]!r} is not a valid path on {self.scheme}://: it has empty parts, '..', characters that "
                f"are not printable, or more than {_LONGEST} characters."
            )
        if not bucket:
            raise InvalidInputError(f"{self} names no bucket.")

    @property
    def name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(self.key).name

    @property
    def suffix(self) -> str:
        """The ending of the name, such as ``.parquet``."""
        return PurePosixPath(self.key).suffix

    @property
    def suffixes(self) -> list[str]:
        """The endings of the name."""
        return PurePosixPath(self.key).suffixes

    @property
    def parent(self) -> "RemotePath":
        """The folder of the file."""
        return RemotePath(self.scheme, self.key.rpartition("/")[0] or self.key)

    def relative_to(self, root: "RemotePath") -> PurePosixPath:
        """The path below a folder."""
        return PurePosixPath(self.key).relative_to(root.key)

    def is_file(self) -> bool:
        """Whether it is a file."""
        return self._info().is_file

    def is_dir(self) -> bool:
        """Whether it is a folder, that is, whether files exist below it."""
        return self._info().type.name == "Directory"

    def state(self) -> list[Any]:
        """The address, size and time of change of a file, which identify its contents."""
        info = self._info()
        return [str(self), info.size, info.mtime_ns]

    def entries(self) -> list[tuple[str, bool]]:
        """(Name, whether it is a folder) of what lies in the folder, sorted."""
        from pyarrow import fs

        found = self.call(lambda store: store.get_file_info(fs.FileSelector(self.key)))
        if len(found) > _MOST_ENTRIES:
            raise InvalidInputError(
                f"{self} has {len(found):,} files; the limit is {_MOST_ENTRIES:,}. Put them in Parquet or .tar files."
            )
        return sorted((info.base_name, info.type.name == "Directory") for info in found)

    def open(self) -> Any:
        """The file for random access, as pyarrow reads it."""
        return self.call(lambda store: store.open_input_file(self.key))

    def stream(self, compression: str | None = None) -> Any:
        """The file from its start on; "detect" decompresses a file that ends in ``.gz``."""
        return self.call(lambda store: store.open_input_stream(self.key, compression=compression))

    def read(self, limit: int) -> bytes:
        """The contents of a file; raises if it has more than ``limit`` bytes."""
        with self.open() as file:
            size = file.size()
            if size > limit:
                raise InvalidInputError(f"the file has {size:,} bytes; the limit is {limit:,}.")
            return self.call(lambda _: file.read())

    def call(self, function: Callable[[Any], Result]) -> Result:
        """The result of a function of the file system; its errors become one line."""
        self.check()
        store = _contacted(self.scheme, self.key.partition("/")[0])
        try:
            return function(store)
        except (OSError, ValueError, NotImplementedError) as error:
            raise _failure(str(self), error) from error

    def _info(self) -> Any:
        return self.call(lambda store: store.get_file_info(self.key))


def resolve(source: Path | str) -> Path | RemotePath:
    """A local path, or the ``RemotePath`` of an address; also of one that ``Path`` has shortened to ``s3:/bucket``.

    Examples
    --------
    >>> resolve("s3://bucket/a/b.parquet").name, str(resolve(Path("s3://bucket/a/")))
    ('b.parquet', 's3://bucket/a')
    >>> resolve("ftp://host/file")
    Traceback (most recent call last):
    aureole.errors.InvalidInputError: addresses that start with ftp:// cannot be read; supported: s3://, ...
    """
    text = os.fspath(source)
    match = _ADDRESS.fullmatch(text)
    if match is None or Path(text.partition("/")[0]).exists():
        return Path(source)
    scheme, rest = match["scheme"].lower(), match["rest"].rstrip("/")
    if scheme not in _SCHEMES:
        raise InvalidInputError(
            f"addresses that start with {scheme[:20]}:// cannot be read; supported: "
            f"{', '.join(f'{name}://' for name in _SCHEMES)}, and local paths."
        )
    if "@" in rest.partition("/")[0] and not scheme.startswith("abfs"):
        raise InvalidInputError(
            f"an address of {scheme}:// must not contain credentials: pass them in variables such as AWS_ACCESS_KEY_ID."
        )
    path = RemotePath(scheme, rest)
    path.check()
    return path


def full_address(source: os.PathLike[str] | str) -> str:
    """A path as text; an address of an object store that ``Path`` has shortened to ``s3:/bucket`` is complete again.

    Examples
    --------
    >>> full_address(Path("s3://bucket/a.lance")), full_address(Path("photos/")), full_address("photos/")
    ('s3://bucket/a.lance', 'photos', 'photos/')
    """
    if isinstance(source, Path) and is_remote(source):
        return str(resolve(source))
    return os.fspath(source)


def is_remote(source: object) -> bool:
    """Whether a source is the address of an object store that ``resolve`` supports."""
    return isinstance(source, str | Path) and isinstance(resolve(source), RemotePath)


def check_bucket(where: str) -> None:
    """Raise if the bucket of an address does not exist or cannot be reached; does nothing for local paths."""
    if where.startswith("s3://"):
        path = resolve(where)
        assert isinstance(path, RemotePath)
        _contacted(path.scheme, path.key.partition("/")[0])


def lance_options(where: str) -> dict[str, str] | None:
    """The storage options with which Lance opens an address: timeouts, and plain HTTP if the endpoint is such.

    Lance reads the endpoint and the credentials from the variables of AWS, but refuses ``http://`` without an option.
    """
    if not where.startswith("s3://"):
        return None
    options = {"connect_timeout": f"{_CONNECT_SECONDS}s", "client_max_retries": str(_ATTEMPTS)}
    options["client_retry_timeout"] = str(_REQUEST_SECONDS)
    endpoint = _endpoint()
    if endpoint is not None:
        options["aws_endpoint"] = endpoint
        options["allow_http"] = str(endpoint.startswith("http://")).lower()
    if "AWS_REGION" not in os.environ and "AWS_DEFAULT_REGION" not in os.environ and endpoint:
        options["aws_region"] = "us-east-1"
    return options


def local_folder(source: Path | str) -> Path:
    """A local path as it is; a folder on an object store is copied to a temporary folder of this process.

    At most 1,000 files and 64 GiB are copied. Each file must have the listed length and, on disk, the SHA-256 of
    what was received. Raises if a file of the folder changed meanwhile, so two versions of a model are never mixed.
    """
    path = resolve(source)
    return path if isinstance(path, Path) else _copied(path)


@lru_cache(maxsize=16)
def _copied(folder: RemotePath) -> Path:
    if not folder.is_dir():
        raise MissingInputError(f"{folder} does not exist or is not a folder. Check the address.")
    files = list(_below(folder, ""))
    sizes = {name: (folder / name).state() for name in files}
    total = sum(size for _, size, _ in sizes.values())
    if len(files) > _MOST_FILES or total > _LARGEST_MODEL:
        raise InvalidInputError(
            f"{folder} has {len(files):,} files and {total:,} bytes, which is no saved model; the limits are "
            f"{_MOST_FILES:,} and {_LARGEST_MODEL:,}."
        )
    target = Path(tempfile.mkdtemp(prefix="aureole-model-"))
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    for name in files:
        _copy_file(folder / name, target / name, sizes[name][1])
    if {name: (folder / name).state() for name in _below(folder, "")} != sizes:
        raise InvalidInputError(f"{folder} changed while it was copied. Run the command again.")
    return target


def _copy_file(source: RemotePath, target: Path, size: int) -> None:
    """Copy a file, and compare its length, and the hash of what was received with that of what was stored."""
    target.parent.mkdir(parents=True, exist_ok=True)
    received = sha256()
    with source.stream() as stream, target.open("wb") as file:
        while piece := source.call(lambda _: stream.read(_PIECE)):
            received.update(piece)
            file.write(piece)
    with target.open("rb") as file:
        stored = sha256()
        while piece := file.read(_PIECE):
            stored.update(piece)
    if target.stat().st_size != size or stored.digest() != received.digest():
        raise InvalidInputError(f"{source} was not copied completely. Run the command again.")


def _below(folder: RemotePath, prefix: str) -> Iterator[str]:
    """The paths of all files below a folder, hidden ones left out."""
    for name, is_folder in folder.entries():
        if name.startswith("."):
            continue
        if is_folder:
            yield from _below(folder / name, f"{prefix}{name}/")
        else:
            yield prefix + name


@lru_cache(maxsize=32)
def _contacted(scheme: str, bucket: str) -> Any:
    """The file system of a bucket, which has answered; raises within seconds if it does not."""
    address, outcome = f"{scheme}://{bucket}", {}

    def contact() -> None:
        try:
            store = _file_system(scheme, bucket)
            outcome["exists"] = store.get_file_info(bucket).type.name != "NotFound"
            outcome["store"] = store
        except Exception as error:
            outcome["error"] = error

    # the libraries of some stores retry for minutes, and cannot be interrupted
    thread = threading.Thread(target=contact, daemon=True)
    thread.start()
    thread.join(_DEADLINE)
    if isinstance(outcome.get("error"), AureoleError):
        raise outcome["error"]
    if "error" in outcome:
        raise _failure(address, outcome["error"]) from outcome["error"]
    if "store" not in outcome:
        raise InvalidInputError(
            f"{address} did not answer within {_DEADLINE:.0f} s. {_advice(scheme)}"
        )
    if not outcome["exists"]:
        raise MissingInputError(f"the bucket {address} does not exist. Check the name.")
    return outcome["store"]


def _file_system(scheme: str, bucket: str) -> Any:
    try:
        from pyarrow import fs
    except ImportError as error:
        raise MissingPackageError(
            "object stores need pyarrow: pip install 'aureole[tables]'."
        ) from error
    if scheme != "s3":
        return fs.FileSystem.from_uri(f"{scheme}://{bucket}")[0]
    endpoint = _endpoint()
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region is None and endpoint is None:
        region = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(
        region=region or "us-east-1",
        endpoint_override=endpoint,
        connect_timeout=_CONNECT_SECONDS,
        request_timeout=_REQUEST_SECONDS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
    )


def _endpoint() -> str | None:
    """The address of the S3 service, None for that of AWS."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _advice(scheme: str) -> str:
    if scheme != "s3":
        return "Check the address, the network and the credentials of the store."
    return "Check AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the network."


def _failure(address: str, error: Exception) -> AureoleError:
    """An error of a store as one line that names the address, without what the server sent."""
    if isinstance(error, AureoleError):
        return error
    text, scheme = str(error), address.partition(":")[0]
    if isinstance(error, FileNotFoundError) or "NOT_FOUND" in text or "NO_SUCH" in text:
        return MissingInputError(f"{address} does not exist. Check the address.")
    if "ACCESS_DENIED" in text or "HTTP status 403" in text or "Forbidden" in text:
        return InvalidInputError(f"access to {address} was denied. {_advice(scheme)}")
    if "NETWORK_CONNECTION" in text or "curlCode" in text or "resolve" in text.lower():
        return InvalidInputError(f"{address} cannot be reached. {_advice(scheme)}")
    line = next(iter(text.splitlines()), type(error).__name__)
    return InvalidInputError(f"{address} cannot be read: {line[:200].rstrip('.')}.")
