"""aureole tags: what users type, what they read, and the files that leave the tool."""

import csv
import json

import pytest
import torch

from aureole.distributions import VonMisesFisher
from aureole.retrieval import CredibleIndex, Origin, Tags
from tests.cli.conftest import run

pytest.importorskip("lance")
pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    where = tmp_path_factory.mktemp("tagged") / "gallery.lance"
    rng = torch.Generator().manual_seed(0)
    mu = torch.eye(2, 4).repeat_interleave(10, 0) + 0.1 * torch.randn(20, 4, generator=rng)
    posterior = VonMisesFisher(torch.nn.functional.normalize(mu, dim=-1), 20.0 + torch.arange(20))
    labels = ["cat"] * 9 + ["=dog"] * 11
    ids = [f"item {i}" for i in range(20)]
    payload = {"label": labels, "text": [f"text {i}" for i in range(20)]}
    with CredibleIndex.create(str(where), posterior, ids, payload) as index:
        index.origin = Origin(20.0)
    return str(where)


@pytest.fixture
def gallery(made):
    yield made
    for suffix in ("", "-wal", "-shm"):
        Tags.of_gallery(made).file.with_name(f"gallery.lance.tags.sqlite{suffix}").unlink(
            missing_ok=True
        )


def of_json(*arguments):
    done = run("tags", *arguments, "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def test_a_session_of_a_user(gallery, tmp_path):
    assert "no tags" in run("tags", "list", gallery).stdout
    ids = tmp_path / "ids.csv"
    ids.write_text("id\n" + "".join(f"item {i}\n" for i in range(5)))
    added = of_json("add", gallery, "--ids-from", ids, "--tag", "blurred", "--author", "Ann")
    assert added["changed"] == 5
    assert (
        of_json("add", gallery, "--id", "item 9", "--relabel", "--new-label", "cat")["changed"] == 1
    )
    assert of_json("add", gallery, "--id", "item 0", "--relabel")["changed"] == 1
    assert of_json("add", gallery, "--id", "item 1", "--duplicate-of", "item 0")["changed"] == 1
    assert of_json("add", gallery, "--id", "item 0", "--note", "=see [red]me[/red]")["changed"] == 1
    counts = {(c["kind"], c["value"]): c["count"] for c in of_json("list", gallery)["counts"]}
    assert counts["tag", "blurred"] == 5
    shown = run("tags", "list", gallery, "--id", "item 0").stdout
    assert "[red]me[/red]" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert of_json("remove", gallery, "--id", "item 0", "--tag", "blurred")["changed"] == 1
    assert of_json("undo", gallery)["changed"] == 1
    assert of_json("undo", gallery, "--change", added["number"])["changed"] == 5
    assert [e["kind"] for e in of_json("list", gallery, "--id", "item 0")["entries"]] == [
        "note",
        "relabel",
    ]
    assert of_json("list", gallery, "--tag", "blurred")["entries"] == []


def test_exports_and_imports(gallery, tmp_path):
    run(
        "tags",
        "add",
        gallery,
        "--id",
        "item 9",
        "--id",
        "item 0",
        "--relabel",
        "--new-label",
        "=cat",
    )
    run("tags", "add", gallery, "--id", "item 9", "--note", "-1 or not")
    queue = tmp_path / "queue.csv"
    columns = ("--label-column", "label", "--text-column", "text")
    done = of_json("export", gallery, "--queue", *columns, "--out", queue)
    assert (done["rows"], done["missing"]) == (2, 0)
    rows = list(csv.DictReader(queue.read_text().splitlines()))
    # the label of item 9 is that of the other group
    assert [row["id"] for row in rows] == ["item 9", "item 0"]
    first = rows[0]
    assert (first["label"], first["suggested"], first["new_label"]) == (
        "'=dog",
        "cat",
        "'=cat",
    )
    assert float(rows[0]["priority"]) > 0.5 > float(rows[1]["priority"])
    assert rows[0]["text"] == "text 9"
    assert rows[0]["notes"] == "'-1 or not"
    assert float(rows[0]["kappa"]) == 29.0
    for suffix in ("csv", "jsonl", "parquet"):
        out = tmp_path / f"tags.{suffix}"
        assert of_json("export", gallery, "--out", out)["rows"] == 3
        other = tmp_path / f"other-{suffix}.sqlite"
        assert of_json("import", gallery, out, "--tags", other)["changed"] == 3
        with Tags(other) as copy, Tags.of_gallery(gallery) as own:
            assert list(copy.entries()) == list(own.entries())


def test_mistakes_are_one_line(gallery, tmp_path):
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text(
        '{"id": "nobody", "kind": "tag", "value": "x"}\n{"id": "item 1", "kind": "tag", "value": "x"}\n'
    )
    for arguments, words in (
        (("list", "nowhere.lance"), "there is no gallery"),
        (("list", "postgresql://a:secret@h/d#t"), "--tags"),
        (("add", gallery, "--id", "nobody", "--tag", "x"), "'nobody' does not exist"),
        (("add", gallery, "--id", "item 1", "--tag", ""), "must not be empty"),
        (("add", gallery, "--id", "item 1", "--duplicate-of", "item 1"), "itself"),
        (("undo", gallery), "no change"),
        (("import", gallery, str(wrong)), "--skip-unknown"),
        (("export", gallery, "--out", str(tmp_path / "x.xlsx")), "must end in"),
    ):
        done = run("tags", *arguments)
        assert done.exit_code != 0, arguments
        assert words in str(done.exception), (arguments, done.exception)
        assert "secret" not in str(done.exception)
    assert of_json("import", gallery, wrong, "--skip-unknown") | {"file": ""} == {
        "file": "", "number": 1, "changed": 1, "skipped": 1,
    }  # fmt: skip
    one = ("add", gallery, "--id", "item 1")
    for arguments in (
        ("add", gallery, "--tag", "x"),
        one,
        (*one, "--tag", "x", "--new-label", "y"),
        (*one, "--tag", "x", "--relabel"),
    ):
        assert run("tags", *arguments).exit_code == 2
