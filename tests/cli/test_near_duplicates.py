"""``aureole near-duplicates``: what it writes, that it resumes, and what it refuses."""

import csv
import json
import shutil

import numpy as np
import pytest
import typer

from aureole.data import write_columns
from aureole.errors import EncoderError, InvalidInputError, MissingInputError
from tests.cli.conftest import run

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

# hashed words of a text: an encoder that needs no model
TOY = """
import zlib
import numpy as np
def encode(texts):
    out = np.full((len(texts), 128), 0.01)
    for row, text in enumerate(texts):
        for word in text.lower().split():
            out[row, zlib.crc32(word.strip(".!?").encode()) % 128] += 1
    return out
"""
PICTURES = """
import numpy as np
def encode(pictures):
    return np.stack([np.array(p.resize((8, 8)), dtype=float).ravel() + 1 for p in pictures])
encode.kind = "image"
encode.resolution = 8
"""


def said(*arguments):
    """What the command prints as JSON."""
    done = run("near-duplicates", *arguments, "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def refused(error, match, *arguments):
    """A command that ends with one line."""
    done = run("near-duplicates", *arguments)
    assert done.exit_code in (1, 2)
    if isinstance(done.exception, SystemExit):
        assert error is typer.BadParameter
        assert match in " ".join(done.output.replace("│", " ").split())
        return
    with pytest.raises(error, match=match):
        raise done.exception
    assert "\n" not in str(done.exception)


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """The specification of an encoder of texts."""
    path = tmp_path_factory.mktemp("toy") / "toy.py"
    path.write_text(TOY)
    return f"python:{path}:encode"


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A table of sentences; the last ten are copies of the first, five of them with one other word."""
    rng = np.random.default_rng(0)
    sentences = [" ".join(f"word{w}" for w in rng.integers(300, size=12)) for _ in range(400)]
    for row in range(10):
        copy = sentences[row].split()
        if row >= 5:
            copy[4] = "changed"
        sentences.append(" ".join(copy) + ".")
    sentences[20] = "<script>alert(1)</script> =cmd|' /C calc'!A0 " + sentences[20]
    ids = [f"id {i}" for i in range(410)]
    path = tmp_path_factory.mktemp("texts") / "texts.csv"
    columns = {"id": np.array(ids, object), "text": np.array(sentences, object)}
    return write_columns(path, columns)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """(A table of vectors whose last twenty rows are copies, a table of labelled pairs)."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((600, 8))
    rows[-50:] = rows[:50] + 0.01 * rng.standard_normal((50, 8))
    folder = tmp_path_factory.mktemp("vectors")
    np.save(folder / "v.npy", rows.astype(np.float32))
    left, right = np.arange(40), np.arange(550, 590)
    labels = np.ones(40, int)
    labels[:2] = 0
    write_columns(folder / "pairs.csv", {"left": left, "right": right, "same": labels})
    return folder / "v.npy", folder / "pairs.csv"


def options(toy):
    return ("--text-column", "text", "--encoder", toy)


def test_texts(texts, toy, tmp_path):
    out = tmp_path / "out"
    facts = said(texts, *options(toy), "--id-column", "id", "--out", out)
    assert sorted(path.name for path in out.iterdir()) == [
        "groups.csv",
        "near_duplicates.json",
        "page.html",
        "pairs.csv",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # nothing is left next to it
    assert (facts["rows"], facts["equal_pairs"], facts["edited_pairs"]) == (410, 5, 5)
    assert facts["expected_precision"] >= 0.99
    assert facts["edited_copies"] == pytest.approx(5, abs=1)
    pairs = {(row["left"], row["right"]) for row in rows_of(out / "pairs.csv")}
    assert pairs == {(f"id {i}", f"id {400 + i}") for i in range(10)}
    groups = rows_of(out / "groups.csv")
    assert len(groups) == 20
    assert groups[0] == {"group": "0", "row": "0", "id": "id 0"}
    summary = json.loads((out / "near_duplicates.json").read_text())
    assert ["id 3", "id 403"] in summary["members"]
    page = (out / "page.html").read_text()
    assert "5 pairs are equal, 5 are likely edits" in page
    assert "What counts as a duplicate" in page
    assert "<script" not in page


def test_what_is_printed(texts, toy, tmp_path):
    done = run("near-duplicates", texts, *options(toy), "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "410 rows; 10 groups with 20 rows; 5 pairs are equal, 5 are likely edits" in done.stdout
    assert "page written to" in done.stdout


def test_labelled_vectors(vectors, tmp_path):
    table, pairs = vectors
    facts = said(
        table, "--examples", pairs, "--label-column", "same", "--out", tmp_path / "out"
    )  # fmt: skip
    rows = {(int(row["left"]), int(row["right"])) for row in rows_of(tmp_path / "out/pairs.csv")}
    assert rows <= {(i, 550 + i) for i in range(2, 50)}  # those labelled 0 are left out
    assert len(rows) >= 40
    assert facts["examples"] == 38
    assert "Vectors alone" in (tmp_path / "out" / "page.html").read_text()


def test_pictures(tmp_path):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    folder = tmp_path / "photos"
    for label in ("a", "b"):
        (folder / label).mkdir(parents=True)
        for i in range(60):
            small = image.fromarray(rng.integers(0, 255, (6, 6, 3), np.uint8))
            small.resize((64, 64)).save(folder / label / f"{i:02}.png")
    for i in range(5):
        copy = image.open(folder / "a" / f"{i:02}.png")
        copy.save(folder / "b" / f"copy{i}.jpg", quality=60)
    path = tmp_path / "encoder.py"
    path.write_text(PICTURES)
    out = tmp_path / "out"
    facts = said(folder, "--encoder", f"python:{path}:encode", "--out", out, "--made", "150")
    assert facts["rows"] == 125
    pairs = {(row["left"], row["right"]) for row in rows_of(out / "pairs.csv")}
    assert pairs == {(f"a/{i:02}.png", f"b/copy{i}.jpg") for i in range(5)}
    assert (out / "page.html").read_text().count("data:image/jpeg") == 10


def test_a_failed_encoder_resumes(texts, tmp_path):
    path = tmp_path / "encoder.py"
    spec = f"python:{path}:encode"
    broken = TOY.replace(
        "    out =",
        "    if 'word7' in texts[0] and len(texts) > 1: raise OSError('gone')\n    out =",
    )
    path.write_text(broken)
    out = tmp_path / "out"
    command = (texts, "--text-column", "text", "--encoder", spec, "--out", out)
    done = run("near-duplicates", *command)
    assert isinstance(done.exception, EncoderError)
    assert not out.exists()
    path.write_text(TOY)
    assert said(*command)["pairs"] == 10


def test_a_result_is_replaced_only_when_asked(texts, toy, tmp_path):
    out = tmp_path / "out"
    command = (texts, *options(toy), "--out", out)
    said(*command)
    refused(InvalidInputError, "already holds a result. Add --overwrite", *command)
    assert said(*command, "--overwrite", "--precision", "0.5")["precision"] == 0.5
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "photo.jpg").write_text("precious")
    refused(InvalidInputError, "is not a result", *command[:-1], mine, "--overwrite")
    assert (mine / "photo.jpg").read_text() == "precious"


def test_refused_commands_leave_nothing(texts, toy, vectors, tmp_path):
    table, pairs = vectors
    out = tmp_path / "out"
    text = options(toy)
    bad = typer.BadParameter
    cases = [
        (bad, "vectors cannot be edited", table),
        (bad, "--precision must be between 0 and 1", texts, *text, "--precision", "1"),
        (bad, "--precision must be between 0 and 1", texts, *text, "--precision", "nan"),
        (bad, "--label-column needs --examples", texts, *text, "--label-column", "same"),
        (bad, "needs --text-column", texts, "--encoder", toy),
        (MissingInputError, "does not exist", tmp_path / "absent.csv", *text),
        (MissingInputError, "nothing", texts, *text[2:], "--text-column", "nothing"),
        (MissingInputError, "nothing", texts, *text, "--id-column", "nothing"),
        (MissingInputError, "nothing", table, "--examples", pairs, "--left", "nothing"),
    ]
    for error, match, *arguments in cases:
        refused(error, match, *arguments, "--out", out)
        assert list(tmp_path.iterdir()) == []


LABELS = {
    "unknown row": ("0,9999,1", "row 9999"),
    "itself": ("3,3,1", "with itself"),
    "label": ("0,550,maybe", "label 'maybe', not 1 or 0"),
    "no row": ("0,x,1", "whole numbers are expected"),
    "few": ("0,550,1", "20 pairs of copies are needed, but got 1"),
    "none": ("0,550,0", "20 pairs of copies are needed, but got 0"),
}


@pytest.mark.parametrize("name", LABELS)
def test_refused_examples(name, vectors, tmp_path):
    line, match = LABELS[name]
    examples = tmp_path / "examples.csv"
    examples.write_text(f"left,right,same\n{line}\n")
    out = tmp_path / "out"
    command = (vectors[0], "--examples", examples, "--label-column", "same", "--out", out)
    refused(InvalidInputError, match, *command)
    assert [path.name for path in tmp_path.iterdir()] == ["examples.csv"]


def test_a_missing_text_is_named(toy, tmp_path):
    lines = "".join(f'{{"text": "word {i}"}}\n' for i in range(40))
    (tmp_path / "t.jsonl").write_text(lines + '{"text": null}\n')
    refused(
        InvalidInputError, "row 40", tmp_path / "t.jsonl", *options(toy), "--out", tmp_path / "o"
    )
    shutil.rmtree(tmp_path / "o", ignore_errors=True)
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]
