"""All records as one table."""

import csv
import io
import json
import math

import pytest
from typer.testing import CliRunner

from aureole.cli._app import app
from aureole.data import read_column
from aureole.errors import InvalidInputError
from aureole.explorer import record_rows
from aureole.records import Record, write_record

RUNNER = CliRunner()


@pytest.fixture
def folder(tmp_path):
    for seed, loss in ((4, "closed-form"), (5, "elk")):
        metrics = {"rank": seed / 10, "coverage": {"0.9": 0.85}, "curve": [{"step": 1}]}
        if seed == 5:
            metrics["only here"] = 1
        record = Record(
            "controlled/a", metrics, "aureole a, b", seed, {"loss": loss, "hib": [1, 2]}
        )
        write_record(record, tmp_path / "a" / f"seed-{seed}.json")
    (tmp_path / "a" / "config.json").write_text('{"format": "something else"}')
    (tmp_path / "a" / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[1]")
    return tmp_path


def test_rows_have_the_same_columns_and_no_lists(folder):
    rows = record_rows(folder)
    assert [row["record"] for row in rows] == ["a/seed-4.json", "a/seed-5.json"]
    assert rows[0].keys() == rows[1].keys()
    assert rows[1]["metrics.coverage.0.9"] == 0.85
    assert rows[0]["metrics.only here"] is None
    assert rows[1]["settings.loss"] == "elk"
    assert not any("curve" in name or "hib" in name for name in rows[0])
    assert list(rows[0])[:3] == ["record", "name", "seed"]


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_it_is_written_as_a_table(folder, tmp_path, ending):
    out = tmp_path / f"table.{ending}"
    done = RUNNER.invoke(app, ["results", str(folder), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "2 records with" in done.stdout
    if ending == "jsonl":
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        assert [row["metrics.only here"] for row in rows] == [None, 1.0]
        return
    assert read_column(out, "settings.loss").tolist() == ["closed-form", "elk"]
    if ending == "parquet":
        assert read_column(out, "seed").tolist() == [4, 5]
        assert math.isnan(read_column(out, "metrics.only here")[0])


def test_it_is_printed(folder):
    rows = list(csv.DictReader(io.StringIO(RUNNER.invoke(app, ["results", str(folder)]).stdout)))
    assert [row["metrics.rank"] for row in rows] == ["0.4", "0.5"]
    assert rows[0]["command"] == "aureole a, b"
    found = json.loads(RUNNER.invoke(app, ["results", str(folder), "--json"]).stdout)
    assert found[1]["metrics.only here"] == 1


def test_folders_without_records_are_named(tmp_path):
    with pytest.raises(InvalidInputError, match="no records below"):
        record_rows(tmp_path)
    with pytest.raises(InvalidInputError, match="is not a folder"):
        record_rows(tmp_path / "gone")
