"""Directives that turn records into tables, so that no number in the docs is typed by hand."""

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
        f"Record ``{path}``: ``{record['command']}``, torch {record['versions']['torch']}.",
    ]


class RstDirective(Directive):
    """A directive that shows a record as reStructuredText; its argument is the path of the record."""

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
    """Measurements (rows) by setting (columns), or the other way round where there are more settings."""

    def lines(self, metrics):
        """One table for settings that share a measurement; one that a setting does not have is left empty."""
        return [line for part in sharing(metrics) for line in ["", *self.rows(part)]]

    def rows(self, metrics):
        """One table."""
        names = list(dict.fromkeys(name for values in metrics.values() for name in values))
        if len(metrics) > len(names):
            rows = [
                [setting, *(number(values.get(name, "")) for name in names)]
                for setting, values in metrics.items()
            ]
            return table(["", *names], rows)
        rows = [
            [name, *(number(values.get(name, "")) for values in metrics.values())] for name in names
        ]
        return table(["", *metrics], rows)


def sharing(metrics):
    """The settings in groups, each of which has a measurement in common with another one of its group.

    Examples
    --------
    >>> sharing({"a": {"s": 1}, "b": {"t": 2}, "c": {"s": 3, "u": 4}})
    [{'b': {'t': 2}}, {'a': {'s': 1}, 'c': {'s': 3, 'u': 4}}]
    """
    groups = []
    for setting, values in metrics.items():
        same = [group for group in groups if any(values.keys() & each for each in group.values())]
        groups = [group for group in groups if group not in same]
        groups.append({k: v for group in same for k, v in group.items()} | {setting: values})
    return groups


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
        r"InfoNCE of :math:`\frac1\tau\log\int Q(z|x)\,Q(z|x')\,dz`",
        "no",
        "B M Bessel functions",
    ),
    (
        "HedgedInstance",
        r":math:`-\log E[s(a z^Tz^+ + b)]` :math:`- \frac1M\sum_m\log E[1 - s(a z^Tz^-_m + b)]`",
        "yes",
        "K B M D",
    ),
    ("InfoNCE", r"InfoNCE of :math:`\frac1\tau\,\mu^T\mu'`", "no", "B M D"),
]


ENGINES = {
    "Lance": {
        "address": "``gallery.lance``",
        "scale": "limited by the disk or the object store; rows are read on demand",
        "threshold": "``nearest`` with metric ``dot`` and ``distance_range=(None, 1 - t)``; a graph (HNSW) has no "
        "range search, so the nearest k for growing k",
        "durability": "each change is a new version; a killed process loses nothing, a power failure perhaps the last "
        "seconds (no fsync)",
        "writers": "serialised by a lock file on one machine; only one at a time on an object store",
    },
    "FAISS": {
        "address": "``gallery.faiss``, ``faiss://``",
        "scale": "limited by memory: every process holds all rows, and reads them when it opens the index",
        "threshold": "``range_search(mu, t)``; in HNSW a few nearest first, then a wide range search",
        "durability": "segments and a manifest, each synced to the disk before it counts; ``faiss://`` keeps nothing",
        "writers": "take turns on one machine by a lock file; readers see a change at their next search",
    },
    "PostgreSQL": {
        "address": "``postgresql://user@host/db#table``",
        "scale": "limited by the server; up to 16,000 dimensions, 2,000 with an approximate index",
        "threshold": "``WHERE mu <#> query <= -t``; with an index the rows sorted by ``mu <#> query``, in growing "
        "batches until one is outside",
        "durability": "transactions, write-ahead log, backups and replicas of the server",
        "writers": "concurrent, from any machine, up to the server's limit",
    },
}


ENGINE_KEYS = {"Lance": "lance", "FAISS": "faiss", "PostgreSQL": "postgres"}  # in records


class EngineTable(RstDirective):
    """Engines side by side, with measurements of two records: ``.. engine-table:: EXACT APPROXIMATE``."""

    required_arguments = 2

    def lines(self, exact):
        """One table; a second argument names the record of approximate indexes."""
        record, approximate = load(self.arguments[0]), load(self.arguments[1])
        rows = [
            [name, *(engine[key] for engine in ENGINES.values())]
            for name, key in (("address", "address"), ("scale", "scale"))
        ]
        size = f"{record['settings']['rows']:,} rows"
        for dim, engines in sorted(exact.items(), key=lambda pair: int(pair[0].split()[-1])):
            cells = [engines[ENGINE_KEYS[name]] for name in ENGINES]
            rows.append(
                [
                    f"exact, {size}, {dim}",
                    *(f"{1000 * c['seconds a query']:.0f} ms per query" for c in cells),
                ]
            )
        checked = [[exact[dim][ENGINE_KEYS[name]] for dim in exact] for name in ENGINES]
        rows.append(
            [
                "exactness",
                *(
                    f"{sum(c['disagreements'] for c in cells)} disagreements with a brute-force scan, in "
                    f"{sum(c['queries'] for c in cells):,} queries with {sum(c['results'] for c in cells):,} results"
                    for cells in checked
                ),
            ]
        )
        indexes = approximate["metrics"]
        cells = []
        for name in ENGINES:
            values = indexes.get(f"{ENGINE_KEYS[name]}-ivf")
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
    """Approximate indexes (rows): time and recall by the size of the cap, build time and size."""

    def lines(self, metrics):
        """One table of a record."""
        settings = load(self.arguments[0])["settings"]
        caps = [name for name in next(iter(metrics.values())) if name.endswith("members")]
        caps = sorted(caps, key=lambda name: int(name.split()[0]))
        title = f"{settings['rows']:,} rows, D = {settings['dim']}"
        header = [title, *(f"caps of {c.split()[0]}" for c in caps), "build", "bytes per row"]
        rows = [
            [
                name,
                *(
                    f"{result[c]['ms a query']:.2g} ms, recall {result[c]['recall']:.4f}"
                    for c in caps
                ),
                f"{result['build seconds']:.0f} s",
                f"{result['bytes a row']:,.0f}",
            ]
            for name, result in metrics.items()
        ]
        return table(header, rows)


class WrappedTable(RstDirective):
    """Wrapped indexes (rows): disagreements with brute force, and time per query."""

    def lines(self, metrics):
        """One table of a record."""
        settings = load(self.arguments[0])["settings"]
        title = f"{settings['rows']:,} vectors, D = {settings['dim']}"
        header = [title, "queries", "results", "disagreements with a brute-force scan", "time"]
        return table(
            header,
            [
                [
                    name,
                    f"{result['queries']:,}",
                    f"{result['results']:,}",
                    f"{result['disagreements']}",
                    f"{result['ms a query']:.0f} ms per query",
                ]
                for name, result in metrics.items()
            ],
        )


class EmojiTable(RstDirective):
    """R@1 between pictures and texts (rows: direction and model): all queries, and fifths of the queries by a score."""

    def lines(self, metrics):
        """One table; mean and standard error over seeds, in percent."""
        header = ["R\\@1, %", "all", "lowest fifth", "second", "third", "fourth", "highest fifth"]
        rankings = [
            ("TwoTowerHead", "by kappa"),
            ("TwoTowerHead", "by top cosine"),
            ("InfoNCE", "by top cosine"),
        ]
        rows = []
        for way in ("picture to text", "text to picture"):
            for model, score in rankings:
                result = metrics[model][way]
                cells = [result["all"], *result[score]]
                shown = [f"{100 * c['mean']:.1f} ± {100 * c['error']:.1f}" for c in cells]
                rows.append([f"{way}, ``{model}``, fifths {score}", *shown])
        return table(header, rows)


class CapsFigure(Directive):
    """Two queries, their caps and the items in them, searched during the build of the docs: ``.. caps-figure::``."""

    def run(self):
        """The figure as inline SVG, with its caption."""
        from aureole.explorer._figures import caps_figure

        return [card(caps_figure(), CAPS)]


CAPS = (
    "Two searches of one gallery of 400 directions on the sphere in three dimensions, seen from the side, with mass "
    "0.9. Both queries have the same mean direction; the vague one has a wider cap and therefore returns more items. "
    "Pale points are on the far side."
)


def card(svg, caption):
    """A figure whose colours are those of the theme, light or dark."""
    html = f'<figure class="adaptive">{svg}<figcaption>{escape(caption)}</figcaption></figure>'
    return nodes.raw("", html, format="html")


class LossTable(RstDirective):
    """Losses: formula, whether they sample, cost, and what they recovered in the toy problem."""

    def lines(self, metrics):
        """One table; the last column comes from the record."""
        rows = []
        for name, formula, draws, cost in LOSSES:
            result = metrics[name]
            error, rank = result["kappa mean relative error"], result["kappa rank correlation"]
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
                    f"mu to {result['mu mean degrees']:.2g}°; {kappa}",
                ]
            )
        lines = table(["Loss", "Formula", "Samples", "Cost", "Recovers"], rows)
        return [lines[0], "   :widths: 20 32 7 13 28", *lines[1:]]


@lru_cache(maxsize=4)
def sections(folder):
    """The sections of the report on a folder of records, by anchor; cached for all directives of a build."""
    from aureole_paper.report import read_report

    return {section.anchor: section for section in read_report(ROOT / folder).sections}


class ReportDirective(Directive):
    """A directive whose first two arguments are a folder of records and the anchor of a section of its report.

    With ``:optional:`` nothing is shown if the section has no records.
    """

    required_arguments = 2
    option_spec: ClassVar = {"optional": directives.flag}

    def run(self):
        """The nodes of the section; if it does not exist, the error lists the sections that do."""
        folder, anchor = self.arguments[:2]
        known = sections(folder)
        if anchor in known:
            return self.shown(known[anchor])
        if "optional" in self.options:
            return []
        raise self.error(f"the report of {folder} has no section {anchor}, only {list(known)}")

    def parsed(self, lines):
        """The nodes of lines of reStructuredText."""
        node = nodes.section()
        node.document = self.state.document
        self.state.nested_parse(StringList(lines, source=self.arguments[0]), 0, node)
        return node.children


class ReportText(ReportDirective):
    """The text of a section, generated from its records: ``.. report-text:: FOLDER ANCHOR``."""

    def shown(self, section):
        """The text as paragraphs."""
        return [nodes.paragraph(text=text) for text in section.text.split("\n\n")]


class ReportTables(ReportDirective):
    """The tables of one section of a report on a folder of records: ``.. report-tables:: FOLDER ANCHOR``."""

    def shown(self, section):
        """The parsed tables, with their captions and the folder of the records."""
        lines = []
        for shown in section.tables:
            pairs = zip(spread(shown), shown.header, strict=True)
            # an @ in a name is not an e-mail address
            header = [": ".join(filter(None, pair)).replace("@", "\\@") for pair in pairs]
            first, *rest = table(header, stressed(shown))
            lines += ["", shown.caption, "", first, "   :class: report", *rest]
        lines += ["", f"Records: ``{self.arguments[0]}``."]
        return self.parsed(lines)


class ReportLists(ReportDirective):
    """The lists of a section, such as of sentences: ``.. report-lists:: FOLDER ANCHOR``."""

    def shown(self, section):
        """Each list under its title; texts of records are shown verbatim, never parsed."""
        content = []
        for gallery in section.galleries:
            title = nodes.paragraph("", "", nodes.strong(text=gallery.title))
            items = [
                nodes.list_item("", nodes.paragraph(text=f"{item.text} ({item.note})"))
                for item in gallery.items
            ]
            content += [title, nodes.bullet_list("", *items)]
        return content


class ReportFigure(ReportDirective):
    """A figure of a section, drawn from the records: ``.. report-figure:: FOLDER ANCHOR NUMBER``."""

    required_arguments = 3

    def shown(self, section):
        """The figure as inline SVG on a white card, with its caption."""
        picture = section.figures[int(self.arguments[2])]
        return [card(picture.svg, picture.caption)]


def spread(shown):
    """The group heading of each column of a table."""
    heads = [head for head, width in shown.spans for _ in range(width)]
    return heads or [""] * len(shown.header)


def stressed(shown):
    """The rows of a table, marked cells in bold."""
    return [
        [f"**{cell}**" if (i, j) in shown.marked else cell for j, cell in enumerate(row)]
        for i, row in enumerate(shown.rows)
    ]


def setup(app):
    app.add_directive("report-text", ReportText)
    app.add_directive("report-tables", ReportTables)
    app.add_directive("report-lists", ReportLists)
    app.add_directive("report-figure", ReportFigure)
    app.add_directive("loss-table", LossTable)
    app.add_directive("engine-table", EngineTable)
    app.add_directive("approximate-table", ApproximateTable)
    app.add_directive("wrapped-table", WrappedTable)
    app.add_directive("emoji-table", EmojiTable)
    app.add_directive("caps-figure", CapsFigure)
    app.add_directive("accuracy-table", AccuracyTable)
    app.add_directive("benchmark-table", BenchmarkTable)
    return {"parallel_read_safe": True}
