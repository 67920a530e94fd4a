"""``aureole doctor``: what it finds, what it says is missing, and a check of numbers that can fail."""

import json
import os
import subprocess
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import aureole as au
from aureole.cli import _doctor as doctor
from aureole.cli._doctor import (
    Check,
    Package,
    check_numerics,
    find_data,
    find_packages,
    hints,
)
from tests.cli.conftest import run

ROOT = Path(__file__).parents[2]


def test_all_is_well_here():
    done = run("doctor")
    assert done.exit_code == 0
    assert "All is well." in done.stdout
    assert torch.__version__ in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_json_is_one_object():
    done = run("doctor", "--json")
    found = json.loads(done.stdout)
    assert found["good"] is True
    assert found["torch"] == torch.__version__
    assert found["cores"] >= 1
    assert len(found["checks"]) == 4
    lightning = next(p for p in found["packages"] if p["name"] == "lightning-fabric")
    assert lightning["version"] == metadata.version("lightning-fabric")


@pytest.mark.parametrize(
    ("instructions", "text"), [(None, "plain PyTorch"), ("AVX2", "aureole-native, AVX2")]
)
def test_doctor_says_which_code_computes_the_losses(monkeypatch, instructions, text):
    monkeypatch.setattr(au.sphere, "native_instructions", lambda: instructions)
    assert text in " ".join(run("doctor").stdout.split())


def test_extras_are_those_of_the_distribution(monkeypatch):
    about = {"Provides-Extra": ["all", "serve", "tables", "test"]}
    monkeypatch.setattr(
        metadata, "metadata", lambda name: SimpleNamespace(get_all=lambda key: about[key])
    )
    needs = ["torch>=2.6", "pyarrow>=17; extra == 'tables'", "pytest>=8; extra == 'test'"]
    needs += [
        f"{name}; extra == '{extra}'" for extra in ("all", "serve") for name in ("a[b]>=2", "c")
    ]
    monkeypatch.setattr(metadata, "requires", lambda name: needs)
    packages = [(package.extra, package.name, package.least) for package in find_packages()]
    assert packages == [("serve", "a", "2"), ("serve", "c", ""), ("tables", "pyarrow", "17")]


def test_every_feature_of_the_project_is_listed():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    features = declared["optional-dependencies"].keys() - {"all", "docs", "test", "dev"}
    assert {package.extra for package in find_packages()} == features


def test_data_sets_are_where_loaders_look(tmp_path):
    for files in doctor.DATA.values():
        for file in files:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).touch()
    assert all(find_data(str(tmp_path))["sets"].values())
    (tmp_path / "text" / "ambient_full.jsonl.gz").unlink()
    found = find_data(str(tmp_path))
    assert found["sets"]["AmbiEnt"] is False
    assert found["sets"]["STS-B"] is True
    for nowhere in (None, "", str(tmp_path / "no")):
        assert find_data(nowhere)["found"] is False
        assert not any(find_data(nowhere)["sets"].values())


def test_versions_are_compared_as_numbers():
    assert Package("serve", "prometheus-client", "0.0.33", "0.0.9").good
    assert Package("scale", "ray", "2.40.0rc1", "2.40").good
    assert Package("text", "any", "0.1", "").good
    assert not Package("scale", "ray", "2.9.3", "2.40").good
    assert not Package("scale", "ray", None, "2.40").good


def test_nan_and_a_wrong_number_fail():
    assert Check("x", 1.0, 1.0 + 1e-12, 1e-10).good
    assert not Check("x", 1.0, 1.1, 1e-10).good
    assert not Check("x", float("nan"), 1.0, 1e-10).good


def test_wrong_numbers_are_status_1(monkeypatch):
    """An installation whose log-normaliser is off by a millionth is found out."""
    right = au.sphere.log_normalizer
    monkeypatch.setattr(au.sphere, "log_normalizer", lambda kappa, dim: right(kappa, dim) + 1e-6)
    done = run("doctor")
    assert done.exit_code == 1
    assert "do not use this installation" in done.stdout
    assert json.loads(run("doctor", "--json").stdout)["good"] is False


def test_the_global_generator_is_left_alone():
    torch.manual_seed(3)
    check_numerics()
    assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(3)))


@pytest.mark.parametrize(
    ("asked", "cores", "said"),
    [(None, 4, "not set"), ("8", 2, "set it to 2 or less"), ("4", 1, "set it to 1."), ("two", 4, "not a number"),
     ("0", 4, "not a number"), ("2", 4, None), (None, 1, None)],
)  # fmt: skip
def test_hints_about_threads(asked, cores, said):
    found = hints({"omp_num_threads": asked, "cores": cores, "threads": cores})
    assert (said is None and not found) or (said is not None and said in found[0])


def test_it_is_quick_and_imports_nothing_heavy():
    code = (
        "import sys, time, torch; from aureole.cli._app import app; start = time.process_time(); "
        "app(['doctor'], standalone_mode=False); spent = time.process_time() - start; "
        "heavy = {'ray', 'matplotlib', 'lance', 'faiss', 'lightning_fabric', 'fastapi'} & set(sys.modules); "
        "print(spent, heavy)"
    )
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    spent, _, heavy = done.stdout.splitlines()[-1].partition(" ")
    assert float(spent) < 1.5
    assert heavy == "set()"
    assert time.monotonic() - start < 60


def test_a_missing_package_has_its_pip_line(monkeypatch):
    monkeypatch.setattr(
        doctor,
        "find_packages",
        lambda: [
            p if p.name != "ray" else Package("scale", "ray", None, "2.40") for p in find_packages()
        ],
    )
    done = run("doctor")
    assert done.exit_code == 0
    assert "pip install 'aureole[scale]'" in done.stdout
