"""Lists of runs: settings, seeds and minutes of folders of records. ``.. run-table:: FOLDER``."""

import json
from statistics import mean

from api_reference import GeneratedDirective
from docutils.parsers.rst import Directive
from facts import ROOT
from record_tables import table


def runs(folder):
    """The records of each setting, sorted by seed."""
    records = {}
    for path in sorted((ROOT / folder).glob("*/seed-*.json")):
        records.setdefault(path.parent.name, []).append(json.loads(path.read_text()))
    return records


def minutes(records):
    """The mean minutes of a run according to its records; empty if they have none."""
    parts = ("seconds_training", "seconds_evaluation", "seconds")
    totals = [sum(r["metrics"].get(part, 0.0) for part in parts) for r in records]
    return f"{mean(totals) / 60:.1f}" if any(totals) else ""


class RunTable(GeneratedDirective, Directive):
    """One row per setting of a folder: the number of seeds, the seeds, and the duration of a run."""

    required_arguments = 1

    def lines(self):
        """One table."""
        rows = []
        for name, records in runs(self.arguments[0]).items():
            seeds = sorted(record["seed"] for record in records)
            commits = sorted({record["commit"] for record in records})
            rows.append(
                [
                    f"``{name}``",
                    len(seeds),
                    ", ".join(map(str, seeds)),
                    minutes(records),
                    ", ".join(commits),
                ]
            )
        return table(["setting", "runs", "seeds or folds", "minutes per run", "commits"], rows)


def setup(app):
    app.add_directive("run-table", RunTable)
    return {"parallel_read_safe": True}
