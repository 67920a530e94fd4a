"""``aureole score``: every row once, in its order, with its own id."""

import json

import numpy as np
import pytest

from aureole import VonMisesFisher
from aureole.data import read_column, read_vectors, write_columns
from aureole.errors import InvalidInputError
from aureole.training import FrozenHead
from tests.cli.conftest import columns, run


@pytest.fixture
def few(monkeypatch):
    """Pieces of 100 rows, as if the table were large."""
    monkeypatch.setattr("aureole.data._tables._PIECE_ROWS", 100)
    monkeypatch.setattr("aureole.data._table_files._BATCH", 100)
    monkeypatch.setattr("aureole.training.CHUNK", 100)
    monkeypatch.setattr("aureole.training._assessment.CHUNK", 100)


@pytest.mark.usefixtures("few")
def test_scores_are_those_of_python(table, fitted, tmp_path):
    out = tmp_path / "scored.parquet"
    done = run(
        "score",
        table,
        "--head",
        fitted[0],
        "--out",
        out,
        "--id-column",
        "id",
        "--with-mu",
        "--json",
    )
    assert done.exit_code == 0, done.output
    said, given = json.loads(done.stdout), columns()
    head = FrozenHead.load(fitted[0])
    wanted = head.predict(given["v"])
    assert read_column(out, "id").tolist() == given["id"].tolist()
    np.testing.assert_allclose(read_column(out, "kappa"), wanted.kappa, rtol=1e-5)
    np.testing.assert_allclose(read_vectors(out, "mu"), wanted.mu, atol=1e-5)
    rows = [0, 150, 319]
    posterior = VonMisesFisher(wanted.mu[rows], wanted.kappa[rows])
    other = float(np.median(wanted.kappa))
    cosines = posterior.predictive_cosine(0.9, kappa_pos=head.kappa_pos_, kappa_other=other)
    np.testing.assert_allclose(read_column(out, "cosine_90")[rows], cosines, atol=1e-4)
    assert said["rows"] == 320
    assert said["kappa"]["0.05"] < said["kappa"]["0.5"] < said["kappa"]["0.95"]
    assert [path.name for path in tmp_path.iterdir()] == ["scored.parquet"]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_without_ids_rows_are_numbered(table, fitted, tmp_path, ending):
    out = tmp_path / f"scored{ending}"
    done = run("score", table, "--head", fitted[0], "--out", out, "--mass", "0.95")
    assert done.exit_code == 0, done.output
    assert "320 rows; κ: median" in done.stdout
    if ending == ".jsonl":
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        assert [row["id"] for row in rows] == list(range(320))
        assert set(rows[0]) == {"id", "kappa", "cosine_95"}
    else:
        assert [int(i) for i in read_column(out, "id")] == list(range(320))
        assert len(read_column(out, "cosine_95")) == 320


def test_huge_ids_are_stored_as_they_are(fitted, tmp_path):
    given = columns(things=2)
    given["id"][3] = "<script>\x00\n" + "ü" * 5_000_000
    path = write_columns(tmp_path / "v.parquet", given)
    done = run(
        "score", path, "--head", fitted[0], "--id-column", "id", "--out", tmp_path / "s.parquet"
    )
    assert done.exit_code == 0, done.output
    assert read_column(tmp_path / "s.parquet", "id").tolist() == given["id"].tolist()


def test_one_row_has_a_score(fitted, tmp_path):
    path = write_columns(tmp_path / "v.parquet", {"v": columns()["v"][:1]})
    done = run("score", path, "--head", fitted[0], "--out", tmp_path / "s.parquet")
    assert done.exit_code == 0, done.output
    assert np.isfinite(read_column(tmp_path / "s.parquet", "cosine_90")).all()


def test_what_cannot_be_scored_is_named(table, fitted, tmp_path):
    out = tmp_path / "s.parquet"
    np.save(tmp_path / "ids.npy", np.arange(319))
    np.save(tmp_path / "more.npy", np.arange(321))
    np.save(tmp_path / "narrow.npy", columns()["v"][:, 1:])
    head = ("--head", fitted[0])
    for match, command in {
        "not match row by row": (
            "score",
            table,
            *head,
            "--columns-from",
            tmp_path / "ids.npy",
            "--out",
            out,
        ),
        "or more": ("score", table, *head, "--columns-from", tmp_path / "more.npy", "--out", out),
        "no column 'name'": ("score", table, *head, "--id-column", "name", "--out", out),
        "of 8 dimensions, not 7": ("score", tmp_path / "narrow.npy", *head, "--out", out),
        "would overwrite": ("score", table, *head, "--out", table),
        r"must end in \.parquet": ("score", table, *head, "--out", tmp_path / "s.xlsx"),
        "does not hold a saved model": ("score", table, "--head", tmp_path, "--out", out),
    }.items():
        done = run(*command)
        assert done.exit_code == 1
        with pytest.raises(InvalidInputError, match=match):
            raise done.exception
        assert not out.exists()
        assert not list(tmp_path.glob(".*"))
    assert run("score", table, *head, "--out", out, "--mass", "90").exit_code == 2
