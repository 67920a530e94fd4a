"""A folder of labelled pictures: one folder for each label."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from aureole.data._pictures import ENDINGS, read_square
from aureole.errors import InvalidInputError, MissingInputError

_LARGEST = 2**28  # bytes of a picture file


def list_pictures(folder: Path) -> tuple[list[Path], list[str]]:
    """(The pictures of a folder's folders in the order of their names, the name of the folder of each).

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("dog/2.png", "cat/1.jpg", "cat/notes.txt"):
    ...     (folder / name).parent.mkdir(exist_ok=True)
    ...     (folder / name).touch()
    >>> [path.name for path in list_pictures(folder)[0]], list_pictures(folder)[1]
    (['1.jpg', '2.png'], ['cat', 'dog'])
    """
    if not folder.is_dir():
        raise MissingInputError(f"{folder} is not a folder; pictures lie in it as label/name.jpg.")
    labels = sorted(path for path in folder.iterdir() if path.is_dir())
    found = [
        (path, label.name)
        for label in labels
        for path in sorted(label.rglob("*"))
        if path.suffix.lower() in ENDINGS and path.is_file()
    ]
    if len({label for _, label in found}) < 2:
        raise InvalidInputError(
            f"{folder} needs pictures ({', '.join(ENDINGS)}) in folders of two labels or more, as {folder}/cat/1.jpg "
            f"and {folder}/dog/2.jpg, but has {len(found)} in {len(labels)} folders."
        )
    return [path for path, _ in found], [label for _, label in found]


def read_pictures(
    paths: list[Path], side: int, observer: Callable[[int], None] | None = None
) -> tuple[np.ndarray, str]:
    """(The middle squares of pictures, uint8 [n, 3, side, side], the SHA-256 of all their bytes)."""
    squares = np.empty((len(paths), 3, side, side), np.uint8)
    digest = hashlib.sha256()
    for row, path in enumerate(paths):
        if path.stat().st_size > _LARGEST:
            raise InvalidInputError(
                f"{path} is larger than {_LARGEST >> 20} MiB. Take it out of the folder."
            )
        content = path.read_bytes()
        digest.update(content)
        try:
            squares[row] = read_square(content, side).numpy()
        except InvalidInputError as error:
            raise InvalidInputError(f"{path}: {error} Take it out of the folder.") from error
        if observer is not None and row % 100 == 99:
            observer(row + 1)
    return squares, digest.hexdigest()
