"""Small fabricated records; types of the reports are checked while these tests run."""

import json
import math
import os
import shutil
from pathlib import Path

import pytest
from jaxtyping import install_import_hook
from typer.testing import CliRunner

with install_import_hook("aureole_paper", "beartype.beartype"):
    from aureole_paper.report import read_report, write_report

from aureole.cli._app import app
from aureole.explorer._page import Run
from aureole.records import Record, write_record
from aureole_paper.records import group, read_runs
from tests.explorer.test_page import Outline

METRICS = {
    "mu_rank": 0.99, "mu_mae": 0.03, "kappa_rank": 0.95, "kappa_mae": 0.6, "kappa_mean": 25.0,
    "kappa_median": 24.0, "kappa_true_mean": 24.0, "spread_rank": 0.95, "spread_mae": 0.01, "information": 1.7,
    "scatter": {"true": [16.0, 24.0, 32.0], "found": [17.0, "inf", 30.0]},
    "latent_coverage": {"0.5": 0.49, "0.8": 0.79, "0.9": 0.89, "0.95": 0.94, "0.99": 0.98},
    "partner_coverage": {"0.5": 0.5, "0.8": 0.8, "0.9": 0.9, "0.95": 0.95, "0.99": 0.99},
    "seconds_training": 12.5,
    "curve": [{"step": 5, "kappa_mae": 3.0}, {"step": 15, "kappa_mae": 1.0, "kappa_rank": 0.9}],
}  # fmt: skip
SETTINGS = {
    "dim": 10, "kappa_range": [16.0, 32.0], "kappa_pos": 20.0, "family": "vmf", "generator": "paper", "rule": "exact",
    "loss": "closed-form", "n_samples": 16, "centring": 0.02, "architecture": "residual", "items": 512, "steps": 2000,
    "preset": "fast",
}  # fmt: skip


def changed(metrics, changes):
    """The metrics with changes; a change to None leaves one out."""
    return {name: value for name, value in (metrics | changes).items() if value is not None}


def save(folder, name, values, seed=0, *, command="aureole reproduce", **settings):
    """Write the record "experiment/setting" of a seed below a folder and return the folder."""
    record = Record(name, values, command, seed, settings)
    write_record(record, folder / name.partition("/")[2] / f"seed-{seed}.json")
    return folder


def writer(folder):
    """A function that writes a record of the controlled experiment below a folder and returns the folder."""

    def write(name, seed=4, changes=None, *, command="aureole reproduce", **setting):
        values, settings = changed(METRICS, changes or {}), SETTINGS | setting
        return save(folder, f"controlled/{name}", values, seed, command=command, **settings)

    return write


def reproduce(*words, data, out):
    """Run ``aureole reproduce`` on real data; returns the metrics by setting."""
    places = ["--data-dir", str(data), "--out", str(out)]
    result = CliRunner().invoke(app, ["reproduce", *words, *places, "--json"])
    assert result.exit_code == 0, result.output
    return {row["setting"]: row["metrics"] for row in json.loads(result.stdout)}


def anchors(folder):
    return [section.anchor for section in read_report(folder).sections]


def page(folder, tmp_path):
    out = tmp_path / "pages" / "report.html"
    assert write_report(folder, out) == out
    assert list(out.parent.iterdir()) == [out]  # no temporary file is left
    return out.read_text(encoding="utf-8")


def checked_page(folder, tmp_path, *, links="#"):
    """(The page of a folder, its outline): the same every time, and nothing is loaded or leads elsewhere."""
    html = page(folder, tmp_path)
    found = Outline(html)
    assert len(found.ids) == len(set(found.ids))
    assert all(link.startswith(links) for link in found.links if link[:14] != "data:image/svg")
    assert {link[1:] for link in found.links if link.startswith("#")} <= set(found.ids)
    assert "script" not in found.tags
    assert page(folder, tmp_path) == html
    return html, found


def check_bare_records(folder, tmp_path, prefix=""):
    """Records without metrics or settings, alone and next to those of a folder, do not stop the report."""
    bare, mixed = tmp_path / "bare", tmp_path / "mixed"
    shutil.copytree(folder, mixed)
    for into in (bare, mixed):
        for path in folder.iterdir():
            record = Record(f"{prefix}{path.name}", {}, command="bare")
            write_record(record, into / path.name / "seed-99.json")
        Outline(page(into, tmp_path))


@pytest.fixture(scope="session")
def shared_data():
    """The folder with the real data sets; tests that need it are skipped where it is missing."""
    default = Path(__file__).parents[3] / "shared" / "data"
    folder = Path(os.environ.get("AUREOLE_DATA") or default)
    if not folder.is_dir():
        pytest.skip(f"{folder} does not exist; set AUREOLE_DATA to a folder with the data sets")
    return folder


@pytest.fixture
def write(tmp_path):
    """Writes a record below a folder of the test's own and returns that folder."""
    return writer(tmp_path / "records")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder with a record or two for every section; not to be changed. Modules on other experiments override it."""
    write = writer(tmp_path_factory.mktemp("controlled"))
    write("ambiguous", 4)
    write("ambiguous", 5, {"kappa_rank": 0.97, "kappa_mae": 0.8})
    write("ambiguous-paper", 4, preset="paper", steps=100_000)
    write("clear", kappa_range=[64.0, 128.0])
    points = dict.fromkeys(("kappa_rank", "kappa_mae", "kappa_true_mean")) | {"kappa_median": 3.1e4}
    write("injective", 4, points, kappa_range=["inf", "inf"], family="dirac")
    angles, kappas = [-2.0, 0.0, 2.0, 2.0], [16.0, 20.0, 30.0, 30.0]
    circle = dict.fromkeys(("true_angle", "found_angle"), angles)
    circle |= dict.fromkeys(("true_kappa", "found_kappa"), kappas)
    write("two-dim", 4, {"posteriors": circle}, dim=2)
    for name in ("gaussian", "laplace"):
        write(name, family=name)
    write("base", steps=1000)
    write("ambiguous-self-pairs", self_weight=6.0)
    write("tilt-deficient", 4, {"mean_length": 0.1}, tilt=30.0)
    paper = {"rule": "paper", "architecture": "paper", "negatives": 8, "averaging": False}
    write("ladder-1-paper", loss="mcinfonce", phases="two", **paper)
    write("ladder-2-closed-form", phases="two", **paper)
    write("losses-elk", loss="elk", temperature=1.0)
    write("losses-infonce", 4, {"kappa_rank": None}, loss="infonce")
    for count in (4, 16, 512):
        write(f"mc-samples-{count}", loss="mcinfonce", n_samples=count)
    for dim in (8, 64):
        coverage = {"latent_coverage": None, "partner_coverage": None}
        write(f"encoder-dim-{dim}", 4, coverage, encoder_dim=dim)
    for dim in (16, 32):
        write(f"high-dim-fixed-{dim}", 4, {"information": 10 / dim}, dim=dim)
        write(f"high-dim-matched-{dim}", dim=dim)
        write(f"self-pairs-{dim}", dim=dim, self_weight=dim / 2)
    write("shared-backbone", architecture="shared")
    write("sources-full-rank-mc", generator="whitened", loss="mcinfonce")
    modes = {"weight": [[0.5, 0.5]] * 3, "mu": [[[1, 0, 0], [0, 1, 0]]] * 3, "kappa": [[9, 9]] * 3}
    examples = {"true": modes, "found": modes}
    write("bimodal-mixture-3", 4, {"divergence": 0.125, "examples": examples})
    write("bimodal-single-3", 4, {"divergence": 0.5, "examples": examples})
    write(
        "tuning-elk-1-fixed-joint", 3, loss="elk", negatives=1, phases="joint", learn_kappa_pos=False
    )  # fmt: skip
    write("tuning-hib-a0.5-b-8", 3, loss="hib", hib=[0.5, -8.0], negatives=0, phases="three")
    write("tuning-hib-a1-b0", 3, {"kappa_rank": 0.25}, loss="hib", hib=[1.0, 0.0], phases="three")
    return write("my-own-run", 0, {"kappa_mae": 123_456.0, "kappa_mean": math.pi})


@pytest.fixture(scope="module")
def groups(folder):
    """The runs of ``folder`` by setting."""
    return group(read_runs(folder))


@pytest.fixture(scope="module")
def report(folder):
    """The report of ``folder``."""
    return read_report(folder)


@pytest.fixture(scope="module")
def tables(report):
    """The tables of the whole report by title."""
    return {table.title: table for section in report.sections for table in section.tables}


@pytest.fixture
def run():
    """Makes a run of metrics without a file."""

    def run(name="ambiguous", seed=4, **values):
        return Run(name, Path(f"{name}/seed-{seed}.json"), Record(name, values, "made", seed=seed))

    return run
