"""The directives of docs/scale.md: what bulk embedding cost here, and what that makes of larger tables."""

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from docutils.statemachine import StringList
from record_tables import ROOT, RstDirective, load, source, table


class MeasuredDirective(RstDirective):
    """A directive of a record; says how to make the record where there is none."""

    command = ""

    def run(self):
        """The parsed content, or that it has not been measured."""
        if all((ROOT / path).is_file() for path in self.arguments):
            return super().run()
        return [nodes.paragraph(text=f"Not measured yet: {self.command}.")]


class EmbedTable(MeasuredDirective):
    """Rows a second of bulk embedding by workers, and peak memory: ``.. embed-table:: RECORD``."""

    command = "python -m benchmarks.embed"

    def lines(self, metrics):
        """One table, and a sentence on memory and on files that answer late."""
        kinds = [kind for kind in ("images", "captions") if kind in metrics]
        first = metrics[kinds[0]]
        workers = sorted(
            (name for name in first if name.endswith("workers")), key=lambda w: int(w.split()[0])
        )
        header = [
            "",
            "rows",
            "bare loop",
            *(name.replace("1 workers", "1 worker") for name in workers),
            "bytes a row",
        ]
        rows = []
        for kind in kinds:
            found = metrics[kind]
            cells = []
            for name in workers:
                if name not in found:
                    cells.append("not measured")
                    continue
                at = found[name]
                of_one = "" if name == workers[0] else f"{at['of one worker']:.2f} of one worker, "
                cells.append(
                    f"{at['rows a second']:,.0f} rows/s: {of_one}{at['of bare']:.2f} of bare, "
                    f"{at['of bare loops at once']:.2f} of as many bare loops at once"
                )
                if "of loops that decode at once" in at:
                    cells[-1] += (
                        f", {at['of loops that decode at once']:.2f} of as many that decode"
                    )
            bare = f"{found['bare rows a second']:,.0f} rows/s"
            size = f"{found['bytes a row']:,.0f} (D = {found['dim']})"
            rows.append(
                [f"{kind}, batches of {found['batch']}", f"{found['rows']:,}", bare, *cells, size]
            )
        lines = table(header, rows)
        memory = metrics.get("peak memory")
        if memory:
            peaks = ", ".join(
                f"{size / 2**20:,.0f} MiB at {int(n):,} rows"
                for n, size in memory["bytes by rows"].items()
            )
            lines += ["", f"Peak memory of one process: {peaks} ({100 * memory['growth']:+.1f} %)."]
        slow = metrics.get("latency")
        if slow:
            said = "; ".join(f"{name}: {rate:,.0f} rows/s" for name, rate in slow.items()).replace(
                " 1 decoders", " 1 decoder"
            )
            lines += ["", f"Files that answer late, in one process: {said}."]
        return lines


class FaultTable(MeasuredDirective):
    """What SIGKILL at random moments did: ``.. fault-table:: RECORD``."""

    command = "python -m benchmarks.embed_faults"

    def lines(self, metrics):
        """One table."""
        names = {
            "process": "the only process",
            "worker": "a worker of two",
            "driver": "the driver",
            "both": "driver and worker",
        }
        rows = [
            [
                names[kind],
                found["moments"],
                found["killed"],
                found["tables that differ"],
                sum(run["rows before"] > 0 for run in found["runs"]),
            ]
            for kind, found in metrics.items()
        ]
        return table(
            [
                "killed",
                "moments",
                "processes killed",
                "tables that differ",
                "moments with rows in the table already",
            ],
            rows,
        )


class ScalePlan(Directive):
    """Machines, time and money by number of rows, from records and prices: ``.. scale-plan:: EMBED RETRIEVAL``.

    Options are the inputs: ``:core-hour:`` and ``:terabyte-month:`` in dollars, ``:machines:`` of ``:cores:`` each.
    """

    required_arguments = 2
    option_spec = {  # noqa: RUF012
        "core-hour": float,
        "terabyte-month": float,
        "machines": directives.positive_int,
        "cores": directives.positive_int,
    }

    def run(self):
        """The parsed table and where its numbers are from."""
        if not (ROOT / self.arguments[0]).is_file():
            return [nodes.paragraph(text="Not measured yet: python -m benchmarks.embed.")]
        embed, retrieval = (load(path) for path in self.arguments)
        images, index = embed["metrics"]["images"], retrieval["metrics"]["lance-ivf"]
        rate, size = images["1 workers"]["rows a second"], images["bytes a row"]
        known, dim = retrieval["settings"]["rows"], retrieval["settings"]["dim"]
        price, storage = self.options["core-hour"], self.options["terabyte-month"]
        cores = self.options["machines"] * self.options["cores"]
        rows = []
        for n in (10**6, 10**8, 10**9):
            hours = n / rate / 3600
            # rows times lists, and the lists grow as the root of the rows
            build = index["build seconds"] * (n / known) ** 1.5 * (images["dim"] / dim) / 3600
            rows.append(
                [
                    f"{n:,}",
                    f"{hours:,.1f}",
                    f"{_amount(hours / cores)} h",
                    _amount(hours * price, "$"),
                    f"{n * size / 1e9:,.1f} GB",
                    _amount(n * size / 1e12 * storage, "$"),
                    _amount(build),
                    _amount(build * price, "$"),
                ]
            )
        header = [
            "rows", "embedding, core hours", f"on {cores:,} cores", "embedding", "table", "a month of it",
            "index, core hours", "index",
        ]  # fmt: skip
        lines = table(header, rows)
        lines += ["", f"At ${price:g} a core hour and ${storage:g} a terabyte and month."]
        for record, path in zip((embed, retrieval), self.arguments, strict=True):
            lines += source(record, path)
        node = nodes.section()
        node.document = self.state.document
        self.state.nested_parse(StringList(lines, source=self.arguments[0]), 0, node)
        return node.children


def _amount(value, unit=""):
    """A number with two decimals; one that would be 0.00 is said to be less than the least."""
    return f"{unit}{value:,.2f}" if value >= 0.005 else f"< {unit}0.01"


def setup(app):
    app.add_directive("embed-table", EmbedTable)
    app.add_directive("fault-table", FaultTable)
    app.add_directive("scale-plan", ScalePlan)
    return {"parallel_read_safe": True}
