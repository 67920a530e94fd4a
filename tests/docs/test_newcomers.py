"""What newcomers ask is answered by the docs, as recorded by ``python -m benchmarks.docs_reading``."""

import re
from pathlib import Path

import pytest

from aureole.records import read_record
from benchmarks.docs_reading import TARGET, questions

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results" / "docs" / "reading.json"


def plain(text):
    """Markdown without emphasis, code ticks, and the targets of links, on one line."""
    text = re.sub(r"\]\([^)]*\)", "", text)
    return " ".join(re.sub(r"[`*\[\]]|\\(?=@)", "", text).split())


def test_half_of_the_questions_are_from_public_trackers():
    asked = questions()
    public = [question["source"] for question in asked if "source" in question]
    assert len(asked) >= 30
    assert len(public) * 2 >= len(asked)
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", source) for source in public)


@pytest.mark.parametrize("question", questions(), ids=lambda question: question["words"])
def test_the_answer_is_on_its_page(question):
    page = ROOT / "docs" / f"{question['page']}.md"
    assert plain(question["answer"]) in plain(page.read_text(encoding="utf-8"))


@pytest.mark.skipif(not RECORD.exists(), reason="the questions have not been asked yet")
def test_every_question_was_answered_within_the_target():
    found = {answer["question"]: answer for answer in read_record(RECORD).metrics["answers"]}
    for question in questions():
        answer = found[question["ask"]]
        assert answer["answered"], question["ask"]
        assert answer["clicks"] <= TARGET
        for key in ("words", "page", "answer"):
            assert answer[key] == question[key]
