"""The table over HTTP: whole columns, rows by number, search; and input that means harm."""

import base64
import json
from urllib.parse import quote

import numpy as np
import pytest
import torch

from aureole.caps import CredibleIndex
from aureole.distributions import VonMisesFisher
from tests.serve.conftest import N, ask, client_of, error_of, found, names, serving


@pytest.fixture
def order(made):
    kappa = made[1].kappa.tolist()
    return sorted(range(N), key=lambda i: (kappa[i], names()[i]))


def test_columns_are_those_of_the_gallery(client, made, order):
    table = found(client.get("/v1/table"))
    assert table["rows"] == N
    assert {c["name"]: c["kind"] for c in table["columns"]} == {
        "kappa": "number", "label": "category", "number": "number", "caption": "text",
    }  # fmt: skip
    assert table["map"]["available"] is False
    assert "aureole index map" in table["map"]["reason"]
    data = {}
    for name, kind in {"kappa": "f4", "number": "f4", "label": "u2"}.items():
        answer = client.get(f"/v1/table/columns/{name}")
        headers = answer.headers
        assert (answer.status_code, headers["x-aureole-type"]) == (200, kind)
        assert headers["content-type"] == "application/octet-stream"
        assert headers["etag"] == f'"{table["version"]}"'
        data[name] = np.frombuffer(answer.content, f"<{kind}").tolist()
        known = {"If-None-Match": headers["etag"]}
        assert client.get(f"/v1/table/columns/{name}", headers=known).status_code == 304
    assert data["kappa"] == made[1].kappa[order].tolist()
    assert data["number"] == order
    (values,) = [c["values"] for c in table["columns"] if c["name"] == "label"]
    assert [values[code] for code in data["label"]] == [("cat", "dog", "<b>")[i % 3] for i in order]


def test_rows_are_items_and_ids(client, order):
    rows = [N - 1, 0, 7, 7]
    answer = found(client.post("/v1/table/rows", json={"rows": rows}))
    assert [item["id"] for item in answer["items"]] == [names()[order[row]] for row in rows]
    item = found(client.get(f"/v1/items/{answer['items'][2]['id']}"))
    assert answer["items"][2].items() <= item.items()
    assert found(client.post("/v1/table/rows", json={"rows": []}))["items"] == []
    body = {"rows": rows, "version": found(client.get("/v1/table"))["version"]}
    ids = found(client.post("/v1/table/ids", json=body))["ids"]
    assert ids == [item["id"] for item in answer["items"]]
    old = client.post("/v1/table/ids", json={"rows": [0], "version": "old"})
    assert "has changed" in error_of(old, 409, "conflict")


@pytest.mark.parametrize("text", ["PICTURE 1", "& more", "passwd", "<", "dog", "x" * 200, "nobody"])
def test_a_search_finds_rows_by_id_and_text(client, order, text):
    answer = found(client.get(f"/v1/table/find?text={quote(text)}"))
    rows = np.frombuffer(base64.b64decode(answer["rows"]), "<u4").tolist()
    wanted = []
    for row, i in enumerate(order):
        texts = [names()[i], f"picture {i} & more", ("cat", "dog", "<b>")[i % 3]]
        if any(text.lower() in each.lower() for each in texts):
            wanted.append(row)
    assert (rows, answer["count"], answer["truncated"]) == (wanted, len(wanted), False)
    own = found(client.get(f"/v1/table/find?text={quote(text)}&column=id"))
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
        ("find?text=a&column=" + "b" * 500, 422, "invalid_input"),
    ],
)  # fmt: skip
def test_paths_and_searches_that_make_no_sense(client, path, status, code):
    error_of(client.get(f"/v1/table/{path}"), status, code)


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
        ("ids", {"rows": [N]}),
        ("ids", {"rows": [0] * 10_001}),
        ("ids", {"rows": [0], "version": "a" * 65}),
    ],
)
def test_bodies_that_make_no_sense(client, path, body):
    headers = {"Content-Type": "application/json"}
    answer = client.post(f"/v1/table/{path}", content=json.dumps(body), headers=headers)
    error_of(answer, 422, "invalid_input")
    assert len(answer.content) < 2000


def test_bytes_that_are_no_text_find_nothing(place):
    for text in ("%ff%fe", "%00", "%ED%A0%80"):
        assert found(ask(place, "GET", f"/v1/table/find?text={text}"))["count"] == 0


def test_deleted_rows_are_null_and_changed_tables_are_read_again(tmp_path, monkeypatch):
    pytest.importorskip("lance")
    posterior = VonMisesFisher(torch.eye(4)[:3], torch.tensor([1.0, 2.0, 3.0]))
    with (
        CredibleIndex.create(tmp_path / "g.lance", posterior, list("abc")) as index,
        serving(index) as service,
    ):
        client = client_of(service)
        before = found(client.get("/v1/table"))["version"]
        index.delete(["b"])
        answer = found(client.post("/v1/table/rows", json={"rows": [0, 1, 2]}))
        assert [item and item["id"] for item in answer["items"]] == ["a", None, "c"]
        page = found(client.get("/v1/items"))
        assert [item["id"] for item in page["items"]] == ["a", "c"]
        with CredibleIndex.open(tmp_path / "g.lance") as other:  # as another process would
            other.append(VonMisesFisher(torch.eye(4)[3:], torch.tensor([4.0])), ["d"])
        monkeypatch.setattr("aureole.serve._listing._LOOK", 0.0)
        after = found(client.get("/v1/table"))
        assert (after["rows"], after["version"] == before) == (3, False)
        answer = found(client.post("/v1/table/rows", json={"rows": [0, 1, 2]}))
        assert [item["id"] for item in answer["items"]] == ["a", "c", "d"]
