"""``aureole calibrate``: the same calibrator from every kind of table, what it prints, and what it refuses."""

import csv
import json
import shutil

import numpy as np
import pytest
from PIL import Image

import aureole as au
from aureole.cli import _labelled_queries as labelled
from aureole.cli._app import main
from aureole.data import write_columns
from aureole.encoders import _bulk
from aureole.errors import EncoderError, InvalidInputError, MissingInputError
from aureole.match import MatchCalibrator, MatchFilter
from tests.cli.conftest import run

TOY = """
import numpy as np

def encode(texts):
    rows = np.zeros((len(texts), 16), "float32")
    for row, text in zip(rows, texts):
        for word in text.split():
            row += np.random.default_rng(list(word.encode())).normal(size=16)
    return rows
"""
NARROW = "def encode(texts):\n    return [[1.0, float(len(text))] for text in texts]\n"
BROKEN = "def encode(texts):\n    return [[1.0, 2.0]] * (1 if len(texts) == 1 else 0)\n"
ITEMS, QUERIES = 150, 120


def sentences():
    """(Texts of the gallery, texts of queries, the row that each query matches)."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), 6)) for _ in range(400)]
    texts = [" ".join(rng.choice(words, 10)) for _ in range(ITEMS)]
    right = rng.integers(ITEMS, size=QUERIES)
    queries = [
        " ".join([*rng.permutation(texts[row].split())[:6], f"q{i}"]) for i, row in enumerate(right)
    ]
    return texts, queries, right.tolist()


def write_csv(path, *columns, header):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *zip(*columns, strict=True)])
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with encoders, questions.csv, answers.csv and pairs.csv."""
    folder = tmp_path_factory.mktemp("calibrate")
    for name, code in (("toy", TOY), ("narrow", NARROW), ("broken", BROKEN)):
        (folder / f"{name}.py").write_text(code)
    texts, queries, right = sentences()
    ids = [f"doc-{row}" for row in range(ITEMS)]
    write_csv(folder / "answers.csv", ids, texts, header=("id", "text"))
    matches = [ids[row] for row in right]
    write_csv(folder / "questions.csv", queries, matches, header=("question", "answers"))
    matching = [texts[row] for row in right]
    write_csv(folder / "pairs.csv", queries, matching, matches, header=("question", "answer", "id"))
    return folder


def by_id(place, encoder="toy", table="questions.csv"):
    return (
        "calibrate", place / table, "--text-column", "question", "--match-column", "answers",
        "--gallery", place / "answers.csv", "--gallery-column", "text", "--id-column", "id",
        "--encoder", f"python:{place / encoder}.py:encode",
    )  # fmt: skip


def said(*arguments):
    done = run(*arguments, "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def refused(error, match, folder, *arguments):
    """A command that raises one line and leaves nothing behind."""
    before = sorted(folder.rglob("*"))
    done = run(*arguments)
    assert done.exit_code in (1, 2)
    with pytest.raises(error, match=match):
        raise done.exception
    assert "\n" not in str(done.exception)
    assert sorted(folder.rglob("*")) == before


def status(monkeypatch, capsys, *arguments):
    """(Exit status, stderr) as a user sees them."""
    monkeypatch.setattr("sys.argv", ["aureole", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code, capsys.readouterr().err


def test_the_calibrator_is_that_of_python(place, tmp_path):
    found = said(*by_id(place), "--out", tmp_path / "c")
    assert (found["queries"], found["items"], found["held_out"]) == (QUERIES, ITEMS, QUERIES // 2)
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == [
        "match.json", "match.safetensors", "report.html",
    ]  # fmt: skip
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    scope = {}
    exec(TOY, scope)
    texts, queries, right = sentences()
    ids = [f"doc-{row}" for row in range(ITEMS)]
    vectors = [scope["encode"](part) for part in (queries, texts)]
    expected = MatchCalibrator().fit(*vectors, [[ids[row]] for row in right], ids=ids)
    saved = MatchCalibrator.load(tmp_path / "c")
    assert saved.ids_ == ids
    np.testing.assert_allclose(saved.hubness_, expected.hubness_, atol=1e-6)
    assert saved.threshold(f1=True) == pytest.approx(expected.threshold(f1=True), rel=1e-3)
    assert saved.encoder_ is not None
    f1 = found["thresholds"][-1]
    assert f1["kind"] == "f1"
    assert f1["held_out"]["precision"] > 0.5


def test_every_table_gives_the_same_calibrator(place, tmp_path):
    texts, queries, right = sentences()
    ids = [f"doc-{row}" for row in range(ITEMS)]
    first = said(*by_id(place), "--out", tmp_path / "csv")
    questions = [{"question": q, "answers": [ids[m]]} for q, m in zip(queries, right, strict=True)]
    lines = tmp_path / "questions.jsonl"
    lines.write_text("".join(f"{json.dumps(line)}\n" for line in questions))
    lists = [lines if str(word).endswith("questions.csv") else word for word in by_id(place)]
    scope = {}
    exec(TOY, scope)
    gallery = {"w": scope["encode"](texts), "id": ids}
    gallery = write_columns(tmp_path / "gallery.parquet", gallery)
    vectors = {"v": scope["encode"](queries), "answers": [ids[r] for r in right]}
    vectors = write_columns(tmp_path / "q.parquet", vectors)
    stored = ("--gallery", gallery, "--gallery-column", "w", "--id-column", "id")
    asked = ("--match-column", "answers", *stored)
    encoded = ("--text-column", "question", "--encoder", f"python:{place}/toy.py:encode")
    for name, command in {
        "lists": lists,
        "vectors": ("calibrate", vectors, "--vector-column", "v", *asked),
        "mixed": ("calibrate", place / "questions.csv", *encoded, *asked),
    }.items():
        other = said(*command, "--out", tmp_path / name)
        assert other["queries"] == first["queries"]
        for one, two in zip(first["thresholds"], other["thresholds"], strict=True):
            expected = one["threshold"]
            assert two["threshold"] == (expected and pytest.approx(expected, rel=0.01))


def test_pairs_alone(place, tmp_path):
    pairs = (
        "calibrate", place / "pairs.csv", "--text-column", "question", "--match-text-column", "answer",
        "--encoder", f"python:{place}/toy.py:encode",
    )  # fmt: skip
    distinct = len(set(sentences()[2]))
    assert said(*pairs, "--out", tmp_path / "texts")["items"] == distinct
    texts = MatchCalibrator.load(tmp_path / "texts").ids_
    assert set(texts) <= set(sentences()[0])
    said(*pairs, "--match-column", "id", "--out", tmp_path / "ids")
    assert all(name.startswith("doc-") for name in MatchCalibrator.load(tmp_path / "ids").ids_)


def test_the_printed_code_runs(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*by_id(place), "--out", "c")
    assert done.exit_code == 0, done.output
    code = [line.strip() for line in done.stdout.splitlines() if line.startswith("  ")]
    scope = {}
    exec(TOY, scope)
    texts, queries, right = sentences()
    gallery = scope["encode"](texts)
    gallery /= np.linalg.norm(gallery, axis=1, keepdims=True)

    def search(vector, k):
        order = np.argsort(-(gallery @ vector))[:k]
        return (gallery @ vector)[order], [f"doc-{row}" for row in order]

    names = {"search": search}
    exec("\n".join(code[:-1]), names)
    assert isinstance(names["find"], MatchFilter)
    hits = 0
    for vector, row in zip(scope["encode"](queries), right, strict=True):
        hits += f"doc-{row}" in eval(code[-1].partition("  #")[0], names | {"vector": vector})
    assert hits > QUERIES / 2


def test_what_is_printed_fits_80_columns(place, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    done = run(*by_id(place), "--precision", "0.2", "--recall", "0.5", "--out", "c")
    assert done.exit_code == 0, done.output
    for words in (
        "120 queries with 120 matches",
        "precision 20 %",
        "recall 50 %",
        "best F1",
    ):
        assert words in " ".join(done.stdout.split()), words
    assert "recall 90 %" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "saved in c; open c/report.html" in done.stdout


def test_made_queries_are_not_presented_as_real_ones(place, tmp_path):
    command = (
        "calibrate", place / "answers.csv", "--made", "--text-column", "text", "--id-column", "id",
        "--encoder", f"python:{place}/toy.py:encode", "--out",
    )  # fmt: skip
    done = run(*command, tmp_path / "plain")
    assert done.exit_code == 0, done.output
    assert "hold for such halves only" in " ".join(done.stdout.split())
    assert "hold for such halves only" in (tmp_path / "plain" / "report.html").read_text()
    found = said(*command, tmp_path / "json")
    assert (found["made"], found["queries"], found["items"]) == (True, ITEMS, ITEMS)


def test_a_query_map(place, tmp_path):
    said(*by_id(place), "--query-map", "--out", tmp_path / "c")
    assert MatchCalibrator.load(tmp_path / "c").query_map is True


def test_pictures_that_match_pictures(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "toy.py").write_text(
        "import numpy as np\n\n\ndef encode(pictures):\n"
        "    return np.stack([np.asarray(p.resize((4, 4)), 'float32').ravel() - 127 for p in pictures])\n"
    )
    items = rng.integers(0, 256, (40, 4, 4, 3))
    right = np.arange(60) % 40
    noisy = np.clip(items[right] + rng.normal(0, 60, (60, 4, 4, 3)), 0, 255)
    for name, pictures in (("item", items), ("query", noisy)):
        for row, pixels in enumerate(pictures):
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / f"{name}{row}.png")
        paths = [f"{name}{row}.png" for row in range(len(pictures))]
        numbers = right if name == "query" else np.arange(40)
        write_csv(tmp_path / f"{name}.csv", paths, numbers, header=("picture", "number"))
    found = said(
        "calibrate", tmp_path / "query.csv", "--image-column", "picture", "--match-column", "number",
        "--gallery", tmp_path / "item.csv", "--encoder", f"python:{tmp_path}/toy.py:encode",
        "--out", tmp_path / "c",
    )  # fmt: skip
    assert (found["queries"], found["items"]) == (60, 40)
    assert MatchCalibrator.load(tmp_path / "c").ids_ is None
    assert found["thresholds"][-1]["held_out"]["precision"] > 0.9


def test_queries_without_matches_and_repeated_queries(place, tmp_path):
    _, queries, right = sentences()
    ids = [f"doc-{row}" for row in right]
    table = write_csv(
        tmp_path / "questions.csv",
        [*queries, "who knows", queries[0]],
        [*ids, "", "doc-1 doc-2"],
        header=("question", "answers"),
    )
    command = [table if str(word).endswith("questions.csv") else word for word in by_id(place)]
    found = said(*command, "--out", tmp_path / "c")
    assert (found["queries"], found["queries_without_matches"]) == (QUERIES, 1)


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        (None, []),
        ("", []),
        (float("nan"), []),
        (7, ["7"]),
        (7.0, ["7"]),
        ([7, None, "a", 7], ["7", "a"]),
        ("7, 8;9|a", ["7", "8", "9", "a"]),
        ("[7, 8.0]", ["7", "8"]),
        ("[7, 8", ["[7", "8"]),
        ("[" * 100_000, ["[" * 100_000]),
        ("a b", ["a b"]),  # an id itself
    ],
)
def test_cells_of_ids(cell, names):
    assert labelled._names(cell, {"a b": 0}) == names


@pytest.mark.parametrize(
    ("values", "ids"),
    [
        (["0", "1", "2"], None),
        (["3", "1", "2"], [3, 1, 2]),
        (["03", "1", "2"], ["03", "1", "2"]),
        (["a", "1", "2"], ["a", "1", "2"]),
        (["1_0", "1", "2"], ["1_0", "1", "2"]),
    ],
)
def test_ids_of_a_csv_file(tmp_path, values, ids):
    path = write_csv(tmp_path / "i.csv", values, values, header=("id", "text"))
    assert labelled.read_ids(path, "id") == ids


def test_ids_that_are_not_valid(tmp_path):
    for values, match in ((["a", "a"], "unique"), (["a", ""], "row 1 .* has no id")):
        path = write_csv(tmp_path / "i.csv", values, ["x", "y"], header=("id", "text"))
        with pytest.raises(InvalidInputError, match=match):
            labelled.read_ids(path, "id")
    path = write_columns(tmp_path / "i.parquet", {"id": np.array([0.5, 1.5])})
    with pytest.raises(InvalidInputError, match="texts or whole numbers"):
        labelled.read_ids(path, "id")


def test_wrong_inputs_are_one_line_and_leave_nothing(place, tmp_path):
    out = ("--out", tmp_path / "c")
    _, queries, right = sentences()

    def changed(cells, count=QUERIES):
        table = write_csv(
            tmp_path / "t.csv", queries[:count], cells[:count], header=("question", "answers")
        )
        return [table if str(word).endswith("questions.csv") else word for word in by_id(place)]

    ids = [f"doc-{row}" for row in right]
    unknown = changed([*ids[:5], "doc-[red]9999", *ids[6:]])
    refused(
        MissingInputError,
        r"row 5 of .* has 'doc-\[red\]9999' in 'answers'",
        tmp_path,
        *unknown,
        *out,
    )
    few = changed(ids, 19)
    refused(MissingInputError, "has 19 labelled queries, but at least 20", tmp_path, *few, *out)
    missing = ["answer" if word == "answers" else word for word in by_id(place)]
    refused(MissingInputError, "no column 'answer'", tmp_path, *missing, *out)
    gallery = {"v": np.ones((ITEMS, 16), np.float32), "id": [f"doc-{i}" for i in range(ITEMS)]}
    gallery = write_columns(tmp_path / "gallery.parquet", gallery)
    narrow = (
        "calibrate", place / "questions.csv", "--text-column", "question", "--match-column", "answers",
        "--gallery", gallery, "--gallery-column", "v", "--id-column", "id",
        "--encoder", f"python:{place}/narrow.py:encode",
    )  # fmt: skip
    refused(
        EncoderError,
        "gives vectors of 2 dimensions, but the gallery .* has 16",
        tmp_path,
        *narrow,
        *out,
    )
    refused(EncoderError, "returned", tmp_path, *by_id(place, "broken"), *out)
    write_csv(tmp_path / "t.csv", ["", *queries[1:]], ids, header=("question", "answers"))
    blank = [tmp_path / "t.csv" if str(w).endswith("questions.csv") else w for w in by_id(place)]
    refused(InvalidInputError, "row 0 of .* has no text", tmp_path, *blank, *out)


def test_statuses_are_2_with_one_line(place, tmp_path, monkeypatch, capsys):
    out = ("--out", tmp_path / "c")
    missing = ["answer" if word == "answers" else word for word in by_id(place)]
    gallery = [
        place / "none.csv" if str(word).endswith("answers.csv") else word for word in by_id(place)
    ]
    for words in (
        missing,
        gallery,
        (*by_id(place)[:6], "--encoder", "nonsense"),
        (*by_id(place), "--precision", "2"),
    ):
        code, err = status(monkeypatch, capsys, *words, *out)
        assert code == 2, err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "wrong",
    [
        (),
        ("--made",),
        ("--made", "--match-column", "answers"),
        ("--match-column", "answers"),
        ("--match-column", "answers", "--gallery", "answers.csv", "--match-text-column", "a"),
        ("--match-text-column", "answers"),
        ("--match-column", "answers", "--gallery", "answers.csv", "--text-column", "question"),
    ],
)
def test_options_that_contradict_each_other(place, tmp_path, monkeypatch, wrong):
    monkeypatch.chdir(place)
    assert run("calibrate", "questions.csv", "--out", tmp_path / "c", *wrong).exit_code == 2
    assert not list(tmp_path.iterdir())


def test_a_calibrator_is_replaced_only_when_asked(place, tmp_path):
    out = tmp_path / "c"
    said(*by_id(place), "--out", out)
    (out / "notes.txt").write_text("mine")
    refused(
        InvalidInputError, "Add --overwrite", tmp_path, *by_id(place), "--query-map", "--out", out
    )
    assert not MatchCalibrator.load(out).query_map
    said(*by_id(place), "--query-map", "--out", out, "--overwrite")
    assert MatchCalibrator.load(out).query_map
    assert (out / "notes.txt").read_text() == "mine"
    (out / "match.json").unlink()
    refused(
        InvalidInputError,
        "is not a saved calibrator",
        tmp_path,
        *by_id(place),
        "--out",
        out,
        "--overwrite",
    )


def test_an_interrupted_run_resumes(place, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(au.MatchCalibrator, "quality", interrupt)
        assert run(*by_id(place), "--out", tmp_path / "c").exit_code == 130
    (partial,) = tmp_path.iterdir()
    assert sorted(file.name for file in partial.iterdir()) == ["gallery", "queries"]
    calls = []
    original = _bulk.encode_all

    def counted(encoder, *args, **kwargs):
        encode = encoder.vectors
        monkeypatch.setattr(encoder, "vectors", lambda *a, **k: calls.append(a) or encode(*a, **k))
        return original(encoder, *args, **kwargs)

    monkeypatch.setattr(_bulk, "encode_all", counted)
    said(*by_id(place), "--out", tmp_path / "c")
    assert calls == []
    assert [file.name for file in tmp_path.iterdir()] == ["c"]
    shutil.rmtree(tmp_path / "c")
