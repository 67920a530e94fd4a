"""Every command that takes an encoder, with every fault: one line, status 2, and nothing left behind."""

import csv
import hashlib
import time

import numpy as np
import pytest

from aureole.encoders import load
from aureole.training import FrozenHead
from tests.cli.conftest import QUICK, run
from tests.cli.forked import Case, run_cases
from tests.encoders.conftest import served
from tests.encoders.test_commands import THINGS, TOY, VIEWS

pytest.importorskip("lance")
pytest.importorskip("faiss")
pytest.importorskip("lightning_fabric")
pytest.importorskip("openai")
pytest.importorskip("fastapi")

pytestmark = (
    pytest.mark.slow
)  # about a minute: eight commands with six faults, in processes of their own

DOORS = ["embed", "score", "fit-head", "search", "index", "serve", "calibrate"]
FAULTS = ["package", "column", "dimension", "down", "slow", "busy"]
NARROW = "def encode(texts): return [[1.0, 2.0, 3.0] for _ in texts]\n"
# 22 dimensions for the one text with which an encoder is tried, three for a batch
CHANGING = "def encode(texts): return [[1.0] * (22 if len(texts) == 1 else 3) for _ in texts]\n"
PATIENCE = {"AUREOLE_API_TIMEOUT": "0.3", "AUREOLE_API_RETRIES": "1"}


def command(door, encoder, column="text"):
    """A command that would succeed with the encoder of the head; its output is called "new"."""
    text, model = ("--text-column", column), ("--encoder", encoder, "--head", "head")
    if door == "search":
        return ("search", "gallery.lance", "--text", "a dog", *model)
    if door == "serve":  # its column is one of the gallery
        return (
            "serve",
            "--index",
            "gallery.lance",
            *text,
            *model,
            "--modality",
            "text",
            "--port",
            "0",
        )
    if door == "fit-head":
        wanted = ("--out", "new", "--report", "new.html")
        groups = ("--group-column", "thing")
        return ("fit-head", "texts.csv", *text, *groups, *model[:2], *wanted, *QUICK)
    if door == "calibrate":
        matches = ("--match-text-column", "thing", "--out", "new")
        return ("calibrate", "texts.csv", *text, *model[:2], *matches)
    more = {
        "embed": ("--out", "new.lance"),
        "score": ("--out", "new.csv"),
        "index": ("--out", "new.faiss"),
    }
    words = ("index", "build") if door == "index" else (door,)
    return (*words, "texts.csv", *text, *model, *more[door])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a table, encoders, a head and a gallery."""
    folder = tmp_path_factory.mktemp("doors")
    views = [(t, v.format(f"{c} {t}")) for t in THINGS for c in ("red", "small") for v in VIEWS]
    with (folder / "texts.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("thing", "text"), *views])
    for name, code in (("toy", TOY), ("narrow", NARROW), ("changing", CHANGING)):
        (folder / f"{name}.py").write_text(code)
    encoder = load(f"python:{folder / 'toy.py'}:encode", "text")
    head = FrozenHead(4, steps=5, items=32, kappa_pos=8.0)
    head.fit(encoder.encode([text for _, text in views]), np.arange(len(views)) // 10)
    head.fingerprint_ = encoder.fingerprint
    head.save(folder / "head")
    head.fingerprint_ = None
    head.save(folder / "any")  # takes the vectors of any encoder
    done = run(
        "index", "build", folder / "texts.csv", "--text-column", "text", "--payload-column", "text",
        "--encoder", f"python:{folder / 'toy.py'}:encode", "--head", folder / "head", "--out", folder / "gallery.lance",
    )  # fmt: skip
    assert done.exit_code == 0, done.exception
    return folder


@pytest.fixture(scope="module")
def api():
    """The URL of an API that is slow below /slow, answers 429 below /busy, and fails after one request elsewhere."""
    from fastapi import FastAPI
    from fastapi.responses import JSONResponse

    app, answered = FastAPI(), []

    @app.post("/{fault}/embeddings")
    def answer(fault: str, body: dict):
        if fault == "slow":
            time.sleep(0.8)
        if fault == "busy":
            return JSONResponse({"error": "too many\nrequests"}, 429, {"Retry-After": "0.1"})
        answered.append(fault)
        if answered.count(fault) > 1:
            return JSONResponse({"error": "out of memory"}, 503)
        return {"data": [{"index": i, "embedding": [1.0] * 22} for i in range(len(body["input"]))]}

    with served(app) as url:
        yield url


def contents(folder):
    """Every file below a folder with a hash of its bytes, and every folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else None
        for path in folder.rglob("*")
    }


def refused(cases, place, scratch, said):
    """Run commands: each must print one line that contains its words, with status 2, and change no file."""
    before = contents(place)
    ended = run_cases(cases, place, TMPDIR=str(scratch), **PATIENCE)
    for case, end, words in zip(cases, ended, said, strict=True):
        name = " ".join(case.arguments)
        assert end.status == 2, (name, end)
        assert end.stderr.startswith("error: "), (name, end.stderr)
        assert end.stderr.count("\n") == 1, (name, end.stderr)
        assert end.stderr.endswith(".\n") or "--help" in end.stderr, (name, end.stderr)
        assert words in end.stderr, (name, end.stderr)
        assert end.stdout == "", (name, end.stdout)
    assert contents(place) == before
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("fault", FAULTS)
def test_every_command_with_every_fault(fault, place, api, tmp_path):
    toy, hidden, column = "python:toy.py:encode", (), "text"
    encoders = dict.fromkeys(DOORS, toy)
    said = dict.fromkeys(DOORS, "")
    if fault == "package":
        encoders = dict.fromkeys(DOORS, "sentence-transformers:all-MiniLM-L6-v2")
        said = dict.fromkeys(DOORS, "pip install 'aureole[text]'")
        hidden = ("sentence_transformers",)
    elif fault == "column":
        said, column = dict.fromkeys(DOORS, "no column 'nope'"), "nope"
        said["serve"] = "payload column 'nope' not found"
    elif fault == "dimension":
        encoders = dict.fromkeys(DOORS, "python:narrow.py:encode")
        encoders["fit-head"] = encoders["calibrate"] = "python:changing.py:encode"
        said = dict.fromkeys(DOORS, "gives vectors of 3 dimensions")
        said["fit-head"] = "returned vectors of shape (64, 3) for 64 inputs, not (64, 22)"
        said["calibrate"] = "returned vectors of shape (10, 3) for 10 inputs, not (10, 22)"
    else:
        url = "http://127.0.0.1:9/v1" if fault == "down" else f"{api}/{fault}"
        encoders = dict.fromkeys(DOORS, f"openai:{url}#m")
        words = {"down": "Connection error", "slow": "timed out", "busy": "Error code: 429"}
        said = dict.fromkeys(DOORS, words[fault])
    cases = [Case(command(door, encoders[door], column), hidden) for door in DOORS]
    refused(cases, place, tmp_path, [said[door] for door in DOORS])


def test_an_api_that_fails_after_it_was_tried(place, api, tmp_path):
    doors = ["embed", "score", "fit-head", "index", "calibrate"]
    cases = [
        Case(tuple("any" if word == "head" else word for word in words))
        for words in (command(door, f"openai:{api}/{door}#m") for door in doors)
    ]
    refused(cases, place, tmp_path, ["Error code: 503"] * len(doors))


def test_a_relative_and_an_absolute_name_are_the_same_encoder(place, tmp_path):
    scored = ("score", "texts.csv", "--text-column", "text", "--head", "head", "--out")
    names = ("python:toy.py:encode", f"python:{place / 'toy.py'}:encode")
    cases = [Case((*scored, str(tmp_path / "o.csv"), "--encoder", name)) for name in names]
    before = contents(place)
    assert [end.status for end in run_cases(cases, place)] == [0, 0]
    assert contents(place) == before  # no __pycache__ either


def test_several_workers_without_ray(place, tmp_path):
    words = (*command("embed", "python:toy.py:encode"), "--workers", "2")
    refused([Case(words, ("ray",))], place, tmp_path, ["pip install 'aureole[ray]'"])


def test_missing_packages_of_the_commands(place, tmp_path):
    cases, said = [], []
    for hidden, door, extra in (
        ("lance", "embed", "search"),
        ("lance", "search", "search"),
        ("lance", "serve", "search"),
        ("faiss", "index", "search"),
        ("matplotlib", "fit-head", "explore"),
        ("matplotlib", "calibrate", "explore"),
        ("lightning_fabric", "fit-head", "train"),
        ("uvicorn", "serve", "serve"),
    ):
        cases.append(Case(command(door, "python:toy.py:encode"), (hidden,)))
        said.append(f"pip install 'aureole[{extra}]'")
    refused(cases, place, tmp_path, said)
