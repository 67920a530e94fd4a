"""Questions over HTTP: what Python finds, and typed errors for everything else."""

import base64
import json

import numpy as np
import pytest

from aureole.caps import CredibleIndex
from aureole.explorer import inspect_gallery
from tests.serve.conftest import N, client_of, error_of, found, serving


@pytest.fixture
def answered(index):
    """(Client of a service with answers, the answers)."""
    answers = inspect_gallery(index, label_column="label")
    options = {"label_column": "label", "text_column": "caption"}
    with serving(index, questions=answers, **options) as service:
        yield client_of(service), answers


def test_answers_are_those_of_python(answered):
    client, answers = answered
    about = found(client.get("/v1/questions"))
    assert (about["available"], about["stale"]) == (True, False)
    assert about["questions"] == answers.summary()
    assert about["confusions"] == json.loads(json.dumps(answers.confusions()))
    for name in ("labels", "ambiguous", "outliers"):
        page = found(client.get(f"/v1/questions/{name}?offset=1&limit=5"))
        total, expected = answers.answer(name, 1, 5)
        assert page["total"] == total
        assert [entry["id"] for entry in page["entries"]] == [each["id"] for each in expected]
        for entry, each in zip(page["entries"], expected, strict=True):
            assert entry["item"]["id"] == entry["id"]
            assert {key: entry[key] for key in each} == json.loads(json.dumps(each))
    one, two = about["confusions"][0]["codes"]
    page = found(client.get(f"/v1/questions/ambiguous?one={one}&two={two}&limit=500"))
    assert page["total"] == about["confusions"][0]["count"] == len(page["entries"])
    for path, name, pair in (
        ("labels/rows", "labels", None),
        ("outliers/rows", "outliers", None),
        (f"ambiguous/rows?one={one}&two={two}", "ambiguous", (one, two)),
    ):
        answer = found(client.get(f"/v1/questions/{path}"))
        total, entries = answers.answer(name, 0, 500, classes=pair)
        rows = np.frombuffer(base64.b64decode(answer["rows"]), "<u4").tolist()
        body = {"rows": rows, "version": answer["version"]}
        ids = found(client.post("/v1/table/ids", json=body))["ids"]
        assert rows == sorted(rows)
        assert sorted(ids) == sorted(each["id"] for each in entries)
        assert (answer["count"], answer["truncated"]) == (total, False)


def test_the_table_has_suspicions_and_outliers_until_rows_change(answered, made, tmp_path):
    client, answers = answered
    for name, values in answers.columns().items():
        data = client.get(f"/v1/table/columns/questions.{name}").content
        np.testing.assert_allclose(np.frombuffer(data, "<f4"), values, rtol=1e-6)
    ids = [f"item {i}" for i in range(N)]
    with (
        CredibleIndex.create(tmp_path / "gallery.faiss", made[1], ids) as index,
        serving(index, questions=inspect_gallery(index)) as service,
    ):
        assert set(service.listing.table.columns) == {"kappa", "questions.outlier"}
        index.delete(["item 7"])
        service.listing._read_if_changed(index)
        assert set(service.listing.table.columns) == {"kappa"}
        assert found(client_of(service).get("/v1/questions"))["stale"]


def test_errors_are_typed(answered, client):
    there, _ = answered
    for path in (
        "nothing", "labels?limit=0", "labels?offset=-1", "nothing/rows", "ambiguous?one=-3&two=x",
        "ambiguous/rows?one=-3&two=x", "duplicates",
    ):  # fmt: skip
        error_of(there.get(f"/v1/questions/{path}"), 422, "invalid_input")
    assert found(there.get("/v1/questions/ambiguous?one=1000000&two=5"))["entries"] == []
    assert found(there.get("/v1/questions/labels?offset=1000000"))["entries"] == []
    about = found(client.get("/v1/questions"))  # of a service without answers
    assert not about["available"]
    assert "aureole inspect" in about["reason"]
    error_of(client.get("/v1/questions/labels"), 404, "not_found")
    error_of(client.get("/v1/questions/labels/rows"), 404, "not_found")
