"""Questions and the comparison over HTTP: what Python finds, and typed errors for everything else."""

import base64
import json
import time

import numpy as np
import pytest
import torch

from aureole.distributions import VonMisesFisher
from aureole.explorer import compare_galleries, inspect_gallery, map_path, read_map, write_map
from aureole.retrieval import CredibleIndex
from aureole.serve import Service
from aureole.serve._question_answers import (
    ComparisonAnswer,
    MoversAnswer,
    QuestionAnswer,
    QuestionsAnswer,
    _on_map,
)
from aureole.serve._response_models import TableFindAnswer
from aureole.sphere import normalize
from tests.serve.conftest import N, ask, error_of, running


@pytest.fixture
def answered(made, index):
    """(Host and port, the answers, the comparison) of a service with both."""
    where = str(made[0] / "gallery.faiss")
    found = inspect_gallery(index, label_column="label")
    service = Service(index, label_column="label", text_column="caption", questions=found)
    service.answers.compare(where, where, "label")
    for _ in range(600):
        if service.answers.comparison is not None:
            break
        time.sleep(0.05)
    with CredibleIndex.open(where) as one, CredibleIndex.open(where) as two:
        compared = compare_galleries(
            one, two, label_column="label", names=("gallery.faiss", "gallery.faiss")
        )
    with running(service) as place:
        yield place, found, compared
    service.close()


def read(place, path):
    status, _, body = ask(place, "GET", path)
    assert status == 200, body
    return json.loads(body)


def test_answers_are_those_of_python(answered):
    place, found, _ = answered
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
    place, found, _ = answered
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
        ids = [each["id"] for each in entries]
        body = {"ids": ids}
        numbers = json.loads(ask(place, "POST", "/v1/table/numbers", body)[2])
        rows = np.frombuffer(base64.b64decode(answer["rows"]), "<u4").tolist()
        assert rows == sorted(numbers["rows"])
        assert (answer["count"], answer["truncated"]) == (total, False)
        assert answer["version"] == numbers["version"]


def test_the_table_has_suspicions_and_outliers_until_rows_change(answered, made, tmp_path):
    place, found, _ = answered
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


def test_the_comparison_is_that_of_python(answered):
    place, _, compared = answered
    found = read(place, "/v1/comparison")
    ComparisonAnswer.model_validate(found)
    assert found["summary"] == json.loads(json.dumps(compared.summary()))
    points = np.frombuffer(base64.b64decode(found["points"]), "<f4").reshape(-1, 2)
    assert found["ids"] == compared.ids
    np.testing.assert_array_equal(points[:, 0], compared.first.kappa)
    assert found["maps"] == [None, None]
    for by in ("kappa", "neighbours"):
        page = read(place, f"/v1/comparison/movers?by={by}&limit=7")
        MoversAnswer.model_validate(page)
        assert page["total"] == N
        expected = [entry["id"] for entry in compared.movers(by, 7)]
        assert [entry["id"] for entry in page["entries"]] == expected


def test_a_comparison_has_the_places_of_its_items_on_the_stored_map(tmp_path):
    where = tmp_path / "gallery.faiss"
    mu = normalize(torch.randn(20, 4, generator=torch.Generator().manual_seed(0)))
    ids = [f"item {i}" for i in range(20)]
    with CredibleIndex.create(where, VonMisesFisher(mu, 9.0), ids) as index:
        assert _on_map(index, ids) is None
        write_map(index)
        stored = read_map(index)
        assert stored is not None
        place = dict(zip(stored.ids, stored.xy.tolist(), strict=True))
        packed = _on_map(index, ["item 7", "added later", "item 3"]) or ""
        found = np.frombuffer(base64.b64decode(packed), "<f4").reshape(-1, 2)
        np.testing.assert_array_equal(found[[0, 2]], [place["item 7"], place["item 3"]])
        assert np.isnan(found[1]).all()
        path = map_path(str(where))
        assert path is not None
        path.write_bytes(b"no map")
        assert _on_map(index, ids) is None


def test_errors_are_typed(answered, place):
    there, _, _ = answered
    for path in (
        "/v1/questions/nothing",
        "/v1/questions/labels?limit=0",
        "/v1/questions/labels?offset=-1",
        "/v1/questions/nothing/rows",
        "/v1/questions/ambiguous/rows?one=-3&two=x",
        "/v1/questions/ambiguous?one=-3&two=x",
        "/v1/comparison/movers?by=<script>",
    ):
        error_of(ask(there, "GET", path), 422, "invalid_input")
    assert read(there, "/v1/questions/ambiguous?one=1000000&two=5")["entries"] == []
    assert read(there, "/v1/questions/labels?offset=1000000")["entries"] == []
    assert read(there, "/v1/questions/ambiguous/rows?one=1000000&two=5")["count"] == 0
    for path in ("/v1/questions/duplicates", "/v1/questions/duplicates/rows"):
        assert "--encoder" in error_of(ask(there, "GET", path), 404, "not_found")
    # a service without answers
    about = read(place, "/v1/questions")
    assert not about["available"]
    assert "aureole inspect" in about["reason"]
    error_of(ask(place, "GET", "/v1/questions/labels"), 404, "not_found")
    error_of(ask(place, "GET", "/v1/questions/labels/rows"), 404, "not_found")
    assert not read(place, "/v1/comparison")["available"]
    error_of(ask(place, "GET", "/v1/comparison/movers"), 404, "not_found")


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
