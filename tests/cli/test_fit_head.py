"""``aureole fit-head``: what it saves, what it says, what it refuses, and that a kill costs nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from aureole.data import write_columns
from aureole.errors import InvalidInputError
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


@pytest.mark.slow
def test_markup_in_a_name_is_text(tmp_path):
    """An error that quotes a file's own words must not be read as markup."""
    path = write_columns(tmp_path / "v.parquet", {"[/red][blink]": np.arange(3)})
    done = start("fit-head", path, "--group-column", "g", "--out", tmp_path / "head")
    _, error = done.communicate(timeout=300)
    assert done.returncode == 2
    assert "[/red][blink]" in error
    assert "Traceback" not in error


@pytest.mark.slow
def test_an_error_of_the_disk_is_one_sentence(table, tmp_path):
    (tmp_path / "file").write_text("")
    done = start(
        "fit-head", table, "--group-column", "g", "--out", tmp_path / "file" / "head", *QUICK
    )
    _, error = done.communicate(timeout=300)
    assert done.returncode == 1
    assert "Not a directory" in error
    assert "Traceback" not in error


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "aureole", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "400"},
    )  # fmt: skip


@pytest.mark.slow
def test_a_killed_fit_goes_on_to_the_same_weights(table, tmp_path):
    command = ("fit-head", table, "--group-column", "g", "--dim", "4", "--kappa-pos", "8", "--items", "256",
               "--steps", "120", "--json")  # fmt: skip
    whole = start(*command, "--out", tmp_path / "whole")
    said, error = whole.communicate(timeout=600)
    assert whole.returncode == 0, error
    json.loads(said)
    broken = start(*command, "--out", tmp_path / "head")
    deadline = time.monotonic() + 300
    while not (found := list(tmp_path.glob("head.partial-*/*.safetensors"))):
        assert broken.poll() is None, broken.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    broken.send_signal(signal.SIGKILL)
    broken.communicate()
    assert not (tmp_path / "head").exists()
    spare = shutil.copytree(found[0].parent, tmp_path / "spare")
    again = start(*command, "--out", tmp_path / "head")
    said, error = again.communicate(timeout=600)
    assert again.returncode == 0, error
    assert json.loads(said)["rows"] == 320
    assert not list(tmp_path.glob("head.partial-*"))
    wanted, weights = (load_file(tmp_path / n / "weights.safetensors") for n in ("whole", "head"))
    assert wanted.keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in wanted.items())
    # that it went on, rather than began again: a checkpoint that is damaged is noticed
    shutil.copytree(spare, found[0].parent)
    found[0].write_text("damaged")
    last = start(*command, "--out", tmp_path / "head", "--overwrite")
    assert "cannot be read as a checkpoint" in last.communicate(timeout=600)[1]
    assert last.returncode == 1
