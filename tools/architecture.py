"""Draw docs/pictures/architecture.svg: the packages in layers, and the path of a batch and of a query through them.

The layers must agree with ``[tool.importlinter]`` in pyproject.toml. The picture follows the light or dark mode of the
system.
"""

from html import escape
from pathlib import Path

from aureole.plot import as_file

WHERE = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "architecture.svg"
LEFT, WIDTH, TOP, HEIGHT, GAP = 36, 600, 124, 50, 12
BATCH, QUERY = "var(--accent)", "var(--c0)"

# Layers from top to bottom; a package is (name, what it is for, steps of a batch, steps of a query).
LAYERS = [
    [("cli", "one command per file; plug-ins by entry points", "1", "1")],
    [("serve", "HTTP service", "", "1")],
    [("explorer", "pages and reports", "", "6"), ("embed", "bulk embedding", "", "")],
    [("plot", "figures, the style", "", "")],
    [
        ("training", "fit, frozen heads", "16", ""),
        ("match", "probabilities, thresholds", "", ""),
    ],
    [("caps", "caps, conformal masses, CredibleIndex", "", "35")],
    [("engines", "one adapter per vector engine", "", "4")],
    [
        ("evaluation", "recovery, coverage", "7", ""),
        ("encoders", "other libraries' by name", "", ""),
        ("synthetic", "known posteriors", "", ""),
    ],
    [
        ("losses", "InfoNCE, ELK, hedged", "4", ""),
        ("models", "encoders, heads", "3", "2"),
        ("data", "pairs, tables", "2", ""),
    ],
    [("distributions", "VonMisesFisher, MixtureVMF, SphereUniform", "3", "23")],
    [("sphere", "Bessel ratios, normaliser, cosine law, positivity", "5", "3")],
    [("records", "results with provenance", "7", ""), ("errors", "what users can catch", "", "")],
]
STEPS = {
    ("A batch", "aureole train", BATCH): [
        "The command reads the config; fit runs the loop.",
        "data draws matching pairs, seeded by the step.",
        "models encode inputs into posteriors (mu, kappa).",
        "losses compare each anchor with its positive\nand with the negatives.",
        "sphere evaluates the expected positivity\nand its gradient in closed form.",
        "training updates weights and their running\naverage, and writes checkpoints.",
        "evaluation measures the averaged encoder;\nthe result is written as a record.",
    ],
    ("A query", "aureole search, POST /v1/search", QUERY): [
        "The command or the service validates the input.",
        "models turn it into a posterior (mu, kappa).",
        "The posterior and the mass give a cap: mu and\na smallest cosine.",
        "engines asks the engine (Lance, FAISS or\nPostgreSQL) for candidates within the cap.",
        "Candidates are scored again exactly, in float64,\nand ranked by cosine or expected positivity.",
        "The hits go back to the client; the explorer\nshows them.",
    ],
}


def text(x: float, y: float, content: str, style: str) -> str:
    """A line of text."""
    return f'<text x="{x:g}" y="{y:g}" class="{style}">{escape(content)}</text>'


def badge(x: float, y: float, number: str, colour: str) -> str:
    """A numbered circle."""
    label = f'<text x="{x:g}" y="{y + 4:g}" class="badge">{number}</text>'
    return f'<circle cx="{x:g}" cy="{y:g}" r="10" style="fill: {colour}"/>{label}'


def packages() -> list[str]:
    """The layers, each package with the steps that pass through it."""
    parts = []
    for row, layer in enumerate(LAYERS):
        width = (WIDTH - GAP * (len(layer) - 1)) / len(layer)
        y = TOP + row * (HEIGHT + GAP)
        for column, (name, purpose, batch, query) in enumerate(layer):
            x = LEFT + column * (width + GAP)
            parts.append(
                f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{HEIGHT}" rx="7" class="package"/>'
            )
            parts.append(text(x + 12, y + 21, name, "name"))
            parts.append(text(x + 12, y + 39, purpose, "purpose"))
            steps = [(step, BATCH) for step in batch] + [(step, QUERY) for step in query]
            for place, (step, colour) in enumerate(reversed(steps)):
                parts.append(badge(x + width - 16 - 23 * place, y + 17, step, colour))
    return parts


def legend(x: float) -> list[str]:
    """The steps in words."""
    parts, y = [], 44.0
    for (title, command, colour), steps in STEPS.items():
        parts.append(
            f'<text x="{x:g}" y="{y:g}" class="title" style="fill: {colour}">{title}</text>'
        )
        parts.append(text(x + 84, y, command, "code"))
        y += 28
        for number, step in enumerate(steps, start=1):
            parts.append(badge(x + 10, y - 4, str(number), colour))
            for line in step.split("\n"):
                parts.append(text(x + 30, y, line, "step"))
                y += 18
            y += 9
        y += 22
    return parts


def main() -> None:
    """Write the picture."""
    bottom = TOP + len(LAYERS) * (HEIGHT + GAP)
    height = bottom + 44
    style = """
text { font-family: system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: var(--ink) }
.name, .code { font-family: ui-monospace, 'DejaVu Sans Mono', monospace }
.name { font-size: 15px; font-weight: 600 } .code { font-size: 12.5px; fill: var(--soft) }
.purpose { font-size: 12px; fill: var(--soft) } .step { font-size: 13px } .note { font-size: 12px; fill: var(--soft) }
.badge { font-size: 12px; font-weight: 600; fill: var(--on-accent); text-anchor: middle }
.package { fill: var(--sheet); stroke: var(--soft) } .title { font-size: 17px; font-weight: 700 }
.library { fill: var(--band); stroke: var(--line) }
.paper { fill: var(--sheet); stroke: var(--soft); stroke-dasharray: 5 4 }
"""
    paper = f'<rect x="20" y="20" width="{WIDTH + 32}" height="{HEIGHT}" rx="9" class="paper"/>'
    library = (
        f'<rect x="20" y="82" width="{WIDTH + 32}" height="{bottom - 82}" rx="9" class="library"/>'
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1060 {height}" role="img">',
        "<title>The packages of aureole, and the path of a batch and of a query</title>",
        f"<style>{style}</style>",
        paper,
        text(LEFT + 12, 41, "paper", "name"),
        text(
            LEFT + 12,
            59,
            "aureole-paper: the experiments and their records; adds aureole reproduce",
            "purpose",
        ),
        library,
        text(LEFT, 108, "src/aureole", "name"),
        text(LEFT + 112, 108, "the distribution aureole", "note"),
        *packages(),
        text(
            LEFT,
            bottom + 24,
            "A package imports only from the layers below it, and never from its neighbours.",
            "note",
        ),
        *legend(676),
        "</svg>",
    ]
    WHERE.write_text(as_file("\n".join(parts)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
