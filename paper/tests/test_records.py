"""Reading, grouping, means and standard errors."""

import math
from pathlib import Path

import numpy as np
import pytest

from aureole.errors import InvalidInputError
from aureole.explorer._page import format_number
from aureole_paper.records import (
    Summary,
    format_summary,
    group,
    numbers,
    read_runs,
    setting_values,
    summarise,
    summary,
)

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("n", [2, 3, 5, 40])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_mean_and_standard_error_are_numpys(n, offset):
    values = offset + np.random.default_rng(n).normal(size=n)
    found = summarise(values.tolist())
    assert found.mean == pytest.approx(values.mean(), rel=1e-12)
    assert found.error == pytest.approx(values.std(ddof=1) / np.sqrt(n), rel=1e-8)
    assert found.n == n


def test_one_seed_and_infinite_values_have_no_standard_error():
    assert summarise([3.0]) == Summary(3.0, None, 1)
    assert summarise([3.0, math.inf]) == Summary(math.inf, None, 2)
    with pytest.raises(InvalidInputError, match="empty"):
        summarise([])


def test_what_is_no_number_is_left_out():
    assert numbers([1, 2.5, "inf", "nan", None, True, math.nan, {}, [1]]) == [1.0, 2.5, math.inf]


def test_a_metric_is_summarised_over_the_runs_that_have_it(run):
    runs = [run(seed=4, kappa_mae=1.0), run(seed=5), run(seed=6, kappa_mae=3)]
    assert summary(runs, "kappa_mae") == Summary(2.0, 1.0, 2)
    assert summary(runs, "mu_mae") is None


def test_records_are_read_and_grouped_and_other_files_are_not(write):
    for seed in (10, 9):
        folder = write("clear", seed)
    write("ambiguous")
    (folder / "clear" / "seed-9.safetensors").write_bytes(b"no record")
    (folder / "clear" / "notes.json").write_text("{")
    (folder / "report.html").write_text("<p>")
    groups = group(read_runs(folder))
    assert {name: [r.record.seed for r in runs] for name, runs in groups.items()} == {
        "ambiguous": [4],
        "clear": [9, 10],
    }
    assert groups["clear"][0].path.as_posix() == "clear/seed-9.json"


def test_a_broken_record_is_named(write):
    folder = write("clear")
    (folder / "clear" / "seed-5.json").write_text("{}")
    with pytest.raises(InvalidInputError, match=r"seed-5\.json is not a record"):
        read_runs(folder)


def test_settings_that_differ_among_seeds_are_all_shown(write):
    write("clear", 4)
    folder = write("clear", 5, steps=60)
    runs = group(read_runs(folder))["clear"]
    assert setting_values(runs, "steps") == [2000, 60]
    assert setting_values(runs, "no-such-setting") == []


@pytest.mark.parametrize(
    ("mean", "error", "shown"),
    [
        (0.98912, 0.00134, "0.989 ± 0.001"),
        (0.99423, 0.00031, "0.9942 ± 0.0003"),
        (0.5, 0.0, "0.500"),
        (6.154, 0.612, "6.15 ± 0.61"),
        (125.02, 10.64, "125.0 ± 10.6"),
        (12_345.0, 678.0, "1.2e4 ± 0.1e4"),
        (31_400.0, 300.0, "3.14e4 ± 0.03e4"),
        (0.00042, 0.00011, "4.2e-4 ± 1.1e-4"),
        (1e14, 1e14, "1.0e14 ± 1.0e14"),
        (-0.02, 0.09, "-0.020 ± 0.090"),
        (0.0, 0.01, "0.000 ± 0.010"),
        (math.inf, None, "∞"),
        (0.25, None, "0.250"),
    ],
)
def test_numbers_are_shown_with_as_many_digits_as_they_have(mean, error, shown):
    assert format_summary(Summary(mean, error, 5)) == shown


def test_no_value_is_shown_as_a_dash():
    assert format_summary(None) == "\N{EN DASH}"
    assert format_number(412.4, 0) == "412"
