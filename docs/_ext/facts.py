r"""Numbers from records: the syntax of a fact, the role that puts it into a page, and the check of README.md.

A fact is ``PATH#KEY/KEY:FORMAT``. In a page of the docs it is a role::

    {fact}`results/benchmarks/damaged_faiss.json#slowest seconds:.2f`

README.md has plain numbers: docs/facts.toml quotes the words around each and names the record it comes from.
``python docs/_ext/facts.py`` lists the numbers that are out of date.

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
"""

import json
import math
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FACTS = ROOT / "docs" / "facts.toml"
LAYOUT = re.compile(
    r"(?:(?P<reduce>mean|least|most|count)(?: |$))?"
    r"(?:(?P<sign>[*/])(?P<factor>[0-9.e]+)(?: |$))?(?P<spec>[^ ±]*)(?P<error>±?)"
)


class FactError(ValueError):
    """A fact that no record contains; the message names it and what exists instead."""


def fact(text: str, root: Path = ROOT) -> str:
    """The text of a fact, such as ``0.985 ± 0.001``.

    Examples
    --------
    >>> fact("results/scale/embed.json#images/dim")
    '16'
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


def reference_paths(text: str, root: Path = ROOT) -> list[Path]:
    """The records that a fact reads."""
    if text.startswith("paper#"):
        return []
    return [path for part in _parts(_split(text)[0]) for path in _files(part[1], root, text)]


def quotes(path: Path = FACTS, root: Path = ROOT) -> list[str]:
    """The quotes of docs/facts.toml with the numbers of the records filled in.

    Examples
    --------
    >>> [quote for quote in quotes() if "bare model" in quote]
    ['| rows | 826 rows/s, 0.95 of the bare model |']
    """
    entries = tomllib.loads(path.read_text())["fact"]
    return [
        entry["quote"].format(*(fact(text, root) for text in entry["from"])) for entry in entries
    ]


def stale(text: str, path: Path = FACTS, root: Path = ROOT) -> list[str]:
    """The quotes that a text does not contain, whatever its line breaks."""
    flat = " ".join(text.split())
    return [quote for quote in quotes(path, root) if " ".join(quote.split()) not in flat]


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


def fact_role(name, rawtext, text, lineno, inliner, options=None, content=None):
    """The nodes of a fact on a page; a fact without a record fails the build, with page and line."""
    from docutils import nodes
    from sphinx.errors import ExtensionError

    try:
        value = fact(text)
        files = reference_paths(text)
    except FactError as error:
        page = inliner.document["source"]
        raise ExtensionError(f"{page}:{lineno}: {error}", modname="facts") from None
    for file in files:
        inliner.document.settings.env.note_dependency(str(file))
    return [nodes.Text(value)], []


def setup(app):
    app.add_role("fact", fact_role)
    return {"parallel_read_safe": True}


def main() -> int:
    """Print the quotes that README.md does not contain; the exit code is 1 if there are any."""
    missing = stale((ROOT / "README.md").read_text())
    sys.stdout.writelines(f"README.md should say: {quote}\n" for quote in missing)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
