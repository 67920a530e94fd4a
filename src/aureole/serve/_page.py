"""The files of the browser page, read once: an address is looked up among them, and no path is ever made of it."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "reports" / "explorer_page"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
}
_PLAIN = b"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>aureole</title></head>
<body>
<h1>aureole</h1>
<p>The service runs, but its page is not built. The API is described at <a href="/openapi.json">/openapi.json</a>;
<a href="/v1/about">/v1/about</a> says what is served.</p>
</body>
</html>
"""


@dataclass(frozen=True)
class StaticFile:
    """A file's bytes, its type and a tag of its content."""

    content: bytes
    type: str
    tag: str


def read_static(folder: Path = FOLDER) -> dict[str, StaticFile]:
    """The files under a folder by their names relative to it; a plain ``index.html`` where there is none.

    Examples
    --------
    >>> found = read_static(Path("nowhere"))
    >>> list(found), found["index.html"].type
    (['index.html'], 'text/html; charset=utf-8')
    """
    contents = {"index.html": _PLAIN}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
        if path.is_file() and path.suffix in _TYPES:
            contents[path.relative_to(folder).as_posix()] = path.read_bytes()
    return {
        name: StaticFile(
            content, _TYPES[Path(name).suffix], hashlib.sha256(content).hexdigest()[:32]
        )
        for name, content in contents.items()
    }
