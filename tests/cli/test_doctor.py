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

import torch

import aureole as au
from aureole.cli import _doctor as doctor
from aureole.cli._doctor import _check, check_numerics, find_packages
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


def distribution(monkeypatch, requires, versions):
    """Let the installed distribution have these requirements, and packages these versions."""
    found = {"aureole": [SimpleNamespace(requires=requires, version="0")]}
    found |= {name: [SimpleNamespace(version=version)] for name, version in versions.items()}
    monkeypatch.setattr(metadata, "distributions", lambda name: found.get(name, []))


def test_extras_are_those_of_the_distribution(monkeypatch):
    needs = ["torch>=2.6", "pytest>=8; extra == 'test'"]
    needs += [f"{name}; extra == '{e}'" for e in ("all", "serve") for name in ("a[b]>=2", "c")]
    distribution(monkeypatch, needs, {})
    packages = [tuple(package.values())[:3] for package in find_packages()]
    assert packages == [("serve", "a", ">=2"), ("serve", "c", "")]
    distribution(monkeypatch, None, {})
    assert find_packages() == []


def test_every_feature_of_the_project_is_listed(monkeypatch):
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = declared["optional-dependencies"]
    needs = [f"{need}; extra == '{extra}'" for extra in extras for need in extras[extra]]
    distribution(monkeypatch, declared["dependencies"] + needs, {})
    features = extras.keys() - {"all", "docs", "test", "dev"}
    assert {package["extra"] for package in find_packages()} == features


def test_versions_are_compared_as_numbers(monkeypatch):
    needs = [f"{name}; extra == 'x'" for name in ("a>=0.0.9", "b>=2.39", "c>=2.40", "d")]
    distribution(monkeypatch, needs, {"a": "0.0.33", "b": "2.40.0rc1", "c": "2.9.3"})
    assert [package["good"] for package in find_packages()] == [True, True, False, False]


def test_nan_and_a_wrong_number_fail():
    assert _check("x", 1.0, 1.0 + 1e-12, 1e-10)["good"]
    assert not _check("x", 1.0, 1.1, 1e-10)["good"]
    assert not _check("x", float("nan"), 1.0, 1e-10)["good"]


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
    version = doctor._version
    monkeypatch.setattr(
        doctor, "_version", lambda name: None if name == "fastapi" else version(name)
    )
    done = run("doctor")
    assert done.exit_code == 0
    assert "fastapi missing" in done.stdout
    assert "pip install 'aureole[serve]'" in done.stdout
