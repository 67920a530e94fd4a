"""``aureole index``: galleries from a head's posteriors, whole or not there."""

import json

import numpy as np
import pytest
import torch

from aureole.caps import CredibleIndex
from aureole.data import write_columns
from aureole.errors import InvalidInputError, MissingInputError
from aureole.sphere import predictive_mass
from aureole.training import FrozenHead
from tests.cli.conftest import QUICK, columns, run

pytest.importorskip("faiss")
pytest.importorskip("lance")


@pytest.fixture(params=["lance", "faiss"])
def out(request, tmp_path):
    return tmp_path / f"gallery.{request.param}"


def build(table, fitted, out, *more):
    return run(
        "index", "build", table, "--vector-column", "v", "--head", fitted[0], "--out", out, *more
    )


def test_rows_are_the_posteriors_of_the_head(table, fitted, out, monkeypatch):
    monkeypatch.setattr("aureole.cli._index.CHUNK", 100)
    done = build(table, fitted, out, "--id-column", "id", "--payload-column", "g", "--json")
    assert done.exit_code == 0, done.exception
    said, given = json.loads(done.stdout), columns()
    head = FrozenHead.load(fitted[0])
    wanted = head.predict(given["v"])
    assert (said["rows"], said["dim"], said["kappa_pos"]) == (320, 4, 8.0)
    assert said["typical_kappa"] == pytest.approx(float(np.median(wanted.kappa)), rel=1e-5)
    with CredibleIndex.open(out) as index:
        stored, payload = index.fetch(given["id"].tolist(), columns=["g"])
    torch.testing.assert_close(stored.mu, wanted.mu, atol=1e-5, rtol=0)
    torch.testing.assert_close(stored.kappa, wanted.kappa, rtol=1e-5, atol=0)
    assert payload["g"] == given["g"].tolist()
    left = {path.name for path in out.parent.iterdir()}
    assert left == {out.name}
    shown = run("index", "info", out).stdout
    for text in ("320 rows in R^4", "g (text)", "every search is exact", "no conformal", "κ_pos 8"):
        assert text in shown


def test_rows_without_ids_are_numbered_and_whole_numbers_are_ids(fitted, tmp_path):
    given = columns(things=3) | {"number": np.arange(100, 112)}
    table = write_columns(tmp_path / "v.parquet", given)
    for option, wanted in (((), "11"), (("--id-column", "number"), "111")):
        place = tmp_path / f"{wanted}.faiss"
        assert build(table, fitted, place, *option).exit_code == 0
        with CredibleIndex.open(place) as index:
            assert len(index.fetch([wanted])[0].kappa) == 1


def test_what_cannot_be_built_is_named_and_nothing_is_left(table, fitted, tmp_path):
    given = columns(things=3)
    gap = {
        "id": np.array(["a", None, *"cdefghijkl"], dtype=object),
        "v": given["v"],
        "x": given["v"][:, 0],
    }
    gap["Price"] = np.arange(12)
    broken = write_columns(tmp_path / "broken.parquet", gap)
    twice = write_columns(
        tmp_path / "twice.parquet", given | {"id": np.array(12 * ["a"], dtype=object)}
    )
    long = given["id"].copy()
    long[3] = "x" * 2000
    long = write_columns(tmp_path / "long.parquet", given | {"id": long})
    stretched = {"mu": 3 * given["v"][:, :4], "kappa": np.ones(12), "text": given["g"]}
    wordy = write_columns(tmp_path / "wordy.parquet", stretched | {"kappa": given["g"]})
    stretched = write_columns(tmp_path / "stretched.parquet", stretched)
    np.save(tmp_path / "narrow.npy", given["v"][:, 1:])
    out = tmp_path / "new" / "gallery.lance"
    head = ("--head", fitted[0], "--vector-column", "v")
    for match, (source, *options) in {
        "row 1 .* has no value": (broken, *head, "--id-column", "id"),
        "float32": (broken, *head, "--id-column", "x"),
        "cannot name a payload column": (broken, *head, "--payload-column", "Price"),
        "given twice": (broken, *head, "--payload-column", "x", "--payload-column", "x=Price"),
        "no column 'name'": (table, *head, "--id-column", "name"),
        "no column 'size'": (table, *head, "--payload-column", "size"),
        "more than once": (twice, *head, "--id-column", "id"),
        "2000 characters": (long, *head, "--id-column", "id"),
        "of 8 dimensions, not 7": (tmp_path / "narrow.npy", "--head", fitted[0]),
        "has no column 'mu'": (table,),
        "unit vectors": (stretched,),
        "column of numbers": (wordy,),
        "does not hold a saved model": (table, "--head", tmp_path),
    }.items():
        done = run("index", "build", source, "--out", out, *options)
        assert done.exit_code == 1, match
        with pytest.raises(InvalidInputError, match=match):
            raise done.exception
        assert not out.parent.exists() or not list(out.parent.iterdir())


def test_an_address_without_an_engine_is_refused_as_it_was_given(table, fitted, tmp_path):
    done = build(table, fitted, tmp_path / "gallery.txt")
    assert done.exit_code == 1
    assert f"'{tmp_path / 'gallery.txt'}' names no engine" in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_a_gallery_is_not_replaced(table, fitted, out):
    assert build(table, fitted, out).exit_code == 0
    done = build(table, fitted, out)
    assert done.exit_code == 1
    assert "already exists" in str(done.exception)
    with CredibleIndex.open(out) as index:
        assert index.count() == 320


def test_another_head_may_not_append(table, fitted, tmp_path):
    out, other = tmp_path / "gallery.faiss", tmp_path / "other"
    assert build(table, fitted, out).exit_code == 0
    run("fit-head", table, "--group-column", "g", "--out", other, *QUICK, "--seed", 9)
    given = columns(things=2) | {"id": np.array([f"new {i}" for i in range(8)], dtype=object)}
    more = write_columns(tmp_path / "more.parquet", given)
    command = ("index", "append", more, "--to", out, "--vector-column", "v", "--id-column", "id")
    done = run(*command, "--head", other)
    assert done.exit_code == 1
    assert "is not the model that produced this gallery" in str(done.exception)
    done = run(*command, "--head", fitted[0])
    assert done.exit_code == 0, done.exception
    assert "8 rows appended; 328 rows" in done.stdout
    again = run(*command, "--head", fitted[0], "--replace", "--json")
    facts = json.loads(again.stdout)
    assert (facts["appended"], facts["replaced"], facts["rows"]) == (0, 8, 328)


def test_appending_in_pieces_says_how_far_it_came(table, fitted, tmp_path, monkeypatch):
    out = tmp_path / "gallery.lance"
    assert build(table, fitted, out, "--id-column", "id").exit_code == 0
    monkeypatch.setattr("aureole.cli._index.CHUNK", 4)
    ids = np.array([f"new {i}" for i in range(8)], dtype=object)
    ids[6] = "view 3"
    more = write_columns(tmp_path / "more.parquet", columns(things=2) | {"id": ids})
    done = run(
        "index",
        "append",
        more,
        "--to",
        out,
        "--vector-column",
        "v",
        "--head",
        fitted[0],
        "--id-column",
        "id",
    )
    assert done.exit_code == 1
    assert "'view 3' is in the gallery already" in str(done.exception)
    assert "before row 4" in str(done.exception)
    assert "324 rows" in run("index", "info", out).stdout


def test_wrong_commands_have_the_exit_code_2(table, fitted, tmp_path):
    out = tmp_path / "gallery.lance"
    for options in (
        ("--out", "faiss://"),
        ("--out", out, "--conformal", table),
        (),
    ):
        done = run("index", "build", table, "--vector-column", "v", "--head", fitted[0], *options)
        assert done.exit_code == 2, options
    scored = run("index", "build", table, "--group-column", "g", "--out", out)
    assert scored.exit_code == 2
    assert run("index").exit_code == 2
    (tmp_path / "damaged.lance" / "_versions").mkdir(parents=True)
    (tmp_path / "damaged.lance" / "_versions" / "1.manifest").write_bytes(b"x")
    for where in (
        "damaged.lance",
        "nowhere.lance",
        "nowhere.faiss",
        "gallery.txt",
        "faiss://",
        "'; DROP TABLE x",
    ):
        done = run("index", "info", tmp_path / where if "." in where else where, "--json")
        assert done.exit_code == 1
        assert isinstance(done.exception, InvalidInputError)


def test_check_prints_the_problems_of_a_gallery(table, fitted, tmp_path):
    out = tmp_path / "gallery.faiss"
    assert build(table, fitted, out).exit_code == 0
    done = run("index", "check", out)
    assert done.exit_code == 0, done.exception
    assert done.stdout == f"320 rows in {out} (FAISS): no problems\n"
    out.write_bytes(out.read_bytes()[:-1])
    done = run("index", "check", out)
    assert done.exit_code == 1
    assert done.stdout.count("\n") == 1
    assert f"{out} cannot be read" in done.stdout
    done = run("index", "check", out, "--json")
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert told["rows"] is None
    assert len(told["problems"]) == 1
    assert isinstance(
        run("index", "check", tmp_path / "nowhere.lance").exception, MissingInputError
    )


def test_leftovers_of_a_killed_build_are_removed(table, fitted, tmp_path):
    out = tmp_path / "gallery.lance"
    left = tmp_path / ".gallery.partial.lance"
    left.mkdir()
    (left / "data").touch()
    assert build(table, fitted, out).exit_code == 0
    assert sorted(path.name for path in tmp_path.glob("*gallery*")) == ["gallery.lance"]


def test_a_build_at_an_address_that_the_engine_cannot_write(table, fitted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = build(table, fitted, "s3://bucket/gallery.faiss")
    assert isinstance(done.exception, InvalidInputError)
    assert "FAISS stores galleries in local folders only" in str(done.exception)
    assert not (tmp_path / "s3:").exists()


@pytest.mark.parametrize("own", [True, False])
def test_a_calibration_takes_one_pair_of_each_group(fitted, tmp_path, own):
    out, given = tmp_path / "gallery.faiss", columns(things=8, seed=5)
    held = write_columns(tmp_path / "held.parquet", given)
    table = held if own else write_columns(tmp_path / "v.parquet", columns(things=3))
    other = () if own else ("--conformal", held)
    done = build(table, fitted, out, "--group-column", "g", *other, "--json")
    assert done.exit_code == 0, done.exception
    said = json.loads(done.stdout)
    with CredibleIndex.open(out) as index:
        found = index.conformal
    assert said["conformal"]["pairs"] == 8
    assert said["conformal"]["largest_mass"] == 8 / 9
    assert (found.kappa_pos, found.kappa_other) == (8.0, said["typical_kappa"])
    q = FrozenHead.load(fitted[0]).predict(given["v"])
    angle = torch.acos((q.mu @ q.mu.T).double().clamp(-1, 1))
    used = set()
    for group in range(8):
        rows = torch.arange(4 * group, 4 * group + 4)
        pairs = torch.cartesian_prod(rows, rows)
        left, right = pairs[pairs[:, 0] != pairs[:, 1]].T
        kappa_other = torch.tensor(found.kappa_other, dtype=torch.float64)
        masses = predictive_mass(angle[left, right], q.kappa[left].double(), kappa_other, 8.0, 4)
        near = (masses[:, None] - torch.tensor(found.scores)).abs() < 1e-5
        assert near.any(), group
        used |= set(near.any(0).nonzero().flatten().tolist())
    assert used == set(range(8))
