"""Download the data from its official addresses: every file is checked by size and hash, and appears whole or not."""

import hashlib
import http.client
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from aureole.errors import AureoleError, InvalidInputError
from aureole.records import file_hash

Progress = Callable[[str, int, int], None]

_BLOCK = 2**18
_TIMEOUT = 60  # seconds without a byte
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


@dataclass(frozen=True)
class Member:
    """A file to take out of an archive: its name in it, hash and size in bytes."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True)
class Source:
    """A file at its official address: hash, size in bytes, and where it goes in the data folder.

    An archive has ``members``: these are unpacked next to it and kept, and the archive is not.
    """

    url: str
    sha256: str
    size: int
    target: str
    members: tuple[Member, ...] = ()

    @property
    def name(self) -> str:
        """The name of the file, without folders."""
        return self.target.rpartition("/")[2]


_TORONTO = "https://www.cs.toronto.edu/~kriz"
_CIFAR10H = "https://raw.githubusercontent.com/jcpeterson/cifar-10h/master/data"
_PAPER = (
    "https://raw.githubusercontent.com/mkirchhof/Probabilistic_Contrastive_Learning/master/data"
)

SOURCES = (
    Source(
        f"{_TORONTO}/cifar-10-binary.tar.gz",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        170052171,
        "cifar10/cifar-10-binary.tar.gz",
        tuple(
            Member(f"cifar-10-batches-bin/{name}.bin", sha256, 30730000)
            for name, sha256 in (
                (
                    "data_batch_1",
                    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                ),
                (
                    "data_batch_2",
                    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                ),
                (
                    "data_batch_3",
                    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                ),
                (
                    "data_batch_4",
                    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                ),
                (
                    "data_batch_5",
                    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                ),
                ("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
            )
        ),
    ),
    Source(
        f"{_CIFAR10H}/cifar10h-counts.npy",
        "9b36b4550349af56c79083356312eb4af856cc5fd3caf1f669d40b9d0bbb69ff",
        800128,
        "cifar10_human/cifar10h-counts.npy",
    ),
    *(
        Source(f"{_PAPER}/{name}", sha256, 50000, f"cifar10h_folds/{name}")
        for name, sha256 in (
            ("idx_set_0.csv", "16f2eab55d0921418054d96d9384bdec8822ced71f9591baee08da3705f855cc"),
            ("idx_set_1.csv", "9a4e59fb2271248f0d7aca03b2e7a86b27c004766f9d4a97f9daa5a980363ff5"),
            ("idx_set_2.csv", "588a8cd6b0091ebd0e966ba0a7d45dfb73d13df2bd393ed126574faa1eb35e5e"),
            ("idx_set_3.csv", "b2e182a7c679a07d29c16c7d68ce8b3d25d5c19304e16d513d01a35f68b418a1"),
            ("idx_set_4.csv", "b8c9dc808ce670781aedd89a4e925f85280da5def389b40a4ed0eff6dbc186f5"),
            (
                "randomcrops_2000_0.25_1.0.csv",
                "3260f466e872f8f61f6d9faaa395c492383deca72051270a46019b79c13ee42d",
            ),
        )
    ),
)


def download(
    folder: Path,
    *,
    names: Collection[str] | None = None,
    base: str | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Paths of the files that are in the folder now: those with the right hash are kept, the others are fetched.

    ``names`` picks files among ``SOURCES``; ``base`` is the address of a mirror that holds them under their names;
    ``progress`` is called with a name, the bytes so far and the bytes in all.
    """
    known = {source.name: source for source in SOURCES}
    unknown = sorted(set(names or ()) - set(known))
    if unknown:
        raise InvalidInputError(f"names has {unknown[0]!r}, but the files are {', '.join(known)}.")
    chosen = [source for name, source in known.items() if names is None or name in names]
    return [path for source in chosen for path in _get(source, folder, base, progress)]


def _get(source: Source, folder: Path, base: str | None, progress: Progress | None) -> list[Path]:
    """Paths of the files that a source gives, fetched unless they are there."""
    target = folder / source.target
    url = source.url if base is None else f"{base.rstrip('/')}/{source.name}"
    if not source.members:
        if not _is_there(target, source):
            _fetch(url, target, source, progress)
        return [target]
    unpacked = [target.parent / member.name for member in source.members]
    if not all(map(_is_there, unpacked, source.members)):
        if not _is_there(target, source):
            _fetch(url, target, source, progress)
        _unpack(target, source.members)
        target.unlink()
    return unpacked


def _is_there(path: Path, wanted: Source | Member) -> bool:
    return path.is_file() and file_hash(path) == wanted.sha256


def _fetch(url: str, target: Path, source: Source, progress: Progress | None) -> None:
    """Get the file at the address into its place."""
    opener = urllib.request.build_opener(_CheckedRedirects)
    try:
        with opener.open(_checked(url), timeout=_TIMEOUT) as body:
            _store(body.read, target, source, progress)
    except (OSError, http.client.HTTPException) as error:
        raise AureoleError(
            f"{url} could not be fetched into {target}: {error}. Run the download again: "
            "the files that are there are kept."
        ) from error


def _unpack(archive: Path, members: tuple[Member, ...]) -> None:
    """Take the members, and nothing else, out of the archive into its folder: regular files of the known content."""
    wanted = {member.name: member for member in members}
    with tarfile.open(archive, "r:gz") as tar:
        for entry in tar:
            body = tar.extractfile(entry) if entry.name in wanted and entry.isreg() else None
            if body is not None:
                _store(body.read, archive.parent / entry.name, wanted.pop(entry.name), None)
    if wanted:
        raise AureoleError(f"{archive} has no regular file {', '.join(wanted)}. Delete it.")


def _store(
    read: Callable[[int], bytes], target: Path, wanted: Source | Member, progress: Progress | None
) -> None:
    """Write what is read to the target if size and hash are as wanted; else raise, and leave the target as it was."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".part-") as scratch:
        path = Path(scratch) / target.name
        with path.open("wb") as part:
            while size <= wanted.size and (block := read(_BLOCK)):
                part.write(block)
                digest.update(block)
                size += len(block)
                if progress is not None:
                    progress(target.name, size, wanted.size)
        if size != wanted.size:
            came = "more" if size > wanted.size else f"only {size}"
            raise AureoleError(
                f"{target} should have {wanted.size} bytes, but {came} came. Download it again."
            )
        if digest.hexdigest() != wanted.sha256:
            raise AureoleError(
                f"{target} should have the SHA-256 {wanted.sha256}, but {digest.hexdigest()} came. "
                "Download it again; if that stays, the file at the source has changed."
            )
        path.replace(target)


class _CheckedRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect must go to an address that would be allowed itself."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        return super().redirect_request(req, fp, code, msg, headers, _checked(newurl))


def _checked(url: str) -> str:
    """The address itself, if it is https, or http on this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        return url
    raise InvalidInputError(
        f"{url} is refused: an address must be https, or http on this machine's loopback."
    )
