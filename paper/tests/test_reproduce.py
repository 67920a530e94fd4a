"""The command line."""

import json
import os
import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from aureole.cli._app import app
from aureole_paper.catalogue import CATALOGUE
from aureole_paper.reproduce import SeedOptions, _experiments, _jobs

RUNNER = CliRunner()


def test_help_has_examples_and_names():
    result = RUNNER.invoke(app, ["reproduce", "--help"], terminal_width=80)
    assert result.exit_code == 0
    assert "aureole reproduce ambiguous --seeds 1" in result.stdout
    assert "high-dim" in result.stdout
    assert "report" in RUNNER.invoke(app, ["--help"]).stdout


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:mu has collapsed")  # after three batches it may
def test_reproduce_and_report(tmp_path):
    command = ["reproduce", "bimodal", "--seeds", "1", "--max-batches", "3", "--json"]
    command += ["--out", str(tmp_path)]
    result = RUNNER.invoke(app, command)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert {row["setting"] for row in rows} >= {"bimodal-single-3", "bimodal-mixture-3"}
    plain = RUNNER.invoke(app, [word for word in command if word != "--json"])
    assert "bimodal-mixture-3" in plain.stdout
    assert max(map(len, plain.stdout.splitlines())) <= 80
    page = RUNNER.invoke(app, ["report", str(tmp_path)])
    assert page.exit_code == 0, page.output
    assert "bimodal-mixture-3" in (tmp_path / "report.html").read_text()


def test_of_all_experiments_those_run_that_have_something_to_run():
    known = {name: _experiments([name], {}, "fast")[0] for name in CATALOGUE}
    del known["paper-preset"]  # takes days
    assert _experiments(["all"], {}, "fast") == list(known.values())
    paper = _experiments(["all"], {}, "paper")
    assert {"ambiguous", "families"} <= {experiment.name for experiment in paper}
    assert "cifar10h" not in {experiment.name for experiment in paper}
    jobs = _jobs(paper, "paper", SeedOptions(seeds=1, max_batches=2))
    assert len(jobs) > 10
    assert all(setting.name.endswith("-paper") for setting, _ in jobs)
    some = _experiments(["all"], {"name": ["bimodal-mixture-3"]}, "fast")
    assert [[s.name for s in one.settings] for one in some] == [["bimodal-mixture-3"]]
    for names in (["all"], ["ambiguous"]):
        with pytest.raises(typer.BadParameter, match="nope"):
            _experiments(names, {"name": ["nope"]}, "fast")
    with pytest.raises(typer.BadParameter, match="the paper has no experiment"):
        _experiments(["ambiguous", "cifar10h"], {}, "paper")


def run_command(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "aureole", *arguments],
        capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )  # fmt: skip


@pytest.mark.slow
def test_errors_are_one_sentence(tmp_path):
    unknown = run_command("reproduce", "unclear")
    assert unknown.returncode == 2
    assert "Choose one of: ambiguous" in unknown.stderr
    assert "Traceback" not in unknown.stderr
    empty = run_command("report", str(tmp_path))
    assert empty.returncode == 2
    assert str(tmp_path) in empty.stderr.replace("\n", "")


@pytest.mark.slow
def test_the_progress_bar_fits_80_columns(tmp_path):
    """In a terminal of 80 columns: phase, loss, spread of mu and kappa, all on one line."""
    import pty

    host, guest = pty.openpty()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "80", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "aureole", "reproduce", "bimodal", "--seeds", "1", "--max-batches", "12",
         "--out", str(tmp_path)],
        stdout=subprocess.DEVNULL, stderr=guest, env=environment,
    )  # fmt: skip
    os.close(guest)
    seen = b""
    while True:
        try:
            part = os.read(host, 65536)
        except OSError:
            break
        if not part:
            break
        seen += part
    assert process.wait(300) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode(errors="replace"))
    lines = [line for line in re.split(r"[\r\n]+", text) if "loss" in line]
    assert lines
    assert all(len(line.rstrip()) <= 80 for line in lines)
    assert any(
        re.search(r"joint loss \d+\.\d+ \|mu\| \d\.\d\d kappa [\d.e+]+-[\d.e+]+", line)
        for line in lines
    )
