"""The container: Dockerfile, compose.yaml and lock files, parsed; ``tools/container_steps.py`` runs the steps."""

import fnmatch
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.testing import CliRunner

from aureole.cli._app import app

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "container_steps.py"
SECRET = re.compile(r"(?i)password|secret|token|api.?key")


@pytest.fixture(scope="module")
def container():
    spec = importlib.util.spec_from_file_location("container_steps", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def steps(container):
    return container.read_steps((ROOT / "Dockerfile").read_text())


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


def test_the_image_runs_as_an_unprivileged_user(container, steps):
    last = [step for step in steps if step.stage == steps[-1].stage]
    assert int(container.last_of(last, "USER").text.partition(":")[0]) >= 10_000
    after = last[last.index(container.last_of(last, "USER")) :]
    assert not {"RUN", "COPY", "ADD"} & {step.kind for step in after}  # nothing it could own
    assert all("--chown" not in step.text for step in last)


def test_stages_have_the_same_base_and_nothing_else_enters(steps):
    bases = {step.text.partition(" ")[0] for step in steps if step.kind == "FROM"}
    assert bases == {"python:3.11-slim"}
    assert not [step for step in steps if step.kind in ("ADD", "VOLUME", "ONBUILD")]
    copied = [step.text for step in steps if step.kind == "COPY" and step.stage == 1]
    assert copied == ["--from=build /opt/aureole /opt/aureole"]


def test_entrypoint_and_command_are_in_exec_form_and_valid(container, steps):
    assert container.words_of(container.last_of(steps, "ENTRYPOINT")) == ["aureole"]
    words = container.words_of(container.last_of(steps, "CMD"))
    assert words[0] == "serve"
    assert_options_exist(words)
    assert "--api-key" not in " ".join(words)  # the operator's choice


def test_health_check_asks_the_port_that_the_service_listens_on(container, steps):
    check = container.words_of(container.last_of(steps, "HEALTHCHECK"))
    assert check[:2] == ["python", "-c"]
    compile(check[2], "health check", "exec")
    imported = set(re.findall(r"(?:from|import) ([a-z_.]+)", check[2]))
    assert imported == {"http.client", "HTTPConnection"} - {"HTTPConnection"}  # standard library
    words = container.words_of(container.last_of(steps, "CMD"))
    port = words[words.index("--port") + 1]
    assert f"'127.0.0.1', {port}" in check[2]
    assert "/healthz" in check[2]
    assert container.last_of(steps, "EXPOSE").text == port


def test_packages_are_installed_with_hashes_and_without_a_cache(steps):
    installs = [
        part.strip()
        for step in steps
        if step.kind == "RUN"
        for part in step.text.split("&&")
        if "pip install" in part
    ]
    assert all("--no-cache-dir" in part for part in installs)
    locked, torch, own = installs
    assert "--require-hashes --no-deps -r requirements-serve.lock" in locked
    assert torch.endswith("-r constraints.txt")  # after the lock: only torch itself is missing
    assert own.endswith("--no-deps --no-build-isolation .")
    assert (ROOT / "constraints.txt").read_text() == "torch==2.13.0\n"


def test_commands_of_every_step_exist(steps):
    commands = {
        shlex.split(part)[0] for step in steps if step.kind == "RUN" for part in step.text.split("&&")
    }  # fmt: skip
    assert commands == {"python", "pip", "groupadd", "useradd"}
    if sys.platform == "linux":
        for command in ("groupadd", "useradd"):
            assert shutil.which(command, path="/usr/sbin:/sbin:/usr/bin:/bin"), command


def test_nothing_secret_is_in_a_layer(steps):
    for step in steps:
        if step.kind in ("ARG", "ENV", "COPY", "RUN"):
            assert not SECRET.search(step.text), step.text
            assert "://" not in step.text, step.text


def test_only_what_is_copied_reaches_the_builder(steps):
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = {
        name
        for step in steps
        if step.kind == "COPY" and "--from" not in step.text
        for name in shlex.split(step.text)[:-1]
    }
    assert allowed == copied
    assert all((ROOT / name).exists() for name in copied)
    assert not any(fnmatch.fnmatch(name, "*.key") or "secret" in name for name in allowed)


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


def test_command_of_compose_is_valid(compose, container, steps):
    words = compose["services"]["service"]["command"]
    assert_options_exist(words)
    exposed = container.last_of(steps, "EXPOSE").text
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
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    paper = tomllib.loads((ROOT / "paper" / "pyproject.toml").read_text())["project"]
    native = tomllib.loads((ROOT / "native" / "pyproject.toml").read_text())["build-system"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *paper["dependencies"], *native["requires"]]
    wanted += [one for name, group in extras.items() for one in group]
    packages = locked("requirements.lock")
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        if name not in ("torch", "aureole"):
            assert name in packages, f"{name}: run make lock"
            assert requirement.specifier.contains(packages[name], prereleases=True), name


def test_make_install_checks_hashes():
    makefile = (ROOT / "Makefile").read_text()
    recipe = makefile.partition("\ninstall:\n")[2].partition("\n\n")[0].splitlines()
    torch, locked, project = (line.strip() for line in recipe)
    assert torch == "pip install $(TORCH_INDEX) torch==$(NEWEST)"
    assert locked == "pip install --require-hashes --no-deps -r requirements.lock"
    assert "--no-deps" in project
