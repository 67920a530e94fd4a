"""The directives that turn records under results/ into tables, so that no number in the docs is typed by hand."""

import json
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive, directives
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


ENGINES = {
    "Lance": {
        "address": "``gallery.lance``",
        "scale": "what a disk or an object store holds; rows are read as they are searched",
        "threshold": "``nearest`` with metric ``dot`` and ``distance_range=(None, 1 - t)``; a graph (HNSW) has no "
        "range, so the nearest k for growing k",
        "durability": "each change is a new version; killed processes lose nothing, a power cut perhaps the last "
        "seconds (no fsync)",
        "writers": "take turns on one machine by a lock file; one at a time on an object store",
    },
    "FAISS": {
        "address": "``gallery.faiss``, ``faiss://``",
        "scale": "what fits memory: every process holds all rows, and reads them when it opens the index",
        "threshold": "``range_search(mu, t)``; in HNSW a few nearest first, then a wide range search",
        "durability": "segments and a manifest, each synced to the disk before it counts; ``faiss://`` keeps nothing",
        "writers": "take turns on one machine by a lock file; readers see a change at their next search",
    },
    "PostgreSQL": {
        "address": "``postgresql://user@host/db#table``",
        "scale": "what the server holds; up to 16,000 dimensions, 2,000 with an approximate index",
        "threshold": "``WHERE mu <#> query <= -t``; with an index the rows in order of ``mu <#> query``, in growing "
        "strides until one is outside",
        "durability": "transactions and the server's log, backups and replicas",
        "writers": "as many as the server takes, from any machine, at the same time",
    },
}


ENGINE_KEYS = {"Lance": "lance", "FAISS": "faiss", "PostgreSQL": "postgres"}  # in records


class EngineTable(RstDirective):
    """Engines side by side, with figures of two records: ``.. engine-table:: EXACT APPROXIMATE``."""

    required_arguments = 2

    def lines(self, exact):
        """One table; a second argument names the record of approximate indexes."""
        record, approximate = load(self.arguments[0]), load(self.arguments[1])
        rows = [
            [name, *(engine[key] for engine in ENGINES.values())]
            for name, key in (("address", "address"), ("scale", "scale"))
        ]
        size = f"{record['settings']['rows']:,} rows"
        for dim, found in sorted(exact.items(), key=lambda pair: int(pair[0].split()[-1])):
            cells = [found[ENGINE_KEYS[name]] for name in ENGINES]
            rows.append(
                [
                    f"exact, {size}, {dim}",
                    *(f"{1000 * c['seconds a query']:.0f} ms a query" for c in cells),
                ]
            )
        checked = [[exact[dim][ENGINE_KEYS[name]] for dim in exact] for name in ENGINES]
        rows.append(
            [
                "exactness",
                *(
                    f"{sum(c['disagreements'] for c in cells)} disagreements with a look at every row, in "
                    f"{sum(c['queries'] for c in cells):,} queries with {sum(c['results'] for c in cells):,} results"
                    for cells in checked
                ),
            ]
        )
        found = approximate["metrics"]
        cells = []
        for name in ENGINES:
            values = found.get(f"{ENGINE_KEYS[name]}-ivf")
            at = values and values["100 members"]
            cells.append(
                f"{at['ms a query']:.1f} ms, recall {at['recall']:.4f}" if at else "not measured"
            )
        size = f"{approximate['settings']['rows']:,} rows, D = {approximate['settings']['dim']}"
        rows.append([f"ivf, {size}, caps of 100", *cells])
        words = {
            "the threshold t": "threshold",
            "durability": "durability",
            "concurrent writers": "writers",
        }
        rows += [[title, *(e[key] for e in ENGINES.values())] for title, key in words.items()]
        lines = table(["", *ENGINES], rows)
        return [*lines, *source(approximate, self.arguments[1])]


class ApproximateTable(RstDirective):
    """Approximate indexes (rows): time and recall by the size of the cap, and what they cost."""

    def lines(self, metrics):
        """One table of a record."""
        settings = load(self.arguments[0])["settings"]
        caps = [name for name in next(iter(metrics.values())) if name.endswith("members")]
        caps = sorted(caps, key=lambda name: int(name.split()[0]))
        title = f"{settings['rows']:,} rows, D = {settings['dim']}"
        header = [title, *(f"caps of {c.split()[0]}" for c in caps), "build", "bytes a row"]
        rows = [
            [
                name,
                *(
                    f"{found[c]['ms a query']:.2g} ms, recall {found[c]['recall']:.4f}"
                    for c in caps
                ),
                f"{found['build seconds']:.0f} s",
                f"{found['bytes a row']:,.0f}",
            ]
            for name, found in metrics.items()
        ]
        return table(header, rows)


class CapsFigure(Directive):
    """Two queries, their caps and the items in them, searched while the docs are built: ``.. caps-figure::``."""

    def run(self):
        """The figure as inline SVG on a white card, with its caption."""
        from aureole.explorer import caps_figure

        return [card(caps_figure(), CAPS)]


CAPS = (
    "Two searches of one gallery of 400 directions on the sphere in three dimensions, seen from the side, with mass "
    "0.9. Both queries have the same mean direction; the vague one has a wider cap and so gets more items. Pale "
    "points lie on the far side."
)


def card(svg, caption):
    """A figure on a white card, whatever the theme."""
    style = "background: white; color: black; margin: 1em 0; padding: 0.5em"
    html = f'<figure style="{style}">{svg}<figcaption>{escape(caption)}</figcaption></figure>'
    return nodes.raw("", html, format="html")


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


@lru_cache(maxsize=4)
def sections(folder):
    """The sections of the report on a folder of records, by anchor; drawn once for all directives of a build."""
    from aureole_paper.report import read_report

    return {section.anchor: section for section in read_report(ROOT / folder).sections}


class ReportDirective(Directive):
    """A directive whose first two arguments are a folder of records and the anchor of a section of its report.

    With ``:optional:`` nothing is shown where the section has no records.
    """

    required_arguments = 2
    option_spec: ClassVar = {"optional": directives.flag}

    def run(self):
        """The nodes of the section; an error names the sections that there are."""
        folder, anchor = self.arguments[:2]
        found = sections(folder)
        if anchor in found:
            return self.shown(found[anchor])
        if "optional" in self.options:
            return []
        raise self.error(f"the report of {folder} has no section {anchor}, only {list(found)}")

    def parsed(self, lines):
        """The nodes of lines of reStructuredText."""
        node = nodes.section()
        node.document = self.state.document
        self.state.nested_parse(StringList(lines, source=self.arguments[0]), 0, node)
        return node.children


class ReportText(ReportDirective):
    """What a section says, read off its records: ``.. report-text:: FOLDER ANCHOR``."""

    def shown(self, section):
        """The text as paragraphs."""
        return [nodes.paragraph(text=text) for text in section.text.split("\n\n")]


class ReportTables(ReportDirective):
    """The tables of one section of a report on a folder of records: ``.. report-tables:: FOLDER ANCHOR``."""

    def shown(self, section):
        """The parsed tables, with their captions and the commits that made the records."""
        lines = []
        for found in section.tables:
            pairs = zip(spread(found), found.header, strict=True)
            # an @ in a name is no address of mail
            header = [": ".join(filter(None, pair)).replace("@", "\\@") for pair in pairs]
            first, *rest = table(header, stressed(found))
            lines += ["", found.caption, "", first, "   :class: report", *rest]
        commits = sorted({run.record.commit for run in section.runs})
        lines += ["", f"Records: ``{self.arguments[0]}``, commits {', '.join(commits)}."]
        return self.parsed(lines)


class ReportLists(ReportDirective):
    """The lists of a section, such as of sentences: ``.. report-lists:: FOLDER ANCHOR``."""

    def shown(self, section):
        """Each list under its title; texts of records are taken as they are, never parsed."""
        found = []
        for gallery in section.galleries:
            title = nodes.paragraph("", "", nodes.strong(text=gallery.title))
            items = [
                nodes.list_item("", nodes.paragraph(text=f"{item.text} ({item.note})"))
                for item in gallery.items
            ]
            found += [title, nodes.bullet_list("", *items)]
        return found


class ReportFigure(ReportDirective):
    """A figure of a section, drawn from the records: ``.. report-figure:: FOLDER ANCHOR NUMBER``."""

    required_arguments = 3

    def shown(self, section):
        """The figure as inline SVG on a white card, with its caption."""
        picture = section.figures[int(self.arguments[2])]
        return [card(picture.svg, picture.caption)]


def spread(found):
    """The head of its group for each column of a table."""
    heads = [head for head, width in found.spans for _ in range(width)]
    return heads or [""] * len(found.header)


def stressed(found):
    """The rows of a table, marked cells in bold."""
    return [
        [f"**{cell}**" if (i, j) in found.marked else cell for j, cell in enumerate(row)]
        for i, row in enumerate(found.rows)
    ]


def setup(app):
    app.add_directive("report-text", ReportText)
    app.add_directive("report-tables", ReportTables)
    app.add_directive("report-lists", ReportLists)
    app.add_directive("report-figure", ReportFigure)
    app.add_directive("loss-table", LossTable)
    app.add_directive("engine-table", EngineTable)
    app.add_directive("approximate-table", ApproximateTable)
    app.add_directive("caps-figure", CapsFigure)
    app.add_directive("accuracy-table", AccuracyTable)
    app.add_directive("benchmark-table", BenchmarkTable)
    return {"parallel_read_safe": True}
