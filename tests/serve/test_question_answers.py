"""Questions over HTTP: what Python finds, and typed errors for everything else."""

import base64
import json
import time

import numpy as np
import pytest

from aureole.explorer import inspect_gallery
from aureole.retrieval import CredibleIndex
from aureole.serve import Service
from aureole.serve._question_answers import QuestionAnswer, QuestionsAnswer
from aureole.serve._response_models import TableFindAnswer
from tests.serve.conftest import N, ask, error_of, running


@pytest.fixture
def answered(index):
    """(Host and port of a service with answers, the answers)."""
    found = inspect_gallery(index, label_column="label")
    service = Service(index, label_column="label", text_column="caption", questions=found)
    with running(service) as place:
        yield place, found
    service.close()


def read(place, path):
    status, _, body = ask(place, "GET", path)
    assert status == 200, body
    return json.loads(body)


def test_answers_are_those_of_python(answered):
    place, found = answered
    about = read(place, "/v1/questions")
    QuestionsAnswer.model_validate(about)
    assert about["available"]
    assert not about["stale"]
    assert about["questions"] == found.summary()
    assert about["confusions"] == json.loads(json.dumps(found.confusions()))
    for name in ("labels", "ambiguous", "outliers"):
        page = read(place, f"/v1/questions/{name}?offset=1&limit=5")
        QuestionAnswer.model_validate(page)
        total, expected = found.answer(name, 1, 5)
        assert page["total"] == total
        assert [entry["id"] for entry in page["entries"]] == [each["id"] for each in expected]
        for entry, each in zip(page["entries"], expected, strict=True):
            assert entry["item"]["id"] == entry["id"]
            assert {key: entry[key] for key in each} == json.loads(json.dumps(each))
    one, two = about["confusions"][0]["codes"]
    page = read(place, f"/v1/questions/ambiguous?one={one}&two={two}&limit=500")
    assert page["total"] == about["confusions"][0]["count"] == len(page["entries"])


def test_the_rows_of_a_question_are_those_of_all_its_items(answered):
    place, found = answered
    about = read(place, "/v1/questions")
    one, two = about["confusions"][0]["codes"]
    for path, name, pair in (
        ("labels/rows", "labels", None),
        ("outliers/rows", "outliers", None),
        (f"ambiguous/rows?one={one}&two={two}", "ambiguous", (one, two)),
    ):
        answer = read(place, f"/v1/questions/{path}")
        TableFindAnswer.model_validate(answer)
        total, entries = found.answer(name, 0, 500, classes=pair)
        rows = np.frombuffer(base64.b64decode(answer["rows"]), "<u4").tolist()
        body = {"rows": rows, "version": answer["version"]}
        ids = json.loads(ask(place, "POST", "/v1/table/ids", body)[2])["ids"]
        assert rows == sorted(rows)
        assert sorted(ids) == sorted(each["id"] for each in entries)
        assert (answer["count"], answer["truncated"]) == (total, False)


def test_the_table_has_suspicions_and_outliers_until_rows_change(answered, made, tmp_path):
    place, found = answered
    names = [column["name"] for column in read(place, "/v1/table")["columns"]]
    for name, values in found.columns().items():
        assert f"questions.{name}" in names
        data = ask(place, "GET", f"/v1/table/columns/questions.{name}")[2]
        np.testing.assert_allclose(np.frombuffer(data, "<f4"), values, rtol=1e-6)
    where = tmp_path / "gallery.faiss"
    with CredibleIndex.create(where, made[1], [f"item {i}" for i in range(N)]) as index:
        service = Service(index, questions=inspect_gallery(index))
        assert set(service.listing.table.columns) == {"kappa", "questions.outlier"}
        index.delete(["item 7"])
        service.refresh(str(where))
        assert set(service.listing.table.columns) == {"kappa"}
        service.close()


def test_errors_are_typed(answered, place):
    there, _ = answered
    for path in (
        "/v1/questions/nothing",
        "/v1/questions/labels?limit=0",
        "/v1/questions/labels?offset=-1",
        "/v1/questions/nothing/rows",
        "/v1/questions/ambiguous/rows?one=-3&two=x",
        "/v1/questions/ambiguous?one=-3&two=x",
        "/v1/questions/duplicates",
    ):
        error_of(ask(there, "GET", path), 422, "invalid_input")
    assert read(there, "/v1/questions/ambiguous?one=1000000&two=5")["entries"] == []
    assert read(there, "/v1/questions/labels?offset=1000000")["entries"] == []
    assert read(there, "/v1/questions/ambiguous/rows?one=1000000&two=5")["count"] == 0
    # a service without answers
    about = read(place, "/v1/questions")
    assert not about["available"]
    assert "aureole inspect" in about["reason"]
    error_of(ask(place, "GET", "/v1/questions/labels"), 404, "not_found")
    error_of(ask(place, "GET", "/v1/questions/labels/rows"), 404, "not_found")


def test_a_small_gallery_is_inspected_when_the_service_starts(made, index):
    service = Service(index, label_column="label")
    service.inspect(str(made[0] / "gallery.faiss"))
    for _ in range(600):
        if service.questions()["available"]:
            break
        time.sleep(0.05)
    expected = inspect_gallery(index, label_column="label")
    assert service.questions()["questions"] == expected.summary()
    assert service.questions()["progress"] is None
    for _ in range(600):
        if "questions.outlier" in service.listing.table.columns:
            break
        time.sleep(0.05)
    assert set(service.listing.table.columns) >= {"questions.suspicion", "questions.outlier"}
    service.close()
