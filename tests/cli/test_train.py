"""``aureole train``: each kind of data to a saved encoder, a record and a line; on ranks to the same encoder."""

import json
import os
import subprocess
import sys

import pytest
import torch

import aureole as au
from aureole.data import write_columns
from aureole.models import IndependentEncoder
from aureole.models._saving import WEIGHTS
from aureole.records import read_record
from tests.cli.conftest import columns, run

SHORT = (
    "--set", "training.steps=6", "--set", "training.items=32", "--set", "encoder.width=16",
)  # fmt: skip


def config(folder, text):
    path = folder / "config.toml"
    path.write_text(text)
    return path


def vectors(folder):
    write_columns(folder / "vectors.parquet", columns())
    text = '[data]\nkind = "vectors"\npath = "vectors.parquet"\nvector_column = "v"\n'
    return config(folder, text + 'group_column = "g"\n[encoder]\ndim = 4\n')


def test_example_prints_a_config_with_all_keys():
    done = run("train", "--example", "vectors")
    assert done.exit_code == 0
    assert 'kind = "vectors"' in done.stdout
    assert "# encoder.dim = 32: Dimension D" in done.stdout
    assert run("train", "--example", "videos").exit_code == 2
    assert run("train").exit_code == 2


@pytest.mark.filterwarnings("ignore::aureole.errors.AureoleWarning")
def test_a_process(tmp_path):
    path = config(tmp_path, '[data]\nkind = "process"\ndim = 4\n')
    out = tmp_path / "encoder"
    done = run("train", path, "--out", out, *SHORT, "--set", "training.pairs=80")
    assert done.exit_code == 0, done.output
    assert "6 batches in" in done.stdout
    assert f"saved in {out}" in done.stdout
    record = read_record(out / "record.json")
    assert record.name == "train/process"
    assert record.settings["ranks"] == 1
    assert record.settings["training.steps"] == 6
    assert record.command == "aureole train config.toml"
    assert 0 < record.metrics["mu_rank"] <= 1
    assert IndependentEncoder.load(out)(torch.rand(3, 4)).kappa.shape == (3,)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.toml", "encoder"]
    again = run("train", path, "--out", out)
    assert "already holds a saved encoder. Add --overwrite" in str(again.exception)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").touch()
    other = run("train", path, "--out", tmp_path / "full")
    assert "already exists and is not a saved encoder" in str(other.exception)


def test_vectors(tmp_path):
    out = tmp_path / "encoder"
    done = run("train", vectors(tmp_path), "--out", out, *SHORT, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["rows"] == 320
    assert found["coverage"].keys() == {"0.5", "0.8", "0.9", "0.95"}
    assert au.FrozenHead.load(out).predict(torch.randn(2, 8)).dim == 4
    assert read_record(out / "record.json").data.keys() == {"vectors.parquet"}
    pairs = f"data.pairs={tmp_path / 'vectors.parquet'}"
    both = run("train", tmp_path / "config.toml", "--out", tmp_path / "x", "--set", pairs)
    assert "either data.group_column or data.pairs" in str(both.exception)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_on_two_ranks_the_same_head_comes_out(tmp_path):
    """Under torchrun."""
    path = vectors(tmp_path)
    one, two = tmp_path / "one", tmp_path / "two"
    assert run("train", path, "--out", one, *SHORT).exit_code == 0
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = ["-m", "aureole", "train", str(path), *SHORT, "--out", str(two)]
    done = subprocess.run(
        [sys.executable, *torchrun, *command],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("6 batches on 2 ranks") == 1
    assert read_record(two / "record.json").settings["ranks"] == 2
    from safetensors.torch import load_file

    found, wanted = (load_file(folder / WEIGHTS) for folder in (two, one))
    for name, value in wanted.items():  # six steps of 0.004; hidden layers may be bfloat16
        assert torch.allclose(found[name], value, atol=2e-3), name
