"""A small table of vectors, and a head that the command line fitted on it."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from aureole.cli._app import app
from aureole.data import write_columns
from aureole.sphere import _positivity_table

RUNNER = CliRunner()
QUICK = ("--dim", "4", "--kappa-pos", "8", "--steps", "20", "--items", "64")


def run(*arguments):
    """The result of a command; errors of ours are its exception."""
    return RUNNER.invoke(app, [str(argument) for argument in arguments])


def columns(things=80, views=4, seed=0):
    """Noisy views of some things; the first coordinate shows how noisy a view is."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(things), views)
    blur = 0.1 + 0.9 * rng.random((len(groups), 1))
    vectors = rng.normal(size=(things, 7))[groups] + blur * rng.normal(size=(len(groups), 7))
    return {
        "v": np.concatenate([blur, vectors], 1).astype(np.float32),
        "g": np.array([f"thing {g}" for g in groups], dtype=object),
        "id": np.array([f"view {i}" for i in range(len(groups))], dtype=object),
    }


@pytest.fixture(scope="package")
def table(tmp_path_factory):
    """The path of a table with the columns v, g and id."""
    return write_columns(tmp_path_factory.mktemp("table") / "vectors.parquet", columns())


@pytest.fixture(scope="package")
def fitted(table, tmp_path_factory):
    """(The folder of a head, what fit-head said of it as JSON)."""
    out = tmp_path_factory.mktemp("fitted") / "head"
    _positivity_table._TABLES.clear()  # as in a new process: tables of earlier fits show in float32
    done = run("fit-head", table, "--group-column", "g", "--out", out, *QUICK, "--json")
    assert done.exit_code == 0, done.output
    return out, json.loads(done.stdout)
