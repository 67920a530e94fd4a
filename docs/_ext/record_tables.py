"""The directives that turn records under results/ into tables, so that no number in the docs is typed by hand."""

import json
from html import escape
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

ROOT = Path(__file__).parents[2]


def load(path):
    return json.loads((ROOT / path).read_text())


def table(header, rows):
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in [header, *rows]:
        lines += [f"   {'* -' if i == 0 else '  -'} {cell}" for i, cell in enumerate(row)]
    return lines


def source(record, path):
    return [
        "",
        f"Record ``{path}``: ``{record['command']}``, commit {record['commit']}, torch {record['versions']['torch']}.",
    ]


class RstDirective(Directive):
    """A directive whose argument is the path of a record and whose content it writes as reStructuredText."""

    required_arguments = 1

    def run(self):
        """The parsed content."""
        path = self.arguments[0]
        record = load(path)
        lines = self.lines(record["metrics"]) + source(record, path)
        node = nodes.section()
        node.document = self.state.document
        self.state.nested_parse(StringList(lines, source=path), 0, node)
        return node.children


class AccuracyTable(RstDirective):
    """Worst errors by function (rows) and dimension (columns), in float64 and float32."""

    def lines(self, metrics):
        """Four tables: two dtypes, two halves of the dimensions."""
        dims = sorted(
            {d for by in metrics.values() for errors in by.values() for d in errors}, key=int
        )
        groups = [dims[:6], dims[6:]]
        lines = []
        for dtype in ("float64", "float32"):
            for group in groups:
                rows = [
                    [f"``{name}``", *(f"{by[dtype][d]:.0e}" for d in group)]
                    for name, by in metrics.items()
                ]
                lines += ["", *table([f"{dtype}, D =", *group], rows)]
        return lines


class BenchmarkTable(RstDirective):
    """Measured figures (rows) by setting (columns)."""

    def lines(self, metrics):
        """One table; a figure that a setting does not have is left empty."""
        names = list(dict.fromkeys(name for values in metrics.values() for name in values))
        rows = [
            [name, *(number(values.get(name, "")) for values in metrics.values())] for name in names
        ]
        return table(["", *metrics], rows)


def number(value):
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


LOSSES = [
    (
        "ClosedFormInfoNCE",
        r":math:`-\log\frac{h(x, x^+)}{h(x, x^+) + \sum_m h(x, x^-_m)}`",
        "no",
        "B M terms",
    ),
    (
        "MCInfoNCE, K = 16",
        r":math:`-\log\frac1K\sum_k\frac{e^{s^+_k}}{e^{s^+_k} + \sum_m e^{s^-_{mk}}}`",
        "yes",
        "K B M D",
    ),
    (
        "ELK",
        r"InfoNCE of :math:`\kappa_{pos}\log\int Q(z|x)\,Q(z|x')\,dz`",
        "no",
        "B M Bessel functions",
    ),
    (
        "HedgedInstance",
        r":math:`-\log E[s(a z^Tz^+ + b)]` :math:`- \frac1M\sum_m\log E[1 - s(a z^Tz^-_m + b)]`",
        "yes",
        "K B M D",
    ),
    ("InfoNCE", r"InfoNCE of :math:`\kappa_{pos}\,\mu^T\mu'`", "no", "B M D"),
]


class LossTable(RstDirective):
    """Losses: formula, draws, cost, and what they recovered in the toy problem."""

    def lines(self, metrics):
        """One table; the last column comes from the record."""
        rows = []
        for name, formula, draws, cost in LOSSES:
            found = metrics[name]
            error, rank = found["kappa mean relative error"], found["kappa rank correlation"]
            kappa = (
                f"to {100 * error:.2g} %" if error < 2 else f"off by a factor of {1 + error:.0f}"
            )
            kappa = "kappa not at all" if name == "InfoNCE" else f"kappa {kappa} (rank {rank:.3f})"
            rows.append(
                [
                    f"``{name}``",
                    formula,
                    draws,
                    cost,
                    f"mu to {found['mu mean degrees']:.2g}°; {kappa}",
                ]
            )
        lines = table(["Loss", "Formula", "Draws", "Cost", "Recovers"], rows)
        return [lines[0], "   :widths: 20 32 7 13 28", *lines[1:]]


def sections(folder):
    """The sections of the report on a folder of records, by anchor."""
    from aureole.reports.runs import group, read_runs
    from aureole.reports.sections import build_sections

    return {section.anchor: section for section in build_sections(group(read_runs(ROOT / folder)))}


class ReportTables(Directive):
    """The tables of one section of a report on a folder of records: ``.. report-tables:: FOLDER ANCHOR``."""

    required_arguments = 2

    def run(self):
        """The parsed tables, with their captions and the commits that made the records."""
        folder, anchor = self.arguments
        section = sections(folder)[anchor]
        lines = []
        for found in section.tables:
            pairs = zip(spread(found), found.header, strict=True)
            header = [" ".join(filter(None, pair)) for pair in pairs]
            first, *rest = table(header, found.rows)
            lines += ["", found.caption, "", first, "   :class: report", *rest]
        commits = sorted({run.record.commit for run in section.runs})
        lines += ["", f"Records: ``{folder}``, commits {', '.join(commits)}."]
        node = nodes.section()
        node.document = self.state.document
        self.state.nested_parse(StringList(lines, source=folder), 0, node)
        return node.children


class ReportFigure(Directive):
    """A figure of a section, drawn from the records: ``.. report-figure:: FOLDER ANCHOR NUMBER``."""

    required_arguments = 3

    def run(self):
        """The figure as inline SVG on a white card, with its caption."""
        folder, anchor, number = self.arguments
        picture = sections(folder)[anchor].figures[int(number)]
        card = "background: white; color: black; margin: 1em 0; padding: 0.5em"
        html = (
            f'<figure style="{card}">{picture.svg}'
            f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
        )
        return [nodes.raw("", html, format="html")]


def spread(found):
    """The head of its group for each column of a table."""
    heads = [head for head, width in found.spans for _ in range(width)]
    return heads or [""] * len(found.header)


def setup(app):
    app.add_directive("report-tables", ReportTables)
    app.add_directive("report-figure", ReportFigure)
    app.add_directive("loss-table", LossTable)
    app.add_directive("accuracy-table", AccuracyTable)
    app.add_directive("benchmark-table", BenchmarkTable)
    return {"parallel_read_safe": True}
