"""Where the data lies on this machine."""

import os
from pathlib import Path

from aureole.errors import MissingInputError

_ORIGINS = {
    "multi30k_": "Multi30k (github.com/multi30k/dataset)",
    "ambient_": "AmbiEnt (github.com/alisawuffles/ambient)",
    "chaosNLI_": "ChaosNLI (github.com/easonnie/ChaosNLI)",
    "stsb_": "the STS benchmark (ixa2.si.ehu.eus/stswiki)",
    "cifar10n_": "CIFAR-10N (noisylabels.com)",
}


def data_folder(given: Path | None = None) -> Path:
    """The folder with the data: the one given, else the one that the environment variable AUREOLE_DATA names.

    Examples
    --------
    >>> data_folder(Path("no/such/folder"))
    Traceback (most recent call last):
    ...
    aureole.errors.MissingInputError: the data folder no/such/folder (given) is not there. ...
    """
    named = os.environ.get("AUREOLE_DATA")
    remedy = (
        "Give --data-dir or set AUREOLE_DATA to a folder that holds the data; "
        "aureole_paper.download.download(folder) fills one."
    )
    if given is None and not named:
        raise MissingInputError(f"no data folder is known. {remedy}")
    folder = Path(named or "") if given is None else given
    if not folder.is_dir():
        origin = "from AUREOLE_DATA" if given is None else "given"
        raise MissingInputError(f"the data folder {folder} ({origin}) is not there. {remedy}")
    return folder


def require_file(path: Path) -> Path:
    """The path itself, if the file is there; else an error that says how to get it.

    Examples
    --------
    >>> require_file(Path("data/text/stsb_dev.tsv.gz"))
    Traceback (most recent call last):
    ...
    aureole.errors.MissingInputError: data/text/stsb_dev.tsv.gz is missing. Check the data folder; ...
    """
    if not path.is_file():
        raise MissingInputError(f"{path} is missing. Check the data folder{_remedy(path)}")
    return path


def _remedy(path: Path) -> str:
    """Where a file of the data folder comes from."""
    from aureole_paper.download import SOURCES

    fetched = [source.target for source in SOURCES if not source.members]
    for source in SOURCES:
        place = source.target.rpartition("/")[0]
        fetched += [f"{place}/{member.name}" for member in source.members]
    if any(path.as_posix().endswith(f"/{name}") for name in fetched):
        return ", or fill it with aureole_paper.download.download(folder)."
    for start, origin in _ORIGINS.items():
        if path.name.startswith(start):
            return f"; the file is of {origin}, which no function here downloads."
    return "; no function here downloads this file."
