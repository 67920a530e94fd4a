"""The cache folder of executed notebooks: one for each state of the library."""

import hashlib
from pathlib import Path

__all__ = ["fingerprint"]


def fingerprint(root: Path) -> str:
    """A short digest of what the outputs of the tutorials depend on besides the cells: library, style and kernel.

    jupyter-cache itself only compares the cells, and would show outputs of an older version of the library.

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
    style = root / "src" / "aureole" / "plot" / "aureole.mplstyle"
    kernel = root / "docs/_ext/ipython/profile_default/ipython_kernel_config.json"
    for path in [*sorted((root / "src").rglob("*.py")), style, kernel, root / "pyproject.toml"]:
        if path.is_file():
            content = path.read_bytes()
            digest.update(
                f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content
            )
    return digest.hexdigest()[:16]
