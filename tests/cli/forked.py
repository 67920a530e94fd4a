"""Commands, each in a process of its own that has imported aureole already; packages can be hidden from them."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Case", "Ended", "run_cases"]

_HIDDEN = "AUREOLE_TEST_HIDDEN"
# a finder of modules that says of some packages that they are not installed
_HIDE = f"""
import os, sys

class Hidden:
    names = os.environ.get({_HIDDEN!r}, "").split(",")

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


@dataclass(frozen=True)
class Case:
    """A command, and the packages that it shall not find."""

    arguments: tuple[str, ...]
    hidden: tuple[str, ...] = ()
    program: str = ""  # Python to run instead of the command line


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said."""

    status: int
    stdout: str
    stderr: str


def run_cases(cases, folder, **environment):
    """How each of the cases ended, run in a folder; the import of aureole is paid for once."""
    given = [[c.arguments, c.hidden, c.program] for c in cases]
    kept = {k: v for k, v in os.environ.items() if k != "AUREOLE_DATA"}
    with tempfile.TemporaryDirectory() as start:
        # the processes that a command starts shall not find them either
        (Path(start) / "sitecustomize.py").write_text(_HIDE)
        kept["PYTHONPATH"] = os.pathsep.join([start, *kept.get("PYTHONPATH", "").split(os.pathsep)])
        done = subprocess.run(
            [sys.executable, __file__],
            input=json.dumps(given), capture_output=True, text=True, timeout=600, cwd=folder, check=False,
            env=kept | {"OMP_NUM_THREADS": "1", "COLUMNS": "80"} | environment,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [Ended(*entry) for entry in json.loads(done.stdout)]


def _run(arguments, hidden, program):
    """In the child: hide the packages and run the command; it ends the process."""
    loaded = {name.partition(".")[0] for name in sys.modules}
    assert not loaded & set(hidden), f"{loaded & set(hidden)} should not be imported so early"
    os.environ[_HIDDEN] = ",".join(hidden)
    exec(_HIDE, {})
    sys.argv = ["aureole", *arguments]
    if program:
        exec(program, {})
    else:
        from aureole.cli import main

        main()


def _main():
    import aureole.cli
    from aureole.models import _saving as saving

    assert aureole.cli
    assert saving
    results = []
    for case in json.loads(sys.stdin.read()):
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        child = os.fork()
        if not child:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            status = 99
            try:
                _run(*case)
                status = 0
            except SystemExit as error:
                status = error.code if isinstance(error.code, int) else 0
            except BaseException:
                import traceback

                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        _, ended = os.waitpid(child, 0)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
        results.append([os.waitstatus_to_exitcode(ended), *texts])
    print(json.dumps(results))


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])
    _main()
