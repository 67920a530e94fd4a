"""Directives of docs/scale.md: the measured cost of bulk embedding, and an extrapolation to larger tables."""

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from docutils.statemachine import StringList
from record_tables import ROOT, RstDirective, load, source, table


class MeasuredDirective(RstDirective):
    """A directive of a record; if the record is missing, it shows the command that writes it."""

    command = ""

    def run(self):
        """The parsed content, or a note that it has not been measured."""
        if all((ROOT / path).is_file() for path in self.arguments):
            return super().run()
        return [nodes.paragraph(text=f"Not measured yet: {self.command}.")]


class EmbedTable(MeasuredDirective):
    """Rows per second of bulk embedding by workers, and peak memory: ``.. embed-table:: RECORD``."""

    command = "python -m benchmarks.embed"

    def lines(self, metrics):
        """One table, and a sentence on memory and on slow files."""
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
            "bytes per row",
        ]
        rows = []
        for kind in kinds:
            result = metrics[kind]
            cells = []
            for name in workers:
                if name not in result:
                    cells.append("not measured")
                    continue
                at = result[name]
                of_one = "" if name == workers[0] else f"{at['of one worker']:.2f} of one worker, "
                cells.append(
                    f"{at['rows a second']:,.0f} rows/s: {of_one}{at['of bare']:.2f} of bare, "
                    f"{at['of bare loops at once']:.2f} of the same number of bare loops in parallel"
                )
                if "of loops that decode at once" in at:
                    cells[-1] += (
                        f", {at['of loops that decode at once']:.2f} of loops that also decode"
                    )
            bare = f"{result['bare rows a second']:,.0f} rows/s"
            size = f"{result['bytes a row']:,.0f} (D = {result['dim']})"
            rows.append(
                [f"{kind}, batches of {result['batch']}", f"{result['rows']:,}", bare, *cells, size]
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
            rates = "; ".join(f"{name}: {rate:,.0f} rows/s" for name, rate in slow.items()).replace(
                " 1 decoders", " 1 decoder"
            )
            lines += ["", f"Slow files, in one process: {rates}."]
        return lines


class EncoderTable(MeasuredDirective):
    """Rows per second of every kind of encoder through the commands: ``.. encoder-table:: RECORD``."""

    command = "python -m benchmarks.encoders"

    def lines(self, metrics):
        """One table; each cell has the rate and its ratio to the bare loop."""
        commands = ("embed", "score", "search", "serve")
        rows = []
        for found in metrics["encoders"].values():
            cells = [
                f"{found[name]['rate']:,.0f} ({found[name]['ratio']:.2f})"
                if name in found
                else "needs no head"
                for name in commands
            ]
            rows.append([f"``{found['kind']}``", found["model"], f"{found['bare']:,.0f}", *cells])
        header = ["kind", "model", "bare loop, rows/s", *(f"{name} (ratio)" for name in commands)]
        return table(header, rows)


class JobTable(MeasuredDirective):
    """The seconds of the one-command jobs: ``.. job-table:: RECORD``."""

    command = "python -m benchmarks.encoders"

    def lines(self, metrics):
        """One table."""
        rows = [
            [
                f"``{found['command']}``",
                f"{found['rows']:,} in {found['groups']:,}",
                f"{found['seconds']:.0f}",
                f"{found['cpu_seconds']:.0f}",
                f"{found['information']:.2f}",
                f"{found['recall_at_1']:.2f}",
            ]
            for found in metrics["jobs"].values()
        ]
        header = [
            "command",
            "rows in groups",
            "seconds",
            "processor seconds",
            "held-out nats",
            "Recall@1",
        ]
        return table(header, rows)


class ScalePlan(Directive):
    """Time and cost by number of rows, computed from records and prices: ``.. scale-plan:: EMBED RETRIEVAL``.

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
        """The parsed table and the provenance of its numbers."""
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
            "rows", "embedding, core hours", f"on {cores:,} cores", "embedding cost", "table", "storage per month",
            "index, core hours", "index cost",
        ]  # fmt: skip
        lines = table(header, rows)
        lines += ["", f"At ${price:g} per core hour and ${storage:g} per terabyte and month."]
        for record, path in zip((embed, retrieval), self.arguments, strict=True):
            lines += source(record, path)
        node = nodes.section()
        node.document = self.state.document
        self.state.nested_parse(StringList(lines, source=self.arguments[0]), 0, node)
        return node.children


def _amount(value, unit=""):
    """A number with two decimals; one that would be 0.00 is shown as < 0.01."""
    return f"{unit}{value:,.2f}" if value >= 0.005 else f"< {unit}0.01"


def setup(app):
    app.add_directive("embed-table", EmbedTable)
    app.add_directive("encoder-table", EncoderTable)
    app.add_directive("job-table", JobTable)
    app.add_directive("scale-plan", ScalePlan)
    return {"parallel_read_safe": True}
