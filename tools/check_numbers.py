"""Recompute the numbers of README.md from the JSON records, by code of its own, and report those that differ.

    python tools/check_numbers.py

Uses the standard library only and imports neither aureole nor the docs' extension, so that a mistake in those is found.
``docs/facts.toml`` quotes the words around each number and names the record. The quote, filled in with the recomputed
number, must occur in README.

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
    count, differences = check_quotes(readme)
    for difference in differences:
        print(difference)
    print(f"{count} values recomputed, {len(differences)} differ")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
