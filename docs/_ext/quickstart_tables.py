"""Directives for the records of the quickstart: a table over seeds, its figures, and its output."""

from docutils import nodes
from docutils.parsers.rst import Directive
from record_tables import ROOT, RstDirective, card, load, table

FOLDER = "results/quickstart"
FIGURES = {
    "fading": (
        "The median kappa of the same clear pictures under increasing blur, and under tighter crops. Blurred "
        "pictures were in the training set; cropped ones were not, so their kappa is not meaningful."
    ),
    "rejection": "Recall@1 of the pictures that are kept, as those with the lowest kappa are rejected.",
}
ROWS = {
    "entropy_rank": "rank correlation of κ with minus the known entropy",
    "entropy_rank_best": "the highest possible value, as half of the entropies are 0",
    "recall_at_1": "Recall@1 of all pictures",
    "recall_at_1_sure_half": "Recall@1 of the half with the higher κ",
    "kappa_clear": "median κ of clear pictures",
    "kappa_morph": "median κ of morphs",
    "kappa_faded": "median κ of faded pictures",
}


def paths():
    return sorted(path.relative_to(ROOT) for path in (ROOT / FOLDER).glob("seed-*.json"))


def cell(value):
    return f"{value:.3f}" if abs(value) < 2 else f"{value:.1f}"


class QuickstartTable(RstDirective):
    """The metrics of every seed: ``.. quickstart-table::``."""

    required_arguments = 0

    def run(self):
        """The table, and the provenance of the records."""
        self.arguments = [str(paths()[0])]
        return super().run()

    def lines(self, metrics):  # noqa: ARG002
        """One column per seed; searches have two rows."""
        records = [load(path) for path in paths()]
        rows = [
            [label, *(cell(r["metrics"][name]) for r in records)] for name, label in ROWS.items()
        ]
        for number, title in enumerate(("sharp", "blurred")):
            searches = [r["metrics"]["searches"][number] for r in records]
            shown = [f"{s['degrees']:.0f}°, {s['members']}" for s in searches]
            rows.append([f"cap of the {title} star, number of pictures in it", *shown])
        rows.append(["total seconds", *(f"{r['metrics']['seconds']:.0f}" for r in records)])
        return table(["seed", *(str(r["seed"]) for r in records)], rows)


class QuickstartFigure(Directive):
    """A figure of the first seed's record: ``.. quickstart-figure:: NAME``."""

    required_arguments = 1

    def run(self):
        """The figure on a white card."""
        from aureole.explorer import _quickstart_page as quickstart

        name = self.arguments[0]
        draw = getattr(quickstart, f"{name}_figure")
        return [card(draw(load(paths()[0])["metrics"]), FIGURES[name])]


class QuickstartOutput(Directive):
    """The output of the first seed's run: ``.. quickstart-output::``."""

    def run(self):
        """The lines, verbatim."""
        text = (ROOT / FOLDER / "seed-0.txt").read_text(encoding="utf-8")
        return [nodes.literal_block(text=f"$ aureole quickstart\n{text.rstrip()}")]


def setup(app):
    app.add_directive("quickstart-table", QuickstartTable)
    app.add_directive("quickstart-figure", QuickstartFigure)
    app.add_directive("quickstart-output", QuickstartOutput)
    return {"parallel_read_safe": True}
