"""Numbers in pages and README come from records."""

import json
import subprocess
import sys
from pathlib import Path

import facts
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def records(tmp_path):
    """Three seeds and a record of its own."""
    folder = tmp_path / "results" / "run"
    folder.mkdir(parents=True)
    for seed, value in enumerate((1.0, 2.0, 4.0)):
        metrics = {
            "a": value,
            "b": 2 * value + seed,
            "words": "some",
            "small": -0.001,
            "curve": [{"x": 1}, {"x": seed}],
        }
        record = {"metrics": metrics, "settings": {"rows": 1000 * (seed + 1)}}
        (folder / f"seed-{seed}.json").write_text(json.dumps(record))
    one = {"metrics": {"rows/s": 1234.5, "time: a": 0.25, "on": True}, "command": "python -m demo"}
    (tmp_path / "results" / "one.json").write_text(json.dumps(one))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("results/run#a:.3f", "2.333"),
        ("results/run#a:.3f±", "2.333 ± 0.882"),  # by hand: deviations 4/3, 1/3, 5/3
        ("results/run/seed-*.json#a:least .0f", "1"),
        ("results/run#a:most .0f", "4"),
        ("results/run#a:count", "3"),
        ("results/run/seed-1.json#/settings/rows:,", "2,000"),
        ("results/run#curve/-1/x:.1f", "1.0"),
        ("results/run/seed-2.json#words", "some"),
        ("results/one.json#rows~1s:,.0f", "1,234"),
        ("results/one.json#time: a:*1000 .0f", "250"),
        ("results/one.json#time: a:.0%", "25%"),
        ("results/one.json#rows~1s:/2 .2f", "617.25"),
        ("results/one.json#/command", "python -m demo"),
        ("results/run/seed-0.json#small:.2f", "0.00"),
        ("results/run#b ÷ a:.4f", "2.3333"),  # 2, 2.5, 2.5: seed by seed
        ("results/run#b minus a:.1f", "3.3"),
        ("results/run/seed-0.json#a ÷ results/one.json#time: a:.0f", "4"),
    ],
)
def test_a_fact_says_what_the_records_say(records, text, said):
    assert facts.fact(text, records) == said


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("results/none.json#a:.2f", "record results/none.json does not exist; the folder contains"),
        ("results/one.json#rows:.2f", "has no key 'rows', only"),
        ("results/run#curve/7/x:.2f", "has no key '7', only list"),
        ("results/run#words:.2f", "'some' is not a number"),
        ("results/run/seed-0.json#words:.2f", "cannot be formatted as '.2f'"),
        ("results/one.json#on:*2 .2f", "True is not a number"),
        ("results/one.json#rows~1s:.2f±", "needs at least two records"),
        ("results/one.json#rows~1s:twice the", "is not a format"),
        ("results/run#a ÷ results/one.json#rows~1s:.2f", "3 records on one side, 1 on the other"),
        ("a:.2f", "the path of a record is missing"),
    ],
)
def test_what_no_record_tells_is_an_error_that_names_it(records, text, complaint):
    with pytest.raises(facts.FactError) as error:
        facts.fact(text, records)
    assert complaint in str(error.value)
    assert text in str(error.value)


def test_a_quote_that_is_out_of_date_is_found(records):
    path = records / "facts.toml"
    path.write_text(
        '[[fact]]\nquote = "it is {} of {}"\nfrom = ["results/run#a:.1f", "results/run#a:count"]\n'
    )
    assert facts.quotes(path, records) == ["it is 2.3 of 3"]
    assert facts.stale("So it is\n  2.3 of 3 here.", path, records) == []
    assert facts.stale("So it is 2.4 of 3.", path, records) == ["it is 2.3 of 3"]


def test_the_numbers_of_the_readme_are_those_of_the_records():
    text = (ROOT / "README.md").read_text()
    assert facts.stale(text) == []
    assert "<!--" not in text


def test_the_command_lists_what_is_out_of_date():
    checked = subprocess.run(
        [sys.executable, str(ROOT / "docs/_ext/facts.py")], capture_output=True
    )
    assert (checked.returncode, checked.stdout) == (0, b"")


def test_a_page_shows_facts_in_prose_and_cells_and_an_unknown_one_ends_the_build(tmp_path):
    pytest.importorskip("myst_parser")
    (tmp_path / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT / 'docs/_ext')!r})\n"
        "extensions = ['myst_parser', 'facts']\n"
    )
    page = tmp_path / "index.md"
    role = "{fact}`results/scale/embed.json#images/dim`"
    page.write_text(f"# Title\n\nIt has {role} dimensions.\n\n| D |\n|---|\n| {role}, said |\n")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", str(tmp_path), str(tmp_path / "out")]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    html = (tmp_path / "out" / "index.html").read_text()
    assert "It has 16 dimensions." in html
    assert "<td><p>16, said</p></td>" in html
    page.write_text(
        "# Title\n\nOne.\n\nIt has {fact}`results/scale/embed.json#images/width` of them.\n"
    )
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode != 0
    assert "index.md:5: results/scale/embed.json#images/width" in built.stderr
    assert "has no key 'width', only ['1 workers'" in built.stderr


def test_numbers_of_the_paper_stand_as_it_prints_them():
    assert facts.fact("paper#ambiguous/kappa_mae") == "6.15 ± 0.61"
    with pytest.raises(facts.FactError, match="unknown number of the paper"):
        facts.fact("paper#ambiguous/kappa")


def test_no_line_of_the_readme_begins_with_a_fact():
    """A comment at the start of a line ends the paragraph, for Markdown."""
    lines = (ROOT / "README.md").read_text().splitlines()
    assert [line for line in lines if line.lstrip().startswith("<!--fact")] == []
