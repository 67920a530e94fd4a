"""``aureole score``: every row once with its own id, the metrics of a head, its page, and hostile tables."""

import json

import numpy as np
import pytest
import torch

from aureole import VonMisesFisher
from aureole.data import read_column, read_vectors, write_columns
from aureole.data._image_files import write_picture
from aureole.errors import InvalidInputError
from aureole.training import FrozenHead
from tests.cli.conftest import columns, run
from tests.explorer.test_page import HOSTILE, Outline


@pytest.fixture
def few(monkeypatch):
    """Pieces of 100 rows, as if the table were large."""
    monkeypatch.setattr("aureole.data._tables._PIECE_ROWS", 100)
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
    assert list(said["kappa"]["quantiles"].values()) == sorted(said["kappa"]["quantiles"].values())
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
    for mass in ("0", "1", "-0.1", "90", "nan"):
        assert run("score", table, *head, "--out", out, "--mass", mass).exit_code == 2, mass
    assert not out.exists()


def test_two_columns_of_one_name_are_refused(fitted, tmp_path):
    (tmp_path / "twice.csv").write_text("id,id,g\n" + "1,2,3\n" * 320)
    np.save(tmp_path / "v.npy", columns()["v"])
    done = run(
        "score", tmp_path / "v.npy", "--head", fitted[0], "--columns-from", tmp_path / "twice.csv",
        "--id-column", "id", "--out", tmp_path / "s.csv",
    )  # fmt: skip
    assert done.exit_code == 1
    assert "twice.csv has several columns named 'id'. Rename" in str(done.exception)
    assert not (tmp_path / "s.csv").exists()


def test_no_input_is_overwritten(fitted, tmp_path):
    given = columns()
    np.save(tmp_path / "v.npy", given["v"])
    others = write_columns(tmp_path / "others.csv", {"g": given["g"], "id": given["id"]})
    before = others.read_bytes()
    (tmp_path / "link.csv").symlink_to(others)
    for target in (others, tmp_path / "." / "others.csv", tmp_path / "link.csv"):
        options = ("--head", fitted[0], "--id-column", "id", "--out", target)
        done = run("score", tmp_path / "v.npy", "--columns-from", others, *options)
        assert done.exit_code == 1
        assert "would overwrite the input" in str(done.exception)
        assert others.read_bytes() == before


def test_scores_metrics_and_page_in_one_run(table, fitted, tmp_path):
    out, page = tmp_path / "s.csv", tmp_path / "p.html"
    command = ("score", table, "--head", fitted[0], "--out", out, "--report", page, "--json")
    plain = json.loads(run(*command).stdout)
    assert "information" not in plain
    assert "320 rows" in page.read_text()
    said = json.loads(run(*command, "--group-column", "g", "--id-column", "id").stdout)
    assert (said["groups"], said["out"], said["report"]) == (80, str(out), str(page))
    assert read_column(out, "id").tolist() == columns()["id"].tolist()


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """Other views of other things, with hostile texts and paths of pictures, of which some are broken."""
    folder = tmp_path_factory.mktemp("test")
    given = columns(things=40, seed=1)
    rng = torch.Generator().manual_seed(0)
    paths = []
    for i in range(160):
        paths.append(f"pictures/{i}.png")
        picture = torch.randint(0, 255, (3, 40, 60), generator=rng, dtype=torch.uint8)
        write_picture(picture, folder / paths[-1])
    for i in range(0, 160, 2):
        (folder / paths[i]).write_bytes(b"%!PS not a picture")
    given["t"] = np.array([f"{HOSTILE} {i} " + "long " * 10_000 for i in range(160)], dtype=object)
    given["p"] = np.array(paths, dtype=object)
    return write_columns(folder / "test.parquet", given)


def test_the_metrics_of_a_head_are_those_of_python(held, fitted):
    command = ("score", held, "--head", fitted[0], "--vector-column", "v")
    done = run(*command, "--group-column", "g", "--json")
    assert done.exit_code == 0, done.output
    said, given = json.loads(done.stdout), columns(things=40, seed=1)
    head = FrozenHead.load(fitted[0])
    groups = np.unique(given["g"], return_inverse=True)[1]
    assert said["information"] == pytest.approx(head.score(given["v"], groups), rel=1e-4)
    wanted = head.coverage(given["v"], groups)
    found = {entry["mass"]: entry["measured"] for entry in said["coverage"]}
    assert found == pytest.approx(wanted, abs=1e-3)
    assert (said["rows"], said["groups"], said["asked"]) == (160, 40, 160)
    assert said["rejection"]["recall_at_1"][0] == pytest.approx(said["recall_at_1"])
    assert sum(said["kappa"]["histogram"]["counts"]) == 160
    plain = run(*command, "--group-column", "g")
    for words in ("160 rows in 40 groups", "rejected", "best order", "nominal"):
        assert words in plain.stdout
    assert max(map(len, plain.stdout.splitlines())) <= 80


def test_hostile_texts_are_text_on_the_page(held, fitted, tmp_path):
    page = tmp_path / "deep" / "report.html"
    done = run(
        "score", held, "--head", fitted[0], "--vector-column", "v", "--group-column", "g",
        "--text-column", "t", "--report", page, "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["report"] == str(page)
    html = page.read_text()
    tags = Outline(html).tags
    assert not {"script", "img"} & set(tags)
    assert html.count("&lt;script&gt;") == 24
    assert html.count("long long") < 24 * 300  # texts are cut
    assert len(html) < 300_000


def test_pictures_are_shown_and_broken_ones_named(held, fitted, tmp_path):
    page = tmp_path / "report.html"
    done = run(
        "score", held, "--head", fitted[0], "--vector-column", "v", "--group-column", "g",
        "--image-column", "p", "--report", page,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    html = page.read_text()
    outline = Outline(html)
    shown, broken = outline.tags.count("img"), html.count("cannot be read as a picture")
    assert shown + broken == 24
    assert shown > 0
    assert broken > 0
    assert all(link.startswith(("#", "data:image/")) for link in outline.links)


def test_wrong_use_and_wrong_groups(held, fitted, tmp_path):
    command = ("score", held, "--head", fitted[0], "--vector-column", "v")
    grouped = (*command, "--group-column", "g")
    assert run(*grouped, "--text-column", "t").exit_code == 2
    both = ("--text-column", "t", "--image-column", "p", "--report", tmp_path / "r.html")
    assert run(*grouped, *both).exit_code == 2
    assert run(*command).exit_code == 2  # neither scores, groups nor a page
    alone = {k: v[:3] for k, v in columns().items() if k != "g"} | {"g": np.arange(3)}
    lonely = write_columns(tmp_path / "lonely.parquet", alone)
    for match, wrong in {
        "no column 'text'": (*grouped, "--text-column", "text", "--report", tmp_path / "r.html"),
        "no two of the 3 rows": (*command[:1], lonely, *command[2:], "--group-column", "g"),
    }.items():
        done = run(*wrong)
        assert done.exit_code == 1
        with pytest.raises(InvalidInputError, match=match):
            raise done.exception
    assert not (tmp_path / "r.html").exists()
