"""``tools/pages.py``: numbers and tables of the pages come from records."""

import hashlib
import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("pages_tool", ROOT / "tools" / "pages.py")
pages = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = pages
_spec.loader.exec_module(pages)


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
    assert pages.fact(text, records) == said


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
    with pytest.raises(pages.FactError) as error:
        pages.fact(text, records)
    assert complaint in str(error.value)
    assert text in str(error.value)


def test_a_page_is_refreshed_and_keeps_what_is_up_to_date(records):
    page = "It is 2.4<!--=results/run#a:.1f--> of `x` (**9 ± 1**<!--=results/run#a:.3f±-->)."
    page = page.replace(
        "**9 ± 1**<!--=results/run#a:.3f±-->", "**9 ± 1<!--=results/run#a:.3f±-->**"
    )
    fresh = pages.refresh(page, records)
    assert fresh.startswith("It is 2.3<!--=results/run#a:.1f--> of `x` (**2.333 ± 0.882<!--=")
    assert pages.refresh(fresh, records) == fresh


def test_a_table_written_by_hand_is_stale_when_its_record_changes(records):
    path = records / "results/one.json"
    known = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    page = f"<!-- frozen {known} results/one.json -->\n| a |\n|---|\n| 1 |\n\n<!-- end -->\n"
    assert pages.refresh(page, records) == page
    path.write_text(path.read_text() + " ")
    with pytest.raises(pages.FactError, match="rewrite the table"):
        pages.refresh(page, records)


def test_columns_of_numbers_are_aligned_to_the_right():
    assert pages.table(["a", "b"], [["x | y", "0.5 ± 0.1"]]) == [
        "| a | b |",
        "| --- | --: |",
        "| x \\| y | 0.5 ± 0.1 |",
    ]


def test_numbers_of_the_paper_stand_as_it_prints_them():
    assert pages.fact("paper#ambiguous/kappa_mae") == "6.15 ± 0.61"
    with pytest.raises(pages.FactError, match="unknown number of the paper"):
        pages.fact("paper#ambiguous/kappa")


def test_no_page_needs_sphinx_for_its_numbers():
    committed = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for page in committed:
        if "reference" in page.parts or "_build" in page.parts:
            continue
        text = page.read_text(encoding="utf-8")
        assert "{fact}" not in text, page
        assert "{eval-rst}" not in text, page
        lines = [line for line in text.splitlines() if line.lstrip().startswith("<!--=")]
        assert not lines, f"{page}: a comment at the start of a line ends the paragraph"
