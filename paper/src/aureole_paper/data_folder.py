"""The data folder: where the data sets are stored, and a download of those with an official address."""

import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pooch

from aureole.errors import AureoleError, MissingInputError
from aureole.records import file_hash

_TORONTO = "https://www.cs.toronto.edu/~kriz"
_CIFAR10H = "https://raw.githubusercontent.com/jcpeterson/cifar-10h/master/data"
_PAPER = (
    "https://raw.githubusercontent.com/mkirchhof/Probabilistic_Contrastive_Learning/master/data"
)
# data sets that you have to download yourself, by the first letters of their file names
_ORIGINS = {
    "multi30k_": "Multi30k (github.com/multi30k/dataset)",
    "ambient_": "AmbiEnt (github.com/alisawuffles/ambient)",
    "chaosNLI_": "ChaosNLI (github.com/easonnie/ChaosNLI)",
    "stsb_": "the STS benchmark (ixa2.si.ehu.eus/stswiki)",
}


@dataclass(frozen=True)
class Source:
    """A file at its official address: SHA-256 and path below the data folder.

    An archive has ``members``, {path in it: SHA-256}: these are extracted next to it, and it is deleted.
    """

    url: str
    sha256: str
    target: str
    members: Mapping[str, str] = field(default_factory=dict)

    def paths(self, folder: Path) -> dict[Path, str]:
        """The files that a download leaves in the data folder, with their hashes."""
        target = folder / self.target
        members = {target.parent / name: sha256 for name, sha256 in self.members.items()}
        return members or {target: self.sha256}


_BATCHES = {
    "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_FOLDS = {
    "idx_set_0.csv": "16f2eab55d0921418054d96d9384bdec8822ced71f9591baee08da3705f855cc",
    "idx_set_1.csv": "9a4e59fb2271248f0d7aca03b2e7a86b27c004766f9d4a97f9daa5a980363ff5",
    "idx_set_2.csv": "588a8cd6b0091ebd0e966ba0a7d45dfb73d13df2bd393ed126574faa1eb35e5e",
    "idx_set_3.csv": "b2e182a7c679a07d29c16c7d68ce8b3d25d5c19304e16d513d01a35f68b418a1",
    "idx_set_4.csv": "b8c9dc808ce670781aedd89a4e925f85280da5def389b40a4ed0eff6dbc186f5",
    "randomcrops_2000_0.25_1.0.csv": "3260f466e872f8f61f6d9faaa395c492383deca72051270a46019b79c13ee42d",
}
SOURCES = (
    Source(
        f"{_TORONTO}/cifar-10-binary.tar.gz",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        "cifar10/cifar-10-binary.tar.gz",
        {f"cifar-10-batches-bin/{name}.bin": sha256 for name, sha256 in _BATCHES.items()},
    ),
    Source(
        f"{_CIFAR10H}/cifar10h-counts.npy",
        "9b36b4550349af56c79083356312eb4af856cc5fd3caf1f669d40b9d0bbb69ff",
        "cifar10_human/cifar10h-counts.npy",
    ),
    *(Source(f"{_PAPER}/{name}", sha256, f"cifar10h_folds/{name}") for name, sha256 in _FOLDS.items()),
)  # fmt: skip


def data_folder(given: Path | None = None) -> Path:
    """The data folder: ``given``, or the folder named by the environment variable AUREOLE_DATA."""
    named = os.environ.get("AUREOLE_DATA")
    remedy = (
        "Set --data-dir or AUREOLE_DATA to a folder with the data; "
        "aureole_paper.data_folder.download(folder) fills one."
    )
    if given is None and not named:
        raise MissingInputError(f"no data folder is set. {remedy}")
    folder = Path(named or "") if given is None else given
    if not folder.is_dir():
        origin = " (from AUREOLE_DATA)" if given is None else ""
        raise MissingInputError(f"the data folder {folder}{origin} does not exist. {remedy}")
    return folder


def require_file(path: Path) -> Path:
    """The path itself if the file exists; otherwise an error that says how to get the file."""
    if path.is_file():
        return path
    downloaded = [name.as_posix() for source in SOURCES for name in source.paths(Path("/"))]
    origin = next((where for start, where in _ORIGINS.items() if path.name.startswith(start)), "")
    if any(path.as_posix().endswith(name) for name in downloaded):
        remedy = ", or run aureole_paper.data_folder.download(folder)."
    elif origin:
        remedy = f"; download it from {origin}."
    else:
        remedy = "."
    raise MissingInputError(f"{path} is missing. Check the data folder{remedy}")


def download(folder: Path, *, base: str | None = None, progress: bool = False) -> list[Path]:
    """Download CIFAR-10, the votes of CIFAR-10H and the paper's folds, and return the paths of the files.

    Files that already have the right hash are kept.

    Parameters
    ----------
    folder
        The data folder.
    base
        The address of a mirror that has the files under their own names (default: the official addresses).
    progress
        Show a progress bar (default: no).
    """
    for source in SOURCES:
        if not all(p.is_file() and file_hash(p) == h for p, h in source.paths(folder).items()):
            _download(source, folder, base, progress)
    return [path for source in SOURCES for path in source.paths(folder)]


def _download(source: Source, folder: Path, base: str | None, progress: bool) -> None:
    target = folder / source.target
    url = source.url if base is None else f"{base.rstrip('/')}/{target.name}"
    known = f"sha256:{source.sha256}"
    try:
        pooch.retrieve(url, known, target.name, target.parent, progressbar=progress)
    except (OSError, ValueError) as error:
        raise AureoleError(
            f"cannot download {url} to {target}: {error} Run the download again; it keeps the files it already has."
        ) from error
    if source.members:
        with tarfile.open(target) as archive:
            members = [archive.getmember(name) for name in source.members]
            archive.extractall(target.parent, members, filter="data")
        target.unlink()
