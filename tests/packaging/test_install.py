"""``.ci/install`` with a pip that is a script: what it installs, when it falls back, and when it stops."""

import platform
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
MISSING = "ERROR: No matching distribution found for six==99.0"
MISMATCH = "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. someone may have tampered"
_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)
locked_platform = pytest.mark.skipif(
    (sys.version_info[:2], platform.system(), platform.machine()) != ((3, 11), "Linux", "x86_64"),
    reason="requirements.lock covers Python 3.11 on Linux x86-64",
)


def install(folder, *, said="", status=0, version="3 11 Linux x86_64"):
    """(Finished process, commands of pip) of .ci/install, with what pip says of the lock."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    (bin_folder / "pip").write_text(
        f"""#!/bin/sh
echo "$@" >>"{folder}/commands"
case "$*" in *--require-hashes*) echo "{said}" >&2; exit {status};; esac
"""
    )
    (bin_folder / "python").write_text(f"#!/bin/sh\necho {version}\n")
    for name in ("pip", "python"):
        (bin_folder / name).chmod(0o755)
    command = [ROOT / ".ci" / "install", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done, (folder / "commands").read_text().splitlines()


TORCH = "install --quiet torch==2.13.0"
LOCK = "install --quiet --require-hashes --no-deps -r requirements.lock"
OWN = "install --quiet --no-deps --no-build-isolation -e . -e ./paper"
CONSTRAINED = "install --quiet -c constraints.txt -e .[dev] -e ./paper"


def test_packages_are_installed_by_their_hashes(tmp_path):
    done, commands = install(tmp_path)
    assert done.returncode == 0, done.stderr
    assert commands == [TORCH, LOCK, OWN, "check"]


def test_a_file_that_the_index_lacks_is_named_and_versions_are_resolved(tmp_path):
    done, commands = install(tmp_path, said=MISSING, status=1)
    assert done.returncode == 0, done.stderr
    assert commands == [TORCH, LOCK, CONSTRAINED, "check"]
    assert "the package index lacks a file of it: No matching distribution found for six==99.0" in (
        done.stdout
    )


@pytest.mark.parametrize("said", [MISMATCH, f"{MISSING} {MISMATCH}", "ERROR: no space left"])
def test_another_hash_or_error_ends_it(tmp_path, said):
    done, commands = install(tmp_path, said=said, status=1)
    assert done.returncode == 1
    assert commands == [TORCH, LOCK]
    assert said in done.stderr
    assert done.stderr.endswith("error: requirements.lock cannot be installed, see above\n")


@pytest.mark.parametrize(
    "version", ["3 12 Linux x86_64", "3 11 Linux aarch64", "3 11 Darwin arm64"]
)
def test_other_platforms_do_not_use_the_lock(tmp_path, version):
    done, commands = install(tmp_path, version=version)
    assert done.returncode == 0, done.stderr
    assert commands == [TORCH, CONSTRAINED, "check"]
    assert f"not {version}" in done.stdout


def test_ci_installs_only_so():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    own = [line.strip() for line in lines if "pip install" in line or 'pip" install' in line]
    assert own == ["pip install --quiet --no-deps --no-build-isolation ./native"]
    assert '.ci/install "$venv"' in lines


def requirements_of(*files):
    """Every requirement of the projects, extras included; timm needs a torchvision and is in no other extra."""
    for file in files:
        project = tomllib.loads((ROOT / file).read_text())["project"]
        yield from project.get("dependencies", ())
        for name, group in project.get("optional-dependencies", {}).items():
            if name != "timm":
                yield from group


@pytest.fixture(scope="module")
def versions():
    """Versions of the lock, and of torch."""
    text = (ROOT / "requirements.lock").read_text() + (ROOT / "constraints.txt").read_text()
    return {canonicalize_name(name): version for name, version in _LOCKED.findall(text)}


def needs_of(name, extras, versions):
    """The requirements of a locked package with extras; None if its version is not installed here."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    if found.version.partition("+")[0] != versions[name]:
        return None
    needs = [Requirement(line) for line in found.requires or ()]
    return [
        one
        for one in needs
        if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in ("", *extras))
    ]


def closure(versions):
    """(Names of all that the projects need, locked packages that are not installed here in their version)."""
    queue = [Requirement(one) for one in requirements_of("pyproject.toml", "paper/pyproject.toml")]
    seen, unknown = set(), set()
    while queue:
        wanted = queue.pop()
        name, extras = canonicalize_name(wanted.name), tuple(sorted(wanted.extras))
        left_out = name in ("aureole", "pip") or re.match(r"triton|nvidia-|cuda-", name)
        if left_out or (name, extras) in seen:
            continue
        assert name in versions, f"{wanted} is not in requirements.lock: run make lock"
        allowed = wanted.specifier.contains(versions[name], prereleases=True)
        assert allowed, f"{wanted}, but {versions[name]} is locked: run make lock"
        seen.add((name, extras))
        needs = needs_of(name, extras, versions)
        if needs is None:
            unknown.add(name)
        queue += needs or ()
    return {name for name, _ in seen}, unknown


def test_constraints_pin_torch_alone():
    text = (ROOT / "constraints.txt").read_text()
    assert [name for name, _ in _LOCKED.findall(text)] == ["torch"]


@locked_platform
def test_the_lock_has_a_version_for_all_that_is_needed(versions):
    reached, _ = closure(versions)
    assert len(reached) > 100


@locked_platform
def test_the_lock_has_nothing_that_is_not_needed(versions):
    reached, unknown = closure(versions)
    if unknown:
        pytest.skip(f"not installed in the version of the lock: {', '.join(sorted(unknown))}")
    assert not versions.keys() - reached
