"""The table over HTTP: whole columns, rows by number, search; and input that means harm."""

import base64
import json
import time
from urllib.parse import quote

import numpy as np
import pytest
import torch

from aureole.distributions import VonMisesFisher
from aureole.retrieval import CredibleIndex
from aureole.serve import Service
from aureole.serve._response_models import (
    TableAnswer,
    TableFindAnswer,
    TableIdsAnswer,
    TableRowsAnswer,
)
from tests.serve.conftest import N, ask, error_of, names, running
from tests.serve.served import serving


def get(place, path, model=None):
    status, headers, body = ask(place, "GET", path)
    assert status == 200, body
    assert headers["content-type"] == "application/json"
    assert b"<" not in body
    found = json.loads(body)
    if model is not None:
        model.model_validate(found)
    return found


def post(place, path, body, model):
    status, _, answer = ask(place, "POST", path, body)
    assert status == 200, answer
    assert b"<" not in answer
    return model.model_validate_json(answer)


@pytest.fixture
def order(made):
    kappa = made[1].kappa.tolist()
    return sorted(range(N), key=lambda i: (kappa[i], names()[i]))


def test_columns_are_those_of_the_gallery(place, made, order):
    table = get(place, "/v1/table", TableAnswer)
    assert table["rows"] == N
    assert {c["name"]: c["kind"] for c in table["columns"]} == {
        "kappa": "number", "label": "category", "number": "number", "caption": "text",
    }  # fmt: skip
    assert table["map"]["available"] is False
    assert "aureole index map" in table["map"]["reason"]
    types = {"kappa": "f4", "number": "f4", "label": "u2"}
    data = {}
    for name, kind in types.items():
        status, headers, body = ask(place, "GET", f"/v1/table/columns/{name}")
        assert (status, headers["x-aureole-type"]) == (200, kind)
        assert headers["content-type"] == "application/octet-stream"
        assert headers["etag"] == f'"{table["version"]}"'
        data[name] = np.frombuffer(body, f"<{kind}").tolist()
        known = {"If-None-Match": headers["etag"]}
        assert ask(place, "GET", f"/v1/table/columns/{name}", headers=known)[0] == 304
    assert data["kappa"] == made[1].kappa[order].tolist()
    assert data["number"] == order
    (values,) = [c["values"] for c in table["columns"] if c["name"] == "label"]
    assert [values[code] for code in data["label"]] == [("cat", "dog", "<b>")[i % 3] for i in order]


def test_rows_are_items_in_the_order_of_kappa(place, order, client):
    rows = [N - 1, 0, 7, 7]
    found = post(place, "/v1/table/rows", {"rows": rows}, TableRowsAnswer)
    assert [item.id for item in found.items] == [names()[order[row]] for row in rows]
    item = client.item(found.items[2].id)
    assert found.items[2].model_dump() == {
        name: item[name] for name in type(found.items[2]).model_fields
    }
    assert post(place, "/v1/table/rows", {"rows": []}, TableRowsAnswer).items == []
    ids = post(place, "/v1/table/ids", {"rows": rows, "version": found.version}, TableIdsAnswer)
    assert ids.ids == [item.id for item in found.items]


def test_row_numbers_of_another_version_are_rejected(place):
    answer = ask(place, "POST", "/v1/table/ids", {"rows": [0], "version": "old"})
    assert "has changed" in error_of(answer, 409, "conflict")


@pytest.mark.parametrize("text", ["PICTURE 1", "& more", "passwd", "<", "dog", "x" * 200, "nobody"])
def test_a_search_finds_rows_by_id_and_text(place, made, order, text):
    found = get(place, f"/v1/table/find?text={quote(text)}", TableFindAnswer)
    rows = np.frombuffer(base64.b64decode(found["rows"]), "<u4").tolist()
    wanted = []
    for row, i in enumerate(order):
        texts = [names()[i], f"picture {i} & more", ("cat", "dog", "<b>")[i % 3]]
        if any(text.lower() in each.lower() for each in texts):
            wanted.append(row)
    assert (rows, found["count"], found["truncated"]) == (wanted, len(wanted), False)
    own = get(place, f"/v1/table/find?text={quote(text)}&column=id")
    assert own["count"] == sum(text.lower() in name.lower() for name in names())


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("columns/caption", 422, "invalid_input"),
        ("columns/nobody", 404, "not_found"),
        ("columns/%3Cscript%3E", 404, "not_found"),
        ("columns/..%2f..%2fetc%2fpasswd", 404, "not_found"),
        ("columns/" + "a" * 500, 422, "invalid_input"),
        ("columns/__class__", 404, "not_found"),
        ("find", 422, "invalid_input"),
        ("find?text=", 422, "invalid_input"),
        ("find?text=" + "a" * 201, 422, "invalid_input"),
        ("find?text=a&column=number", 422, "invalid_input"),
        ("find?text=a&column=%3Cscript%3E", 422, "invalid_input"),
        ("find?text=a&column=" + "b" * 500, 422, "invalid_input"),
    ],
)  # fmt: skip
def test_paths_and_searches_that_make_no_sense(place, path, status, code):
    answer = ask(place, "GET", f"/v1/table/{path}")
    error_of(answer, status, code)
    assert b"<" not in answer[2]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("rows", {"rows": [-1]}),
        ("rows", {"rows": [N]}),
        ("rows", {"rows": [2**70]}),
        ("rows", {"rows": [1.5]}),
        ("rows", {"rows": [True]}),
        ("rows", {"rows": ["0"]}),
        ("rows", {"rows": [0] * 501}),
        ("rows", {"rows": None}),
        ("rows", {"rows": [0], "misspelt": 1}),
        ("rows", []),
        ("ids", {"rows": [-1]}),
        ("ids", {"rows": [N]}),
        ("ids", {"rows": [True]}),
        ("ids", {"rows": [0] * 10_001}),
        ("ids", {"rows": [0], "version": "a" * 65}),
    ],
)
def test_bodies_that_make_no_sense(place, path, body):
    answer = ask(place, "POST", f"/v1/table/{path}", body)
    error_of(answer, 422, "invalid_input")
    assert len(answer[2]) < 2000


def test_bytes_that_are_no_text_find_nothing(place):
    for text in ("%ff%fe", "%00", "%ED%A0%80"):
        status, _, body = ask(place, "GET", f"/v1/table/find?text={text}")
        assert status == 200
        assert json.loads(body)["count"] == 0


def test_an_item_that_was_deleted_is_null(tmp_path):
    mu = torch.nn.functional.normalize(torch.randn(3, 4), dim=-1)
    posterior = VonMisesFisher(mu, torch.tensor([1.0, 2.0, 3.0]))
    with CredibleIndex.create(tmp_path / "g.faiss", posterior, list("abc")) as index:
        service = Service(index)
        try:
            with running(service) as place:
                before = get(place, "/v1/table")["version"]
                index.delete(["b"])
                found = post(place, "/v1/table/rows", {"rows": [0, 1, 2]}, TableRowsAnswer)
                assert [item and item.id for item in found.items] == ["a", None, "c"]
                service.refresh(str(tmp_path / "g.faiss"))
                after = get(place, "/v1/table")
                assert (after["rows"], after["version"] == before) == (2, False)
                found = post(place, "/v1/table/rows", {"rows": [0, 1]}, TableRowsAnswer)
                assert [item.id for item in found.items] == ["a", "c"]
        finally:
            service.close()


def rows_become(place, count):
    """Wait until the table has this many rows."""
    end = time.monotonic() + 60
    while get(place, "/v1/table")["rows"] != count:
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def lance_gallery(tmp_path):
    """The address of a gallery of three rows, which other processes may change."""
    pytest.importorskip("lance")
    where = tmp_path / "g.lance"
    CredibleIndex.create(where, VonMisesFisher(torch.eye(4)[:3], 5.0), list("abc")).close()
    return where


def add_row(where, name):
    with CredibleIndex.open(where) as index:
        index.append(VonMisesFisher(torch.eye(4)[3:], 5.0), [name])


def test_refresh_lists_new_rows_at_its_interval(lance_gallery, tmp_path):
    options = ("--refresh", "0.1")
    with serving(lance_gallery, None, *options, log=tmp_path / "log", label=None) as served:
        place = (served.host, served.port)
        assert get(place, "/v1/table")["rows"] == 3
        for count, name in ((4, "d"), (5, "e")):
            add_row(lance_gallery, name)
            rows_become(place, count)


def test_a_look_that_fails_is_logged_and_the_next_one_finds_the_rows(
    lance_gallery, monkeypatch, caplog
):
    with CredibleIndex.open(lance_gallery) as index:
        service = Service(index)
        failures, refresh = iter([OSError("the disk is away")]), service.refresh

        def look(where):
            for failure in failures:
                raise failure
            refresh(where)

        monkeypatch.setattr(service, "refresh", look)
        try:
            with running(service) as place:
                add_row(lance_gallery, "d")
                service.follow(str(lance_gallery), 0.05)
                rows_become(place, 4)
        finally:
            service.close()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "looking for changed rows failed"
    ]
