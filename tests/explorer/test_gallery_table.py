"""The table of a gallery: every number against a slow loop over the rows."""

import base64
import json
import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from aureole.caps import CredibleIndex
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.explorer._gallery_table import GalleryTable

N = 400


def with_labels(ids, kappa, labels):
    kinds = {str: "text", int: "integer", float: "number", bool: "boolean"}
    columns = {"label": kinds[type(labels[0])] if labels else "text"}
    return GalleryTable([(ids, kappa, {"label": labels})], columns, label_column="label")


@pytest.fixture(scope="module")
def rows():
    """(Ids, kappa with many ties, payload), in no order."""
    rng = np.random.default_rng(5)
    ids = [f"Item-{i:04d}" for i in rng.permutation(N)]
    kappa = rng.integers(1, 60, N).astype(np.float32)
    kappa[7] = math.inf
    words = ["Straße", "DOG", "dog house", "cat", "ünï", "", "a\xffb", "x" * 1500 + "end"]
    payload = {
        "label": [f"class {k}" for k in rng.integers(0, 5, N)],
        "caption": [f"{words[i % 8]} number {i}" for i in range(N)],
        "size": rng.integers(-5, 2**40, N).tolist(),
        "price": [*rng.normal(size=N - 2).tolist(), 1e300, math.inf],
        "sold": (rng.random(N) < 0.3).tolist(),
        "tag": [f"tag {i}" for i in range(N)],
    }
    return ids, kappa, payload


KINDS = {
    "label": "text", "caption": "text", "size": "integer", "price": "number", "sold": "boolean",
    "tag": "text",
}  # fmt: skip


@pytest.fixture(scope="module")
def table(rows):
    """The table from batches of different sizes."""
    ids, kappa, payload = rows
    cuts = [0, 1, 1, 100, 399, N]
    batches = [
        (ids[a:b], kappa[a:b], {name: values[a:b] for name, values in payload.items()})
        for a, b in pairwise(cuts)
    ]
    return GalleryTable(batches, KINDS, label_column="label", text_column="caption", version="7")


@pytest.fixture(scope="module")
def order(rows):
    ids, kappa, _ = rows
    return sorted(range(N), key=lambda i: (kappa[i], ids[i]))


def test_rows_are_ordered_by_kappa_then_id(table, rows, order):
    ids, kappa, _ = rows
    assert table.ids(range(N)) == [ids[i] for i in order]
    assert table.columns["kappa"].data.tolist() == [kappa[i] for i in order]
    assert table.numbers([*ids[:5], "item-0001", "", "\ud800"]) == [
        *(order.index(i) for i in range(5)), None, None, None,
    ]  # fmt: skip


def test_columns_have_the_kinds_and_values_of_the_payload(table, rows, order):
    payload = rows[2]
    described = {column["name"]: column for column in table.describe()["columns"]}
    assert list(described) == ["kappa", *KINDS]
    kinds = [column["kind"] for column in described.values()]
    assert kinds == ["number", "category", "text", "number", "number", "category", "text"]
    for name in ("label", "sold"):
        column = table.columns[name]
        assert column.type == "u2"
        assert [column.values[code] for code in column.data] == [payload[name][i] for i in order]
        counts = [payload[name].count(value) for value in column.values]
        assert counts == sorted(counts, reverse=True)
    for name in ("size", "price"):
        wanted = np.array([payload[name][i] for i in order], np.float64)
        with np.errstate(over="ignore"):
            wanted = wanted.astype(np.float32)
        content = table.columns[name].content()
        assert np.frombuffer(content, "<f4").tolist() == wanted.tolist()
        finite = wanted[np.isfinite(wanted)]
        assert described[name]["low"] == finite.min()
        assert described[name]["high"] == finite.max()
    json.dumps(table.describe(), allow_nan=False)


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("dog", None), ("DOG", "caption"), ("strasse", "caption"), ("STRASSE", None), ("Ü", None),
        ("item-00", None), ("item-00", "id"), ("item-00", "caption"), ("class 3", "label"),
        ("class 3", "id"), ("number 1", None), ("number 12\xff", None), ("end", None), ("x" * 200, None),
        ("a\xff", None), ("\x00", None), ("\ud800", None), (" ", "caption"), ("tag 39", None),
    ],
)  # fmt: skip
def test_searches_find_what_a_loop_finds(table, rows, order, text, column):
    ids, _, payload = rows
    texts = {
        "id": ids,
        "label": payload["label"],
        "caption": payload["caption"],
        "tag": payload["tag"],
    }
    searched = texts.values() if column is None else [texts[column]]
    wanted = [
        row
        for row, i in enumerate(order)
        if any(text.casefold() in values[i][:1000].casefold() for values in searched)
    ]
    found, truncated = table.find(text, column)
    assert (found.tolist(), truncated) == (wanted, False)
    assert found.dtype == np.uint32


def test_a_search_returns_no_more_than_its_limit(table):
    found, truncated = table.find("ITEM-", limit=10)
    assert (len(found), truncated) == (10, True)
    found, truncated = table.find("ITEM-", limit=N)
    assert (len(found), truncated) == (N, False)
    with pytest.raises(InvalidInputError, match="empty"):
        table.find("")
    with pytest.raises(InvalidInputError, match="'size' cannot be searched"):
        table.find("1", "size")


def test_a_text_with_many_values_is_no_category():
    ids = [str(i) for i in range(30_000)]
    batch = (ids, np.arange(30_000), {"word": [f"{i % 10_001}" for i in range(30_000)]})
    table = GalleryTable([batch], {"word": "text"})
    assert table.columns["word"].kind == "text"
    assert table.find("10000", "word")[0].tolist() == [10_000, 20_001]
    labelled = GalleryTable([batch], {"word": "text"}, label_column="word")
    assert labelled.columns["word"].kind == "text"
    assert labelled.page("ambiguous", 0, 9, label="10000") == (["10000", "20001"], 2)


def test_a_part_has_the_values_of_its_rows(table):
    rows = [3, 10, 11, 399]
    part = table.embed(rows)
    assert part["rows"] == 4
    for entry in part["columns"]:
        column = table.columns[entry["name"]]
        if column.kind == "text":
            assert "data" not in entry
            continue
        data = np.frombuffer(base64.b64decode(entry["data"]), f"<{entry['type']}")
        wanted = column.data[rows].tolist()
        if column.kind == "category":
            assert [entry["values"][code] for code in data] == [column.values[k] for k in wanted]
            assert len(entry["values"]) == len(set(wanted))
        else:
            assert data.tolist() == wanted
    json.dumps(part, allow_nan=False)


@pytest.mark.parametrize("engine", ["faiss", "lance"])
def test_every_engine_gives_the_same_table(tmp_path, rows, order, engine):
    pytest.importorskip("faiss")
    pytest.importorskip("lance")
    ids, kappa, payload = rows
    payload = payload | {"price": [min(price, 1e30) for price in payload["price"]]}
    payload["caption"] = [text[:900] for text in payload["caption"]]
    mu = torch.nn.functional.normalize(torch.randn(N, 4), dim=-1)
    posterior = VonMisesFisher(mu, torch.from_numpy(kappa))
    with CredibleIndex.create(tmp_path / f"g.{engine}", posterior, ids, payload) as index:
        table = GalleryTable.read(index, "label", "caption")
        assert table.ids(range(N)) == [ids[i] for i in order]
        assert table.labels() == [payload["label"][i] for i in order]
        version = table.version
        index.delete(ids[:1])
        again = GalleryTable.read(index, "label", "caption")
        assert again.version != version
        assert len(again) == N - 1


def test_an_empty_gallery_has_empty_pages():
    empty = with_labels([], np.zeros(0, np.float32), [])
    assert empty.page("ambiguous", 0, 10) == ([], 0)
    assert (empty.rank(3.0), empty.quantiles(), empty.sample(5)) == (0.0, [], [])


def test_ties_and_labels_that_are_no_text():
    kappa = np.array([2, 1, 2, 1, math.inf], np.float32)
    found = with_labels(list("abcde"), kappa, [1, 2, 1, 1, 2])
    assert found.page("ambiguous", 0, 9)[0] == list("bdace")
    assert found.page("certain", 1, 2)[0] == ["c", "a"]
    assert found.page("ambiguous", 0, 9, label="2") == (["b", "e"], 2)
    assert found.classes == [(1, 3), (2, 2)]
    assert found.rank(2.0) == 0.4
    assert found.rank(math.inf) == 0.8
    assert found.sample(100) == list("bdace")
    assert len(found.sample(3)) == 3


@pytest.mark.parametrize(
    ("labels", "asked"),
    [
        ([True, False, True], {"true": "ac", "false": "b", "True": "ac", "1": ""}),
        ([0.25, 0.5, 0.25], {"0.25": "ac", "0.5": "b", "nan": "", "three": ""}),
        ([3, 2**60 + 1, 2**60], {"3": "a", str(2**60 + 1): "b", str(2**60): "c"}),
        (["3.0", "True", "null"], {"3.0": "a", "3": "", "True": "b", "true": "", "null": "c"}),
    ],
)
def test_labels_are_found_as_a_browser_or_python_writes_them(labels, asked):
    found = with_labels(list("abc"), np.arange(3, dtype=np.float32), labels)
    for label, ids in asked.items():
        assert found.page("ambiguous", 0, 9, label=label) == (list(ids), len(ids)), label
