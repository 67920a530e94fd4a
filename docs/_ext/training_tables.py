"""Directives about training: the keys of a config, and several ranks compared with one process."""

from pathlib import Path

from api_reference import GeneratedDirective
from record_tables import table

ROOT = Path(__file__).parents[2]


class ConfigKeys(GeneratedDirective):
    """The keys of a config of one kind: ``.. config-keys:: vectors``."""

    required_arguments = 1

    def lines(self):
        """One table, from the keys that the command checks."""
        from aureole.training._config import KINDS, keys_of

        rows = []
        for name, (_, key, default) in keys_of(KINDS[self.arguments[0]]).items():
            known = isinstance(default, int | float | str)
            shown = f"``{default}``" if known else "" if default is None else "required"
            rows.append([f"``{name}``", shown, key.help])
        return table(["key", "default", "meaning"], rows)


class RankTable(GeneratedDirective):
    """Metrics of one process and of several ranks, from two folders of records: ``.. rank-table:: ONE SEVERAL``."""

    required_arguments = 2

    def lines(self):
        """One table and its provenance."""
        from aureole.records import read_record
        from aureole_paper.records import RECOVERY, compare_ranks

        comparisons = compare_ranks(*(ROOT / folder for folder in self.arguments))
        rows = [
            [
                RECOVERY[c.metric],
                *(f"{m:.4f} ± {e:.4f}" for m, e in (c.one, c.several)),
                f"{c.difference[0]:+.5f} ± {c.difference[1]:.5f}",
                f"{c.errors_apart:.2f}",
            ]
            for c in comparisons
        ]
        header = [
            "",
            "one process",
            f"{comparisons[0].ranks} ranks",
            "difference by seed",
            "standard errors apart",
        ]
        seeds = ", ".join(map(str, comparisons[0].seeds))
        record = read_record(ROOT / self.arguments[1] / f"seed-{comparisons[0].seeds[0]}.json")
        note = f"Seeds {seeds}; mean ± standard error. Records: ``{self.arguments[0]}`` and ``{self.arguments[1]}`` "
        note += f"(``{record.command}``)."
        return [*table(header, rows), "", note]


def setup(app):
    app.add_directive("config-keys", ConfigKeys)
    app.add_directive("rank-table", RankTable)
    return {"parallel_read_safe": True}
