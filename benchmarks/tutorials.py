"""How long the tutorials take: ``python -m benchmarks.tutorials [name ...]`` runs each in a fresh kernel on one thread.

Printed are the seconds on the clock and those of the processor, which do not depend on what else the machine does. The
build of the docs keeps outputs and would not run them again; this does.
"""

import os
import resource
import sys
import tempfile
import time
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
MOST = 90.0  # seconds of a processor


def names() -> list[str]:
    """The tutorials, by the names of their files."""
    pages = sorted((DOCS / "tutorials").glob("*.md"))
    return [page.stem for page in pages if "file_format: mystnb" in page.read_text("utf-8")]


def run(name: str) -> tuple[float, float]:
    """(Seconds on the clock, seconds of the processor) of one tutorial; a cell that fails is an error."""
    from myst_nb.core.read import read_myst_markdown_notebook
    from nbclient import NotebookClient

    notebook = read_myst_markdown_notebook((DOCS / "tutorials" / f"{name}.md").read_text("utf-8"))
    before, started = _processor(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=600, kernel_name="python3", resources=place).execute()
    return time.monotonic() - started, _processor() - before


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # of kernels that have ended
    return used.ru_utime + used.ru_stime


def main(chosen: list[str]) -> None:
    """Run the chosen tutorials, or all, and fail where one takes too long."""
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    os.environ["MATPLOTLIBRC"] = str(DOCS / "_static" / "matplotlibrc")
    found = {}
    for name in chosen or names():
        clock, found[name] = run(name)
        print(
            f"{name:20}{clock:8.1f} s on the clock {found[name]:8.1f} s of the processor",
            flush=True,
        )
    print(f"{'all':20}{'':23} {sum(found.values()):8.1f} s of the processor")
    slow = [name for name, seconds in found.items() if seconds > MOST]
    if slow:
        raise SystemExit(f"more than {MOST:g} s: {', '.join(slow)}")


if __name__ == "__main__":
    main(sys.argv[1:])
