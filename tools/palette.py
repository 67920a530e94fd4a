"""Write the colours of ``aureole.plot`` for the explorer's page and the docs: ``python tools/palette.py``.

A test compares the files with the palette.
"""

from pathlib import Path

from aureole.plot import DARK, GLYPH, LIGHT, css

ROOT = Path(__file__).resolve().parents[1]


def files() -> dict[Path, str]:
    """The files and their contents."""
    rules = (
        "/* written by tools/palette.py from aureole.plot */\n"
        f":root {{\n  {css(LIGHT)}\n  color-scheme: light;\n}}\n"
        f':root[data-theme="dark"] {{\n  {css(DARK)}\n  color-scheme: dark;\n}}\n'
    ).replace("; --", ";\n  --")
    return {
        ROOT / "web" / "src" / "palette.css": rules,
        ROOT / "docs" / "_static" / "favicon.svg": GLYPH + "\n",
    }


if __name__ == "__main__":
    for path, content in files().items():
        path.write_text(content, "utf-8")
