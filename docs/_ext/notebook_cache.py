"""Where the outputs of executed notebooks are kept: a folder for each state of the library."""

import hashlib
from pathlib import Path

__all__ = ["fingerprint"]


def fingerprint(root: Path) -> str:
    """A short digest of what the outputs of the tutorials depend on beside their cells: the library and the style.

    jupyter-cache itself looks at the cells alone, and would show what an older library printed.

    Examples
    --------
    >>> import tempfile
    >>> root = Path(tempfile.mkdtemp())
    >>> (root / "src").mkdir()
    >>> _ = (root / "src" / "a.py").write_text("1")
    >>> before = fingerprint(root)
    >>> _ = (root / "src" / "a.py").write_text("2")
    >>> fingerprint(root) == before
    False
    """
    digest = hashlib.sha256()
    style = root / "docs" / "_static" / "matplotlibrc"
    for path in [*sorted((root / "src").rglob("*.py")), style, root / "pyproject.toml"]:
        if path.is_file():
            content = path.read_bytes()
            digest.update(
                f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content
            )
    return digest.hexdigest()[:16]
