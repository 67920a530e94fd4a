"""The explorer: a page on which people look at the certainty of a gallery, served or as one file of HTML.

The page is built from ``web/`` into ``explorer_page/``, which is kept here so that users need no Node.
"""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from aureole._io import atomic_write
from aureole.errors import AureoleError

_FOLDER = Path(__file__).parent / "explorer_page"


def page_folder() -> Path:
    """The folder of the built page: index.html, and its script and style in assets/.

    Examples
    --------
    >>> (page_folder() / "index.html").is_file()
    True
    """
    if not (_FOLDER / "index.html").is_file():
        raise AureoleError(
            f"{_FOLDER} does not hold the built page: install the package anew, or run npm ci && npm run build in web."
        )
    return _FOLDER


def render_explorer(data: dict[str, Any], title: str = "aureole") -> str:
    """One page of HTML with the script, the style and the data in it; it loads nothing, and runs nothing else.

    Examples
    --------
    >>> page = render_explorer({"items": [{"id": "</script><b>"}]})
    >>> "</script><b>" in page, "default-src 'none'" in page
    (False, True)
    """
    folder = page_folder() / "assets"
    script = (folder / "explorer.js").read_text("utf-8").replace("</script", "<\\/script")
    style = (folder / "explorer.css").read_text("utf-8").replace("</style", "<\\/style")
    # in JSON these signs are only found in strings, where an escape means the same
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    rules = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:"
    )
    name = title.replace("&", "&amp;").replace("<", "&lt;")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{rules}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{name}</title>
<style>{style}</style>
</head>
<body>
<noscript>This page draws with JavaScript, which is switched off here.</noscript>
<div id="app"></div>
<script type="application/json" id="aureole-data">{text}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def write_explorer(data: dict[str, Any], out: Path, title: str = "aureole") -> Path:
    """Write the page of a gallery's data (see ``explorer_data``) whole or not at all, and return its path."""
    html = render_explorer(data, title)
    return atomic_write(out, html)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
