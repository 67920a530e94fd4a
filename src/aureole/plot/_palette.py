"""The colours of the project in one place: pages, reports, docs and figures take them from here.

``python -m tools.palette`` writes them as CSS for the explorer's page and for the docs.
"""

from collections.abc import Mapping

# as CSS variables: backgrounds, text, lines, the accent, ten categories, and five steps of kappa from low to high
LIGHT: Mapping[str, str] = {
    "paper": "#fbfaf8", "sheet": "#ffffff", "band": "#f4f1ec", "ink": "#1d1b18", "soft": "#645f57",
    "line": "#e4e0d9", "accent": "#a34a06", "glow": "#f7e3cf", "on-accent": "#ffffff",
    "c0": "#1f66b0", "c1": "#cf6d0c", "c2": "#0da08d", "c3": "#a41a6c", "c4": "#8e79df",
    "c5": "#742e31", "c6": "#055b7f", "c7": "#656d21", "c8": "#5c5700", "c9": "#232c2f",
    "s0": "#d97706", "s1": "#b94a2a", "s2": "#8f3757", "s3": "#5f3070", "s4": "#282a63",
}  # fmt: skip
DARK: Mapping[str, str] = {
    "paper": "#15140f", "sheet": "#1f1d18", "band": "#29261f", "ink": "#f1ede4", "soft": "#aaa496",
    "line": "#383429", "accent": "#f4b04f", "glow": "#3d2f18", "on-accent": "#1d1606",
    "c0": "#6fa8e6", "c1": "#f2a93b", "c2": "#b4ecb0", "c3": "#bd6498", "c4": "#8975f2",
    "c5": "#f06e6e", "c6": "#65d2eb", "c7": "#928b0c", "c8": "#9dca92", "c9": "#f1f0fc",
    "s0": "#ffc866", "s1": "#f09078", "s2": "#cf7598", "s3": "#a46fc4", "s4": "#7a70d6",
}  # fmt: skip
CATEGORIES = tuple(LIGHT[f"c{i}"] for i in range(10))
SEQUENCE = tuple(LIGHT[f"s{i}"] for i in range(5))
INK, GREY, RULE, BAND, SHEET, ACCENT = (
    LIGHT[name] for name in ("ink", "soft", "line", "band", "sheet", "accent")
)
BLUE, VERMILION, GREEN, PURPLE, VIOLET = COLOURS = CATEGORIES[:5]
GLYPH = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 -12 24 24">'
    f'<circle r="9" fill="{LIGHT["glow"]}" stroke="#c96a17" stroke-width="2.4"/>'
    '<circle r="3.4" fill="#c96a17"/></svg>'
)
FAVICON = "data:image/svg+xml," + GLYPH.replace("#", "%23").replace('"', "'").replace(" ", "%20")


def css(colours: Mapping[str, str], prefix: str = "") -> str:
    """Declarations of CSS variables.

    Examples
    --------
    >>> css({"ink": "#1d1b18", "c0": "#1f66b0"}, "au-")
    '--au-ink: #1d1b18; --au-c0: #1f66b0;'
    """
    return " ".join(f"--{prefix}{name}: {colour};" for name, colour in colours.items())


def adaptive(svg: str) -> str:
    """The SVG with the light colours of the palette as CSS variables, so that a page can show it in dark mode too.

    Examples
    --------
    >>> adaptive('<path style="stroke: #1d1b18"/>')
    '<path style="stroke: var(--ink, #1d1b18)"/>'
    """
    for name, colour in LIGHT.items():
        if colour == LIGHT["sheet"] and name != "sheet":
            continue
        svg = svg.replace(f": {colour}", f": var(--{name}, {colour})")
    return svg


def as_file(svg: str) -> str:
    """The SVG of ``adaptive`` as a file of its own, which follows the light or dark mode of the system."""
    rules = (
        f"svg {{ {css(LIGHT)} }} @media (prefers-color-scheme: dark) {{ svg {{ {css(DARK)} }} }}"
    )
    start = svg.index(">") + 1
    ground = '<rect width="100%" height="100%" fill="var(--sheet)"/>'
    return f"{svg[:start]}<style>{rules}</style>{ground}{svg[start:]}"
