"""Where the data lies on this machine."""

import os
from pathlib import Path

from aureole.errors import MissingInputError

__all__ = ["data_folder", "require_file"]


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
        "aureole.data.download.download(folder) fills one."
    )
    if given is None and not named:
        raise MissingInputError(f"no data folder is known. {remedy}")
    folder = Path(named or "") if given is None else given
    if not folder.is_dir():
        origin = "from AUREOLE_DATA" if given is None else "given"
        raise MissingInputError(f"the data folder {folder} ({origin}) is not there. {remedy}")
    return folder


def require_file(path: Path) -> Path:
    """The path itself, if the file is there; else an error that says how to get it."""
    if not path.is_file():
        raise MissingInputError(
            f"{path} is missing. Check the data folder, or fill it with "
            "aureole.data.download.download(folder)."
        )
    return path
