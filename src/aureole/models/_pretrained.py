"""Fitted heads that come with the package: folders for ``FrozenHead.load``; what they are is in their README.md."""

from pathlib import Path

MINILM_CAPTIONS = Path(__file__).parent / "minilm_captions"
_NAMED = {"minilm-captions": MINILM_CAPTIONS}


def find_model(name: Path | str) -> Path:
    """The folder of a model: the path itself, or a head of the package by its name.

    What lies at the path goes first; a path where nothing lies stays as it is, for the reader to complain about.

    Examples
    --------
    >>> find_model("minilm-captions") == MINILM_CAPTIONS
    True
    >>> find_model("a/head").as_posix()
    'a/head'
    """
    path = Path(name)
    return path if path.exists() else _NAMED.get(str(name), path)
