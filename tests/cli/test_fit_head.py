"""``aureole fit-head``: what it saves, what it says, what it refuses, and that a kill costs nothing."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from aureole.data import write_columns
from aureole.errors import InvalidInputError
from aureole.sphere import _positivity_table
from aureole.training import FrozenHead
from tests.cli.conftest import QUICK, columns, run


def refused(match, *arguments):
    """Check that a command ends with an error of ours."""
    done = run(*arguments)
    assert done.exit_code == 1
    with pytest.raises(InvalidInputError, match=match):
        raise done.exception


def test_the_head_is_that_of_python(table, fitted):
    out, said = fitted
    given = columns()
    _positivity_table._TABLES.clear()
    head = FrozenHead(dim=4, kappa_pos=8.0, steps=20, items=64).fit(given["v"], given["g"])
    saved = FrozenHead.load(out)
    one, two = head.predict(given["v"]), saved.predict(given["v"])
    torch.testing.assert_close(one.kappa, two.kappa)
    torch.testing.assert_close(one.mu, two.mu)
    assert said["information"] == pytest.approx(head.information_)
    assert (said["rows"], said["groups"], said["dim"], said["kappa_pos"]) == (320, 80, 4, 8.0)
    assert {entry["mass"]: entry["measured"] for entry in said["coverage"]} == head.coverage_
    assert {entry["kappa_pos"]: entry["information"] for entry in said["profile"]} == head.profile_
    assert [path.name for path in out.parent.iterdir()] == ["head"]  # nothing is left beside it


def test_what_is_said_in_plain(table, tmp_path):
    command = ("fit-head", table, "--vector-column", "v", "--group-column", "g", *QUICK)
    done = run(*command, "--out", tmp_path / "head")
    assert done.exit_code == 0, done.output
    for words in ("320 rows; dim 4; κ_pos 8", "nats", "nominal", "90 %", "saved in"):
        assert words in done.stdout
    assert max(map(len, done.stdout.splitlines()[:-2])) <= 80


def test_a_head_is_replaced_only_when_asked(table, fitted, tmp_path):
    out = shutil.copytree(fitted[0], tmp_path / "head")
    command = ("fit-head", table, "--group-column", "g", "--out", out, *QUICK, "--seed", "1")
    before = (out / "weights.safetensors").read_bytes()
    refused("already holds a saved head. Add --overwrite", *command)
    assert (out / "weights.safetensors").read_bytes() == before
    assert run(*command, "--overwrite").exit_code == 0
    assert (out / "weights.safetensors").read_bytes() != before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "photo.jpg").write_text("precious")
    mine = (*command[:4], "--out", tmp_path / "mine", "--overwrite")
    refused("is not a saved head", *mine)
    assert (tmp_path / "mine" / "photo.jpg").read_text() == "precious"


def test_vectors_and_labels_of_two_files(tmp_path):
    given = columns()
    np.save(tmp_path / "v.npy", given["v"])
    np.save(tmp_path / "g.npy", np.arange(320) // 4)
    write_columns(tmp_path / "g.csv", {"g": given["g"], "id": given["id"]})
    for labels in (("g.npy",), ("g.csv", "--group-column", "g")):
        out = tmp_path / f"head-{labels[0]}"
        done = run(
            "fit-head", tmp_path / "v.npy", "--columns-from", tmp_path / labels[0], *labels[1:], "--out", out, *QUICK
        )  # fmt: skip
        assert done.exit_code == 0, done.output
        assert (out / "weights.safetensors").is_file()
    write_columns(tmp_path / "short.csv", {"g": given["g"][:-1]})
    refused(
        "there are 320 vectors, but 319 groups",
        *("fit-head", tmp_path / "v.npy", "--columns-from", tmp_path / "short.csv", "--group-column", "g"),
        *("--out", tmp_path / "none"),
    )  # fmt: skip


def test_pairs_by_row_number_and_by_id(table, tmp_path):
    first, second = np.arange(0, 320, 2), np.arange(1, 320, 2)
    ids = columns()["id"]
    rows = write_columns(tmp_path / "rows.parquet", {"left": first, "right": second})
    named = write_columns(tmp_path / "ids.parquet", {"a": ids[first], "b": ids[second]})
    by_id = ("--pairs", named, "--left", "a", "--right", "b", "--id-column", "id")
    for name, how in (("rows", ("--pairs", rows)), ("ids", by_id)):
        done = run("fit-head", table, *how, "--out", tmp_path / name, *QUICK, "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["pairs"] == 160
    weights = [load_file(tmp_path / name / "weights.safetensors") for name in ("rows", "ids")]
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name])
    far = write_columns(tmp_path / "far.parquet", {"left": [0, 1], "right": [1, 320]})
    refused(
        "row 1 of .* refers to row 320", "fit-head", table, "--pairs", far, "--out", tmp_path / "h"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        (),
        ("--group-column", "g", "--pairs", "p.parquet"),
        ("--group-column", "g", "--dim", "many"),
        ("--group-column", "g", "--dim", "1"),
        ("--group-column", "g", "--steps", "0"),
    ],
)
def test_wrong_use_is_exit_code_2(table, tmp_path, wrong):
    assert run("fit-head", table, "--out", tmp_path / "head", *wrong).exit_code == 2
    assert not (tmp_path / "head").exists()


def test_hostile_tables_are_named(table, tmp_path):
    out = ("--out", tmp_path / "head")
    refused(
        "no column 'label'; its columns are 'v', 'g', 'id'",
        "fit-head",
        table,
        "--group-column",
        "label",
        *out,
    )
    refused("no column 'w'", "fit-head", table, "--vector-column", "w", "--group-column", "g", *out)
    refused("does not exist", "fit-head", tmp_path / "no.parquet", "--group-column", "g", *out)
    given = columns()
    given["g"][7] = None
    holes = write_columns(tmp_path / "holes.parquet", given)
    refused("row 7 .* has no group", "fit-head", holes, "--group-column", "g", *out)
    one = write_columns(tmp_path / "one.parquet", {k: v[:1] for k, v in columns().items()})
    refused("no pair to learn from", "fit-head", one, "--group-column", "g", *out, "--dim", "4")
    empty = write_columns(tmp_path / "empty.parquet", {k: v[:0] for k, v in columns().items()})
    refused("no rows", "fit-head", empty, "--group-column", "g", *out)
    assert not (tmp_path / "head").exists()


def test_an_interrupted_fit_goes_on_to_the_same_weights(table, tmp_path, monkeypatch):
    command = (
        "fit-head",
        table,
        "--group-column",
        "g",
        *QUICK[:4],
        *("--steps", "120", "--items", "64", "--json"),
    )
    assert run(*command, "--out", tmp_path / "whole").exit_code == 0

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("aureole.training.FrozenHead.save", interrupt)
        assert run(*command, "--out", tmp_path / "head").exit_code == 130
    (found,) = tmp_path.glob("head.partial-*/*.safetensors")
    spare = shutil.copytree(found.parent, tmp_path / "spare")
    assert json.loads(run(*command, "--out", tmp_path / "head").stdout)["rows"] == 320
    assert not list(tmp_path.glob("head.partial-*"))
    wanted, weights = (load_file(tmp_path / n / "weights.safetensors") for n in ("whole", "head"))
    assert wanted.keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in wanted.items())
    # that it resumed rather than started again: a damaged checkpoint is noticed
    shutil.copytree(spare, found.parent)
    found.write_text("damaged")
    last = run(*command, "--out", tmp_path / "head", "--overwrite")
    assert last.exit_code == 1
    assert "cannot be read as a checkpoint" in str(last.exception)
