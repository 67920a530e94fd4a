r"""Keep the numbers and tables of the Markdown pages equal to the records they come from.

``python tools/pages.py`` lists what is out of date and exits with 1 if anything is; ``--write`` rewrites the pages.
Committed pages are plain Markdown: a number is followed by a comment that names its record, which no reader sees::

    The rank correlation is 0.973 ± 0.004<!--=paper/results/controlled/base#kappa_rank:.3f±-->.

and a table stands between two comments, of which the first says how it is built::

    <!-- table report paper/results/controlled recovery -->
    <!-- end -->

Facts
-----
A fact is ``PATH#KEY/KEY:FORMAT``.

PATH
    A record, a folder of them (one file per seed), or a pattern such as ``paper/results/cifar10h/*/seed-0.json``.
KEY/KEY
    The path of the value in the metrics, or with a leading slash in the whole record: ``#/settings/rows``. A number
    selects an item of a list, ``-1`` the last. A slash inside a key is written ``~1`` (as in JSON pointers). Two
    values can be compared, seed by seed: ``A ÷ B`` and ``A minus B``, where B may be a key of the same record or a
    whole PATH#KEY. ``paper#SETTING/METRIC`` is a number printed in the paper, from ``aureole_paper.paper_values``; it
    needs no format.
FORMAT
    Python's (``.2f``, ``,.0f``, ``.0%``), extended to ``[REDUCE ][*FACTOR |/FACTOR ]SPEC[±]``. For several records
    the mean is shown, with ``±`` also its standard error; REDUCE may be ``least``, ``most`` or ``count`` instead.

Blocks
------
``table report FOLDER ANCHOR`` and ``text report FOLDER ANCHOR``: a section of the report on the paper's experiments.
``table record PATH``: the metrics of a record, settings by measurement. ``table accuracy PATH``: errors by dimension.
``table seeds FOLDER``: one column per seed.
``output PATH``: a text file, verbatim. ``frozen HASH PATH ...``: written by hand from records that have this hash.
"""

import argparse
import hashlib
import json
import math
import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYOUT = re.compile(
    r"(?:(?P<reduce>mean|least|most|count)(?: |$))?"
    r"(?:(?P<sign>[*/])(?P<factor>[0-9.e]+)(?: |$))?(?P<spec>[^ ±]*)(?P<error>±?)"
)
# a number with what belongs to it, or a word, directly before the comment
MARKED = re.compile(
    r"(?P<old>(?:[-+]?[\d.,e]+%? ± )?[^\s|()<>\[\]*`]+)<!--=(?P<fact>.+?)-->", re.DOTALL
)
BLOCK = re.compile(
    r"(?P<start><!-- (?P<spec>(?:table|text|output|frozen) .+?) -->\n)(?P<body>.*?)(?P<end><!-- end -->)",
    re.DOTALL,
)


class FactError(ValueError):
    """A fact that no record contains; the message names it and what exists instead."""


def fact(text: str, root: Path = ROOT) -> str:
    """Return the text of a fact, such as ``0.985 ± 0.001``.

    Examples
    --------
    >>> fact("paper/results/controlled/two-dim#/seed:count")
    '5'
    """
    if text.startswith("paper#"):
        return _paper(text)
    reference, layout = _split(text)
    values = _values(reference, root, text)
    match = LAYOUT.fullmatch(layout)
    if not match:
        raise FactError(
            f"{text}: {layout!r} is not a format; use one such as .2f, *1000 .0f or .3f±"
        )
    if match["reduce"] == "count":
        return format(len(values), match["spec"])
    if len(values) == 1 and not match["sign"] and not match["error"]:
        return _formatted(values[0], match["spec"], text)
    return _measured(values, match, text)


def _paper(text: str) -> str:
    """A number of the paper, as printed there."""
    from aureole_paper.paper_values import PAPER, format_paper

    setting, _, metric = text.removeprefix("paper#").rpartition("/")
    try:
        return format_paper(PAPER[setting][metric])
    except KeyError:
        known = {name: list(values) for name, values in PAPER.items()}
        raise FactError(f"{text}: unknown number of the paper; known are {known}") from None


def _split(text: str) -> tuple[str, str]:
    """The reference and the format, separated by the last colon; the format is optional."""
    reference, colon, layout = text.strip().rpartition(":")
    return (reference.strip(), layout.strip()) if colon else (layout.strip(), "")


def _parts(reference: str) -> list[tuple[str, str, str]]:
    """(sign, path, key) of each value in a reference; a second value without a path uses the first one's records."""
    parts, path = [], ""
    pieces = re.split(r" (÷|minus) ", reference)
    for sign, part in zip(["", *pieces[1::2]], pieces[::2], strict=True):
        before, mark, key = part.rpartition("#")
        path = before if mark else path
        parts.append((sign, path, key))
    return parts


def _values(reference: str, root: Path, text: str) -> list:
    """The value of the reference in each record."""
    columns = []
    for sign, path, key in _parts(reference):
        if not path:
            raise FactError(f"{text}: the path of a record is missing; write PATH#KEY/KEY:FORMAT")
        column = [_value(file, key, root, text) for file in _files(path, root, text)]
        columns.append((sign, column))
    result = columns[0][1]
    for sign, column in columns[1:]:
        if len(column) != len(result):
            raise FactError(
                f"{text}: {len(result)} records on one side, {len(column)} on the other"
            )
        pairs = zip(_numbers(result, text), _numbers(column, text), strict=True)
        result = [a / b if sign == "÷" else a - b for a, b in pairs]
    return result


def _files(path: str, root: Path, text: str) -> list[Path]:
    """The records at a path, in a folder or matching a pattern, sorted."""
    place = root / path
    if place.is_file():
        return [place]
    files = sorted(place.glob("seed-*.json")) if place.is_dir() else sorted(root.glob(path))
    if not files:
        siblings = sorted(p.name for p in place.parent.glob("*"))
        raise FactError(f"{text}: record {path} does not exist; the folder contains {siblings}")
    return files


def _value(file: Path, key: str, root: Path, text: str):
    record = json.loads(file.read_text())
    value = record if key.startswith("/") else record["metrics"]
    for step in key.strip("/").split("/"):
        step = step.strip().replace("~1", "/")
        try:
            value = value[int(step) if isinstance(value, list) else step]
        except (KeyError, IndexError, TypeError, ValueError):
            keys = list(value) if isinstance(value, dict) else type(value).__name__
            where = file.relative_to(root)
            raise FactError(f"{text}: {where} has no key {step!r}, only {keys}") from None
    return value


def _numbers(values: list, text: str) -> list[float]:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise FactError(f"{text}: {value!r} is not a number")
    return values


def _formatted(value, spec: str, text: str) -> str:
    try:
        formatted = format(value, spec)
    except (TypeError, ValueError) as error:
        raise FactError(f"{text}: {value!r} cannot be formatted as {spec!r}: {error}") from None
    return re.sub(r"^-(?=[0.,%]+$)", "", formatted)  # no minus before a zero


def _measured(values: list, layout: re.Match, text: str) -> str:
    """The mean, minimum or maximum of the values, scaled and with its error if the format has these."""
    numbers = _numbers(values, text)
    if layout["sign"]:
        factor = float(layout["factor"])
        numbers = [v * factor if layout["sign"] == "*" else v / factor for v in numbers]
    if layout["reduce"] in ("least", "most"):
        return _formatted(
            (min if layout["reduce"] == "least" else max)(numbers), layout["spec"], text
        )
    mean = math.fsum(numbers) / len(numbers)
    formatted = _formatted(mean, layout["spec"], text)
    if not layout["error"]:
        return formatted
    if len(numbers) < 2:
        raise FactError(f"{text}: a standard error needs at least two records, but there is one")
    spread = math.fsum((v - mean) ** 2 for v in numbers) / (len(numbers) - 1)
    error = _formatted(math.sqrt(spread / len(numbers)), layout["spec"], text)
    return f"{formatted} ± {error}"


def refresh(text: str, root: Path = ROOT) -> str:
    """Return a page with its facts and blocks computed from the records."""

    def block(match: re.Match) -> str:
        kind, *arguments = match["spec"].split()
        if kind == "frozen":
            check_frozen(arguments, root)
            return match[0]
        lines = (
            BLOCKS[f"{kind} {arguments[0]}"](*arguments[1:])
            if kind != "output"
            else output(*arguments)
        )
        return "\n".join([match["start"], *lines, "", match["end"]])

    text = MARKED.sub(lambda match: f"{fact(match['fact'], root)}<!--={match['fact']}-->", text)
    return BLOCK.sub(block, text)


def check_frozen(arguments: list[str], root: Path) -> None:
    """Raise unless the records of a table written by hand are still those it was written from."""
    known, *paths = arguments
    digest = hashlib.sha256(b"".join((root / path).read_bytes() for path in paths)).hexdigest()
    if digest[:12] != known:
        raise FactError(
            f"frozen {known}: {', '.join(paths)} changed; rewrite the table, then put {digest[:12]}"
        )


def table(header: list, rows: list) -> list[str]:
    """Return the lines of a Markdown table; columns of numbers are aligned to the right."""
    rows = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    numbers = [
        all(re.fullmatch(r"[-+*\d.,e%± xs]*", row[i]) for row in rows) for i in range(len(header))
    ]
    rule = ["--:" if number else "---" for number in numbers]
    return [f"| {' | '.join(map(str, row))} |" for row in [header, rule, *rows]]


def load(path: str) -> dict:
    """Return a record as a dictionary."""
    return json.loads((ROOT / path).read_text())


def number(value) -> str:
    """Return a measurement with three significant digits."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def source(path: str) -> list[str]:
    """Return the line that names a record and its command."""
    record = load(path)
    return ["", f"Record `{path}`: `{record['command']}`, torch {record['versions']['torch']}."]


@cache
def sections(folder: str) -> dict:
    """Return the sections of the report on a folder of records, by anchor."""
    from aureole_paper.report import read_report

    return {section.anchor: section for section in read_report(ROOT / folder).sections}


def section(folder: str, anchor: str):
    """Return a section of the report on a folder; raise with the known anchors if it does not exist."""
    known = sections(folder)
    if anchor not in known:
        raise FactError(f"the report on {folder} has no section {anchor}, only {list(known)}")
    return known[anchor]


def report_tables(folder: str, anchor: str) -> list[str]:
    """Return the tables of a section, with their captions and the folder of the records."""
    lines = []
    for shown in section(folder, anchor).tables:
        heads = [head for head, width in shown.spans for _ in range(width)] or [""] * len(
            shown.header
        )
        header = [": ".join(filter(None, pair)) for pair in zip(heads, shown.header, strict=True)]
        rows = [
            [f"**{cell}**" if (i, j) in shown.marked else cell for j, cell in enumerate(row)]
            for i, row in enumerate(shown.rows)
        ]
        lines += [shown.caption, "", *table(header, rows), ""]
    return [*lines, f"Records: `{folder}`."]


def report_text(folder: str, anchor: str) -> list[str]:
    """Return the text of a section, which is generated from its records."""
    return [section(folder, anchor).text]


def record_table(path: str) -> list[str]:
    """Return the metrics of a record: settings by measurement, the more numerous ones as rows."""
    metrics = load(path)["metrics"]
    names = list(dict.fromkeys(name for values in metrics.values() for name in values))
    if len(metrics) > len(names):
        rows = [[s, *(number(v.get(name, "")) for name in names)] for s, v in metrics.items()]
        return [*table(["", *names], rows), *source(path)]
    rows = [[name, *(number(v.get(name, "")) for v in metrics.values())] for name in names]
    return [*table(["", *metrics], rows), *source(path)]


def accuracy_table(path: str) -> list[str]:
    """Return the worst errors by function (rows) and dimension (columns), in float64 and float32."""
    metrics = load(path)["metrics"]
    dims = sorted({d for by in metrics.values() for e in by.values() for d in e}, key=int)
    lines = []
    for dtype in ("float64", "float32"):
        rows = [
            [f"`{name}`", *(f"{by[dtype][d]:.0e}" for d in dims)] for name, by in metrics.items()
        ]
        lines += [*table([f"{dtype}, D =", *dims], rows), ""]
    return [*lines, *source(path)[1:]]


def seeds_table(folder: str) -> list[str]:
    """Return the numbers that the records of a folder have in common, one column per seed."""
    records = [json.loads(path.read_text()) for path in sorted((ROOT / folder).glob("seed-*.json"))]
    names = [
        name for name, value in records[0]["metrics"].items() if isinstance(value, int | float)
    ]
    rows = [
        [name.replace("_", " "), *(number(record["metrics"][name]) for record in records)]
        for name in names
    ]
    return table(["seed", *(str(record["seed"]) for record in records)], rows)


def output(path: str) -> list[str]:
    """Return a text file as a code block."""
    return ["```text", (ROOT / path).read_text(encoding="utf-8").rstrip(), "```"]


BLOCKS = {
    "table report": report_tables,
    "text report": report_text,
    "table record": record_table,
    "table accuracy": accuracy_table,
    "table seeds": seeds_table,
}


def main() -> int:
    """Rewrite the pages, or list those that are out of date."""
    parser = argparse.ArgumentParser(description="Numbers and tables of the Markdown pages.")
    parser.add_argument("--write", action="store_true", help="Rewrite the pages.")
    options = parser.parse_args()
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    stale = 0
    for page in (page for page in pages if "_build" not in page.parts):
        text = page.read_text(encoding="utf-8")
        try:
            fresh = refresh(text)
        except FactError as error:
            print(f"{page.relative_to(ROOT)}: {error}")
            stale += 1
            continue
        if fresh != text:
            stale += not options.write
            print(f"{page.relative_to(ROOT)}: {'rewritten' if options.write else 'out of date'}")
            if options.write:
                page.write_text(fresh, encoding="utf-8")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
