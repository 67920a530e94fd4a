"""Every kind of encoder at every command, the two one-command jobs, and what refused commands leave behind."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

from aureole.data import read_column
from aureole.embed import ModelSpec
from aureole.errors import EncoderError, InvalidInputError, MissingInputError
from aureole.serve._workers import Decoder, ModelProcess
from aureole.training import FrozenHead
from tests.cli.conftest import QUICK, run

pytest.importorskip("lance")
pytest.importorskip("faiss")
pytest.importorskip("lightning_fabric")

THINGS = ["dog", "cat", "car", "boat", "tree", "cake", "piano", "storm", "horse", "tower"]
VIEWS = ["a photo of a {}", "there is a {} here", "one {}", "the old {}", "{}"]
# letters of a text: a real function of texts that needs no model
TOY = """
import numpy as np
def encode(texts):
    counts = [[text.count(c) + 0.01 for c in "abcdefghijklmnoprstuvw"] for text in texts]
    return np.array(counts) / np.linalg.norm(counts, axis=1, keepdims=True)
"""


def said(*arguments):
    """What a command says as JSON."""
    done = run(*arguments, "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def refused(error, match, *arguments):
    """A command that is refused with one line."""
    done = run(*arguments)
    assert done.exit_code in (1, 2)
    with pytest.raises(error, match=match):
        raise done.exception
    assert "\n" not in str(done.exception)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A CSV file of sentences with a group column."""
    path = tmp_path_factory.mktemp("texts") / "texts.csv"
    rows = [(f"id {i}", thing, view.format(f"{colour} {thing}"))
            for i, (thing, colour, view) in enumerate(
                (t, c, v) for t in THINGS for c in ("red", "small") for v in VIEWS)]  # fmt: skip
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("id", "thing", "text"), *rows])
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of class folders."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("photos") / "photos"
    for place, name in enumerate(("blue", "green", "red")):
        (folder / name).mkdir(parents=True)
        for number in range(30):
            pixels = rng.integers(0, 120, (40, 50, 3), dtype=np.uint8)
            pixels[..., place] += 100
            Image.fromarray(pixels).save(folder / name / f"{number:02d}.png")
    return folder


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    path = tmp_path_factory.mktemp("toy") / "toy.py"
    path.write_text(TOY)
    return f"python:{path}:encode"


def test_one_command_from_a_csv_to_a_page(texts, toy, tmp_path):
    out, page = tmp_path / "head", tmp_path / "page.html"
    found = said(
        "fit-head", texts, "--text-column", "text", "--group-column", "thing", "--encoder", toy,
        "--out", out, "--report", page, *QUICK,
    )  # fmt: skip
    assert (found["rows"], found["groups"]) == (100, 10)
    assert found["test"]["rows"] == 20
    text = page.read_text()
    assert "20 held-out rows" in text
    assert "Least certain" in text
    assert any(
        word in text for word in ("a photo of a red", "there is a red", "one red", "the old")
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["head", "page.html"]
    assert FrozenHead.load(out).fingerprint_ is not None
    plain = run("fit-head", texts, "--text-column", "text", "--group-column", "thing",
                "--encoder", toy, "--out", tmp_path / "again", "--report", page, *QUICK)  # fmt: skip
    assert plain.exit_code == 0
    assert f"report written to {page}" in plain.stdout


def test_one_command_from_class_folders_to_a_page(photos, mobilenet_file, tmp_path):
    out, page, scores = tmp_path / "head", tmp_path / "page.html", tmp_path / "scored.parquet"
    found = said(
        "fit-head", photos, "--encoder", f"python:{mobilenet_file}:encode", "--out", out,
        "--report", page, *QUICK,
    )  # fmt: skip
    assert (found["rows"], found["groups"]) == (90, 3)
    assert page.read_text().count("data:image/jpeg") == 24
    model = ("--encoder", f"python:{mobilenet_file}:encode", "--head", out)
    again = ("--out", scores, "--report", tmp_path / "again.html")
    assert said("score", photos, *model, *again)["rows"] == 90
    assert read_column(scores, "id")[0] == "blue/00.png"
    assert (tmp_path / "again.html").read_text().count("data:image/jpeg") == 24
    built = said("index", "build", photos, *model, "--payload-column", "label",
                 "--out", tmp_path / "g.lance")  # fmt: skip
    assert built["rows"] == 90
    near = said(
        "search", tmp_path / "g.lance", "--image", photos / "red" / "03.png", *model, "--limit", 3
    )
    assert near["hits"][0]["id"] == "red/03.png"


@pytest.fixture(scope="module")
def kinds(request, texts, photos, gte, gte_api, mobilenet_file, toy):
    """The specification of each kind, and what it encodes."""
    return {
        "sentence-transformers": (f"sentence-transformers:{gte}", texts),
        "openai": (f"openai:{gte_api[0]}/v1#gte-small", texts),
        "python-text": (toy, texts),
        "python-image": (f"python:{mobilenet_file}:encode", photos),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["sentence-transformers", "openai", "python-text", "python-image"],
)
def test_every_kind_at_every_command(kinds, kind, tmp_path):
    spec, table = kinds[kind]
    is_text = table.suffix == ".csv"
    column = ("--text-column", "text") if is_text else ()
    groups = ("--group-column", "thing") if is_text else ()
    head, scored = tmp_path / "head", tmp_path / "scored.parquet"
    said("fit-head", table, *column, *groups, "--encoder", spec, "--out", head, *QUICK)
    model = (*column, "--encoder", spec, "--head", head)
    ids = ("--id-column", "id") if is_text else ()
    said("score", table, *model, *ids, "--with-mu", "--out", scored)
    kappa = dict(zip(read_column(scored, "id"), read_column(scored, "kappa"), strict=True))
    done = said("embed", table, *model, *ids, "--out", tmp_path / "e.lance")
    assert (done["rows"], done["errors"]) == (len(kappa), 0)
    built = said("index", "build", table, *model, *ids, "--out", tmp_path / "g.faiss")
    assert built["rows"] == len(kappa)
    name = "id 7" if is_text else "green/07.png"
    raw = "there is a small dog here" if is_text else table / name
    name = "id 6" if is_text else name
    query = ("--text", raw) if is_text else ("--image", raw)
    for gallery in ("e.lance", "g.faiss"):
        found = said("search", tmp_path / gallery, *query, *model[len(column) :], "--limit", 5)
        assert found["hits"][0]["id"] == name
        assert found["hits"][0]["cosine"] == pytest.approx(1, abs=1e-4)
        assert found["query"]["kappa"] == pytest.approx(kappa[name], rel=1e-3)
    hosted = ModelProcess(ModelSpec(spec, head), "text" if is_text else "image")
    decoder = Decoder()
    try:
        given = raw if is_text else decoder.decode(raw.read_bytes())
        served_kappa = hosted.arrays([given])[1].item()
    finally:
        hosted.close()
        decoder.close()
    assert served_kappa == pytest.approx(kappa[name], rel=1e-3)
    assert hosted.fingerprint == FrozenHead.load(head).fingerprint_


def test_refused_commands_leave_nothing_behind(texts, toy, photos, tmp_path):
    (tmp_path / "in").mkdir()
    head = tmp_path / "in" / "head"
    text = ("--text-column", "text")
    said(
        "fit-head", texts, *text, "--group-column", "thing", "--encoder", toy, "--out", head, *QUICK
    )
    out = tmp_path / "out"
    out.mkdir()
    model = ("--encoder", toy, "--head", head)
    bad = tmp_path / "in" / "bad.csv"
    bad.write_text("text,thing\na dog,1\n,1\na cat,2\n b,2\n")
    fit = ("fit-head", texts, "--group-column", "thing", "--out", out / "head", *QUICK)
    for error, match, command in (
        (MissingInputError, "no column 'nope'", (*fit, "--text-column", "nope", "--encoder", toy)),
        (MissingInputError, "no column of lists", fit),
        (EncoderError, "cannot be imported", (*fit, *text, "--encoder", "python:nope:f")),
        (InvalidInputError, r"row 1 of .*bad\.csv .*a text must have",
         ("fit-head", bad, *text, "--group-column", "thing", "--encoder", toy, "--out", out / "h", *QUICK)),
        (InvalidInputError, r"row 1 of .*bad\.csv", ("score", bad, *text, *model, "--out", out / "s.csv")),
        (MissingInputError, "no column 'nope'",
         ("embed", texts, "--text-column", "nope", *model, "--out", out / "e.lance")),
        (EncoderError, "takes vectors, not texts", ("embed", texts, *text, "--head", head, "--out", out / "e.lance")),
        (EncoderError, "gives vectors, not posteriors",
         ("embed", texts, *text, "--encoder", toy, "--out", out / "e.lance")),
        (MissingInputError, "no column 'nope'",
         ("index", "build", texts, *text, *model, "--id-column", "nope", "--out", out / "g.lance")),
    ):  # fmt: skip
        refused(error, match, *command)
    assert not list(out.iterdir())


def test_an_interrupted_encoding_resumes(texts, tmp_path):
    """An encoder that fails half way: the rows before are not encoded again."""
    counting = tmp_path / "counting.py"
    counting.write_text(
        TOY.replace("def encode(texts):", "from pathlib import Path\n"
                    "def encode(texts):\n"
                    "    log = Path(__file__).with_name('log')\n"
                    "    with log.open('a') as file: file.write(f'{len(texts)}\\n')\n"
                    "    if len(texts) == 36 and not Path(__file__).with_name('go').exists(): 1 / 0")
    )  # fmt: skip
    command = ("fit-head", texts, "--text-column", "text", "--group-column", "thing",
               "--encoder", f"python:{counting}:encode", "--out", tmp_path / "head", *QUICK)  # fmt: skip
    refused(EncoderError, "ZeroDivisionError.* run the same command again to resume", *command)
    assert (tmp_path / "log").read_text().split() == ["1", "64", "36"]
    (tmp_path / "go").touch()
    said(*command)
    assert (tmp_path / "log").read_text().split() == ["1", "64", "36", "1", "36"]
    assert not list(tmp_path.glob("head.partial*"))
