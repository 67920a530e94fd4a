"""Recompute the numbers of README.md from the JSON records, by code of its own, and report those that differ.

    python tools/check_numbers.py

Uses the standard library only and imports neither aureole nor the docs' extension, so that a mistake in those is found.
Two checks:

1. Rows of the table of results: the folder that a row links to, and the metric that it names, give the mean and its
   standard error.
2. Every other number: ``docs/facts.toml`` quotes the words around it and names the record. The quote, filled in with
   the recomputed number, must occur in README.

Numbers of the paper are not checked here. The exit status is 1 if a number differs.
"""

import json
import re
import statistics
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAPER = "\0"  # stands for a number of the paper in a quote

# the metric of a row, by the words of README, and the value that records store for it
METRICS = {
    "kappa: rank correlation": ("kappa_rank",),
    "kappa: mean error": ("kappa_mae",),
    "spread: rank correlation": ("spread_rank",),
    "entropy: rank correlation": ("entropy_rank",),
    "crop: rank correlation": ("crop_rank",),
    "Recall@1": ("recall_at_1",),
    "90 % caps that contain the latent": ("latent_coverage", "0.9"),
}


def records(path):
    """The records at a path below the repository: a file, or a folder of seeds."""
    place = ROOT / path
    files = sorted(place.glob("seed-*.json")) if place.is_dir() else [place]
    if not files:
        raise SystemExit(f"error: no records in {path}")
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def value(record, keys):
    """The value at a path of keys."""
    for key in keys:
        record = record[int(key) if isinstance(record, list) else key]
    return record


def shown(values, decimals, *, error, percent=False):
    """The mean of the values as README prints it, with its standard error if ``error``."""
    scale = 100 if percent else 1
    values = [scale * v for v in values]
    text = f"{statistics.fmean(values):.{decimals}f}"
    if error:
        text += f" ± {statistics.stdev(values) / len(values) ** 0.5:.{decimals}f}"
    return text + ("%" if percent else "")


def table_rows(readme):
    """(Line number, experiment, metric, our cell, folder) of the rows of the table of results."""
    folder = experiment = None
    for number, line in enumerate(readme.splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or len(cells) != 6 or cells[1] not in METRICS:
            continue
        link = re.search(r"\]\((paper/results/[^)]+)\)", cells[5])
        if link:
            folder, experiment = link[1], cells[0]
        yield number, experiment, cells[1], cells[3], folder


def check_table(readme):
    """(The number of cells checked, the differences)."""
    differences, count = [], 0
    for number, experiment, metric, cell, folder in table_rows(readme):
        values = [value(record["metrics"], METRICS[metric]) for record in records(folder)]
        decimals = len(re.match(r"-?\d+\.?(\d*)", cell)[1])
        options = {"error": "±" in cell, "percent": cell.endswith("%")}
        expected = shown(values, decimals, **options)
        count += 1
        if cell != expected:
            where = f"README.md:{number}: {experiment}, {metric}"
            differences.append(f"{where} is {cell}, but {folder} gives {expected}")
    return count, differences


def recompute(fact):
    """The text of an entry of facts.toml, recomputed; ``PAPER`` for a number of the paper."""
    if fact.startswith("paper#"):
        return PAPER
    reference, layout = fact.rsplit(":", 1)
    path, keys = reference.split("#")
    steps = [step.replace("~1", "/") for step in keys.strip("/").split("/")]
    whole = keys.startswith("/")
    values = [value(r if whole else r["metrics"], steps) for r in records(path)]
    factor = 1.0
    if layout.startswith("*"):
        number, layout = layout[1:].split(" ", 1)
        factor = float(number)
    spec = layout.rstrip("±")
    values = [factor * v for v in values]
    text = format(statistics.fmean(values), spec)
    if layout.endswith("±"):
        text += " ± " + format(statistics.stdev(values) / len(values) ** 0.5, spec)
    return text


def check_quotes(readme):
    """(The number of values checked, the quotes that README does not contain)."""
    flat = " ".join(readme.split())
    entries = tomllib.loads((ROOT / "docs" / "facts.toml").read_text(encoding="utf-8"))["fact"]
    differences, count = [], 0
    for entry in entries:
        quote = " ".join(entry["quote"].format(*map(recompute, entry["from"])).split())
        count += sum(not fact.startswith("paper#") for fact in entry["from"])
        pattern = re.escape(quote).replace(re.escape(PAPER), r"-?[\d.]+(?: ± [\d.]+)?")
        if not re.search(rf"(?<![\d.]){pattern}(?![\d]|\.\d)", flat):
            differences.append(f"README.md should say: {quote.replace(PAPER, '(paper)')}")
    return count, differences


def main():
    """Check README.md and print what differs; the exit status."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows, wrong_rows = check_table(readme)
    quotes, wrong_quotes = check_quotes(readme)
    for difference in (*wrong_rows, *wrong_quotes):
        print(difference)
    print(
        f"{rows} cells and {quotes} quoted values recomputed, {len(wrong_rows + wrong_quotes)} differ"
    )
    return 1 if wrong_rows or wrong_quotes else 0


if __name__ == "__main__":
    sys.exit(main())
