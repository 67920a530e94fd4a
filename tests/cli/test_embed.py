"""``aureole embed``, and what the other commands do with its table."""

import json

import numpy as np
import pytest

from aureole.errors import AureoleError, InvalidInputError
from tests.cli.conftest import run
from tests.embed.conftest import save_encoder
from tests.made_pictures import make_corrupt, make_pictures

pytest.importorskip("lance")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("model") / "encoder")


@pytest.fixture(scope="module")
def embedded(encoder, tmp_path_factory):
    """(Folder of pictures with five that are none, table, what embed said as JSON)."""
    folder = tmp_path_factory.mktemp("embedded")
    make_pictures(folder / "p", 300)
    make_corrupt(folder / "p", 5)
    out = folder / "t.lance"
    done = run("embed", folder / "p", "--encoder", encoder, "--out", out, "--json")
    assert done.exit_code == 0, done.output
    return folder / "p", out, json.loads(done.stdout)


def test_it_says_what_it_did_and_then_that_nothing_was_missing(embedded, encoder):
    source, out, said = embedded
    assert (said["rows"], said["new_rows"], said["errors"]) == (300, 300, 5)
    assert said["rows_per_second"] > 0
    done = run("embed", source, "--encoder", encoder, "--out", out)
    assert done.exit_code == 0
    assert done.stdout.startswith("0 rows added")
    assert "300 rows in R^8" in done.stdout
    assert f"5 inputs could not be read; {str(out)[:-6]}.errors.lance" in done.stdout


def test_the_table_can_be_looked_at_and_searched(embedded, encoder):
    source, out, said = embedded
    about = json.loads(run("index", "info", out, "--json").stdout)
    assert (about["rows"], about["dim"], about["head"]) == (300, 8, said["model"])
    assert about["columns"] == {"source": "text", "model": "text"}
    name = "0001/000111.png"
    asked = run(
        "search", out, "--image", source / name, "--encoder", encoder, "--mass", "0.5", "--json"
    )
    assert asked.exit_code == 0, asked.output
    best = json.loads(asked.stdout)["hits"][0]
    assert best["id"] == name
    assert best["cosine"] > 1 - 1e-5
    like = json.loads(run("search", out, "--id", name, "--limit", "3", "--json").stdout)
    assert len(like["hits"]) == 3


def test_a_picture_by_another_model_is_refused(embedded, tmp_path):
    source, out, _ = embedded
    other = save_encoder(tmp_path / "other", seed=1)
    asked = run("search", out, "--image", source / "0000/000001.png", "--encoder", other)
    assert isinstance(asked.exception, InvalidInputError)
    done = run("embed", source, "--encoder", other, "--out", out)
    assert done.exit_code == 0
    assert "has the rows of another model" in done.stdout


def test_an_approximate_index_is_built_on_it(embedded):
    _, out, _ = embedded
    done = run("index", "approximate", out, "--probes", "80", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["approximate"]["kind"] == "ivf"
    assert said["recall"] == 1
    shown = run("index", "approximate", out, "--probes", "1")
    assert "approximate index ivf (probes 1, lists " in shown.stdout
    assert "of the members of the caps" in shown.stdout
    assert run("index", "approximate", out, "--width", "6").exit_code == 2
    assert run("index", "approximate", out, "--kind", "hnsw", "--probes", "6").exit_code == 2


def test_vectors_of_a_table_go_through_a_head(table, fitted, tmp_path):
    done = run("embed", table, "--id-column", "id", "--encoder", fitted[0],
               "--out", tmp_path / "v.lance", "--json")  # fmt: skip
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rows"] == 320
    asked = run("search", tmp_path / "v.lance", "--vector-from", table, "--row", "7", "--head", fitted[0],
                "--vector-column", "v", "--limit", "1", "--json")  # fmt: skip
    assert json.loads(asked.stdout)["hits"][0]["id"] == "view 7"
    assert np.isfinite(json.loads(asked.stdout)["hits"][0]["kappa"])


def test_if_no_input_can_be_read_it_fails_and_says_where_to_look(encoder, tmp_path):
    make_corrupt(tmp_path / "p", 5)
    done = run("embed", tmp_path / "p", "--encoder", encoder, "--out", tmp_path / "t.lance")
    assert done.exit_code == 1
    assert isinstance(done.exception, AureoleError)
    assert "none of the 5 inputs" in str(done.exception)
    assert "t.errors.lance" in str(done.exception)
