"""The container: Dockerfile, compose.yaml and lock files."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.testing import CliRunner

from aureole.cli._app import app

ROOT = Path(__file__).parents[2]
SECRET = re.compile(r"(?i)password|secret|token|api.?key")


@pytest.fixture(scope="module")
def steps():
    """The instructions of the Dockerfile as (kind, text), continued lines joined."""
    text = re.sub(r"(?m)^#.*\n", "", (ROOT / "Dockerfile").read_text()).replace("\\\n", " ")
    return [line.split(None, 1) for line in text.splitlines() if line.strip()]


def last_of(steps, kind):
    """The text of the last instruction of a kind."""
    return [text for name, text in steps if name == kind][-1]


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


def tool(name):
    """The path of a program of this environment; skips the test where it is missing."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}") or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_hadolint_has_nothing_to_say():
    done = subprocess.run(
        [tool("hadolint"), "--no-color", str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("vendor.compose-spec", "compose.yaml"),
        ("vendor.github-workflows", ".github/workflows/ci.yml"),
        ("vendor.github-workflows", ".github/workflows/release.yml"),
    ],
)
def test_files_follow_their_schema(schema, file):
    command = [tool("check-jsonschema"), "--builtin-schema", schema, str(ROOT / file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_runs_as_an_unprivileged_user(steps):
    assert int(last_of(steps, "USER").partition(":")[0]) >= 10_000
    after = steps[[name for name, _ in steps].index("USER") :]
    assert not {"RUN", "COPY", "ADD"} & {name for name, _ in after}  # nothing it could own


def test_the_command_is_valid_and_the_health_check_asks_its_port(steps):
    assert json.loads(last_of(steps, "ENTRYPOINT")) == ["aureole"]
    words = json.loads(last_of(steps, "CMD"))
    assert words[0] == "serve"
    assert_options_exist(words)
    port = words[words.index("--port") + 1]
    assert last_of(steps, "EXPOSE") == port
    assert f"'127.0.0.1', {port}" in last_of(steps, "HEALTHCHECK")


def test_packages_are_installed_with_hashes(steps):
    installs = [part for _, text in steps for part in text.split("&&") if "pip install" in part]
    assert any("--require-hashes --no-deps -r requirements-serve.lock" in one for one in installs)
    assert (ROOT / "constraints.txt").read_text() == "torch==2.13.0\n"


def test_nothing_secret_is_in_a_layer(steps):
    for name, text in steps:
        if name in ("ARG", "ENV", "COPY", "RUN"):
            assert not SECRET.search(text), text
            assert "://" not in text, text


def test_services_of_compose_are_confined(compose):
    assert set(compose["services"]) == {"service", "database"}
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "cap_add" not in service, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert any(place.startswith("/tmp") for place in service["tmpfs"]), name
        assert {"pids_limit", "mem_limit"} <= set(service), name
        assert not {"privileged", "network_mode", "pid", "ipc", "devices"} & set(service), name
    assert compose["services"]["database"]["user"] == "postgres"
    assert "ports" not in compose["services"]["database"]
    assert compose["services"]["database"]["networks"] == ["inside"]
    assert compose["networks"]["inside"]["internal"] is True


def test_compose_publishes_on_loopback_and_mounts_read_only(compose):
    service = compose["services"]["service"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert all(volume.endswith(":ro") for volume in service["volumes"])


def test_secrets_of_compose_are_files_that_git_ignores(compose):
    used = {name for service in compose["services"].values() for name in service["secrets"]}
    assert used == set(compose["secrets"])
    assert all(entry["file"].startswith("./secrets/") for entry in compose["secrets"].values())
    assert "/secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    for service in compose["services"].values():
        for name, value in service["environment"].items():
            if SECRET.search(name):
                assert value.startswith("/run/secrets/"), name


def test_command_of_compose_is_valid(compose, steps):
    words = compose["services"]["service"]["command"]
    assert_options_exist(words)
    exposed = last_of(steps, "EXPOSE")
    assert words[words.index("--port") + 1] == exposed
    assert compose["services"]["service"]["ports"] == [f"127.0.0.1:{exposed}:{exposed}"]
    key = words[words.index("--api-key-file") + 1]
    assert key == "/run/secrets/api_key"
    assert "password" not in words[words.index("--index") + 1]


def assert_options_exist(words):
    """Each option of a command line is one of the command."""
    result = CliRunner().invoke(app, [words[0], "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for word in words:
        if word.startswith("--"):
            assert re.search(rf"{word}\b", result.output), word


def locked(name):
    """Version by package of a lock file; every package must have a hash."""
    text = (ROOT / name).read_text()
    pattern = r"^([A-Za-z0-9._-]+)==([^ \n]+)( \\\n    --hash=sha256:[0-9a-f]{64})?"
    entries = re.findall(pattern, text, re.MULTILINE)
    assert all(hashed for *_, hashed in entries), name
    assert "://" not in text, f"{name} names a host"
    return {canonicalize_name(package): version for package, version, _ in entries}


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-serve.lock"])
def test_lock_files_have_hashes_and_no_torch(name):
    packages = locked(name)
    assert len(packages) > 60
    forbidden = [p for p in packages if p == "torch" or re.match(r"triton|nvidia-|cuda-", p)]
    assert not forbidden


def test_lock_files_agree_with_each_other():
    everything, image = locked("requirements.lock"), locked("requirements-serve.lock")
    assert image.items() <= everything.items()
    assert not {"pytest", "ruff", "ray"} & set(image)


def test_lock_file_covers_every_requirement():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    paper = tomllib.loads((ROOT / "paper" / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *paper["dependencies"]]
    wanted += [one for name, group in extras.items() for one in group]
    packages = locked("requirements.lock")
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        if name not in ("torch", "aureole"):
            assert name in packages, f"{name}: run make lock"
            assert requirement.specifier.contains(packages[name], prereleases=True), name
