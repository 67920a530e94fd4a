"""The file at an address that ends in ``.live``: it names the version of a gallery in service, and the previous one."""

import json
import os
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from aureole.errors import DamagedGalleryError, InvalidInputError, MissingInputError
from aureole.retrieval._faiss_files import durable_file
from aureole.retrieval._integrity import read_json_file
from aureole.retrieval._store import shown_address, split_address

SUFFIX = ".live"
_FORMAT = "aureole-live-1"
_LONGEST = 4096  # characters of an address
_LARGEST = 2**16  # bytes of the file
_KIND = re.compile(r"[a-z-]{2,}:")  # of an encoder that is not a folder, such as timm:resnet50


@dataclass(frozen=True)
class LiveVersion:
    """A version of a gallery, and the model that embeds its queries, if it was named when the version was released.

    Attributes
    ----------
    gallery
        Its address. A relative path starts in the folder of the ``.live`` file, here and below.
    encoder
        The encoder, as ``aureole serve --encoder`` takes it.
    head
        The folder of the head on the encoder's vectors.
    calibrator
        The folder of the calibrator of matches.
    """

    gallery: str
    encoder: str | None = None
    head: str | None = None
    calibrator: str | None = None


@dataclass(frozen=True)
class Live:
    """What a ``.live`` file says.

    Attributes
    ----------
    number
        How often a version was released or rolled back; every switch increases it.
    current
        The version in service.
    previous
        The version before it, to which a rollback returns; None after the first release.
    """

    number: int
    current: LiveVersion
    previous: LiveVersion | None = None


def is_live(where: str | os.PathLike[str]) -> bool:
    """Whether an address ends in ``.live``.

    Examples
    --------
    >>> is_live("galleries/shop.live"), is_live("galleries/shop.lance")
    (True, False)
    """
    where = os.fspath(where)
    return where.endswith(SUFFIX) and "://" not in where


def read_live(path: Path) -> Live:
    """The content of a ``.live`` file, which is validated; paths in it are absolute or as they were written."""
    try:
        if path.stat().st_size > _LARGEST:
            raise DamagedGalleryError(f"{path} is damaged: it is larger than {_LARGEST:,} bytes.")
        found = read_json_file(path, _FORMAT)
    except FileNotFoundError as error:
        raise MissingInputError(
            f"{path} does not exist. `aureole index release GALLERY {path}` creates it."
        ) from error
    except OSError as error:
        raise DamagedGalleryError(f"{path} cannot be read: {error}.") from error
    number: Any = found.get("number")
    if type(number) is not int or not 1 <= number < 2**53:
        raise DamagedGalleryError(f"{path} is damaged: its number is invalid.")
    current = _version(found.get("current"), path)
    previous = None if found.get("previous") is None else _version(found["previous"], path)
    return Live(number, current, previous)


def write_live(path: Path, live: Live) -> None:
    """Replace a ``.live`` file, atomically and durably."""
    values = {
        "format": _FORMAT,
        "number": live.number,
        "current": vars(live.current),
        "previous": None if live.previous is None else vars(live.previous),
    }
    for version in (live.current, live.previous):
        if version is not None and (problem := _problem(vars(version))) is not None:
            raise InvalidInputError(f"this version cannot be released: {problem}.")
    with durable_file(path) as file:
        file.write(json.dumps(values, indent=1).encode())


def file_state(path: Path) -> tuple[int, int, int]:
    """What changes when a file is replaced: inode, time of change in nanoseconds, and size; cheap to ask for."""
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise MissingInputError(f"{path} does not exist any more.") from error
    except OSError as error:
        raise DamagedGalleryError(f"{path} cannot be read: {error}.") from error
    return status.st_ino, status.st_mtime_ns, status.st_size


def resolve(path: Path, place: str, *, encoder: bool = False) -> str:
    """The address or path of a version, or its encoder, with an absolute path; ``path`` is the ``.live`` file.

    Examples
    --------
    >>> resolve(Path("/data/shop.live"), "shop-2.lance")
    '/data/shop-2.lance'
    >>> resolve(Path("/data/shop.live"), "postgresql:///shop#items")
    'postgresql:///shop#items'
    """
    if "://" in place or (encoder and _KIND.match(place)):
        return place
    return os.path.join(os.path.dirname(os.path.abspath(path)), place)


def stored(path: Path, place: str, *, encoder: bool = False) -> str:
    """An address or path as the ``.live`` file ``path`` stores it: relative if it is in its folder, else absolute.

    Examples
    --------
    >>> stored(Path("/data/shop.live"), "/data/new/shop.lance"), stored(Path("/data/shop.live"), "/old/shop.lance")
    ('new/shop.lance', '/old/shop.lance')
    """
    if "://" in place or (encoder and _KIND.match(place)):
        return place
    folder, absolute = os.path.dirname(os.path.abspath(path)), os.path.abspath(place)
    return absolute.removeprefix(folder + os.sep)


def _version(values: Any, path: Path) -> LiveVersion:
    if not isinstance(values, dict):
        raise DamagedGalleryError(f"{path} is damaged: a version is not an object.")
    known: dict[str, Any] = {field.name: values.get(field.name) for field in fields(LiveVersion)}
    problem = _problem(known)
    if problem is not None:
        raise DamagedGalleryError(f"{path} is damaged: {problem}.")
    return LiveVersion(**known)


def _problem(values: dict[str, Any]) -> str | None:
    """What is wrong with an untrusted version, or None."""
    for name, place in values.items():
        if place is None and name != "gallery":
            continue
        if not isinstance(place, str) or not 1 <= len(place) <= _LONGEST or "\0" in place:
            return f"its {name} is not a text of 1 to {_LONGEST:,} characters"
        local = "://" not in place and not (name == "encoder" and _KIND.match(place))
        if local and ".." in Path(place).parts:
            return f"the path of its {name} contains '..'"
    gallery = values["gallery"]
    bare = split_address(gallery)[0].removesuffix("/")
    if bare.endswith(SUFFIX):
        return f"it names {gallery[:60]!r}, but a version cannot be another {SUFFIX} file"
    if gallery == "faiss://" or gallery.startswith("memory://"):
        return f"{gallery[:60]} is in the memory of one process"
    if _has_password(gallery):
        address = shown_address(gallery)
        return f"the address {address} has a password: put it in PGPASSWORD or ~/.pgpass"
    return None


def _has_password(address: str) -> bool:
    if "://" not in address:
        return False
    try:
        parts = urlsplit(address)
        query = dict(parse_qsl(parts.query))
    except ValueError:
        return True
    return parts.password is not None or not query.keys().isdisjoint({"password", "sslpassword"})
