"""Pictures of items in a folder: files named after ids, and none outside of it."""

from pathlib import Path

from aureole.data._pictures import ENDINGS

_LONGEST = 1024  # bytes: as long as an id can be


def find_picture(folder: Path, name: str) -> Path | None:
    """The picture ``folder/name`` or ``folder/name.png`` (.jpg, ...), if there is one; never a file outside.

    ``folder`` is resolved. The name may hold slashes; ``..``, absolute names, links that lead outside, names of folders
    and endings that are no picture's find nothing.
    """
    parts = name.split("/")
    if not name or "\0" in name or "\\" in name or any(part in ("", ".", "..") for part in parts):
        return None
    if len(name.encode(errors="replace")) > _LONGEST:
        return None
    for ending in ("", *ENDINGS):
        path = folder / f"{name}{ending}"
        if path.suffix.lower() not in ENDINGS:
            continue
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            continue
        if real.is_relative_to(folder) and real.is_file():
            return real
    return None
