"""Duration of the tutorials: ``python -m benchmarks.tutorials [name ...]`` runs each in a fresh kernel on one thread.

Prints wall time and CPU time; the latter does not depend on other work on the machine. The build of the docs caches
outputs and would not run them again; this does.
"""

import os
import resource
import sys
import tempfile
import time
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
MOST = 90.0  # CPU seconds


def names() -> list[str]:
    """The names of the tutorials."""
    pages = sorted((DOCS / "tutorials").glob("*.md"))
    return [page.stem for page in pages if "file_format: mystnb" in page.read_text("utf-8")]


def run(name: str) -> tuple[float, float]:
    """(Wall time, CPU time) of one tutorial in seconds; a failing cell raises an error."""
    from myst_nb.core.read import read_myst_markdown_notebook
    from nbclient import NotebookClient

    notebook = read_myst_markdown_notebook((DOCS / "tutorials" / f"{name}.md").read_text("utf-8"))
    before, started = _processor(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=600, kernel_name="python3", resources=place).execute()
    return time.monotonic() - started, _processor() - before


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # of finished kernels
    return used.ru_utime + used.ru_stime


def main(chosen: list[str]) -> None:
    """Run the chosen tutorials, or all, and fail if one takes too long."""
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    from aureole.plot import STYLE

    os.environ["MATPLOTLIBRC"] = str(STYLE)
    cpu = {}
    for name in chosen or names():
        clock, cpu[name] = run(name)
        print(
            f"{name:20}{clock:8.1f} s wall time {cpu[name]:8.1f} s CPU time",
            flush=True,
        )
    print(f"{'all':20}{'':20} {sum(cpu.values()):8.1f} s CPU time")
    slow = [name for name, seconds in cpu.items() if seconds > MOST]
    if slow:
        raise SystemExit(f"more than {MOST:g} s of CPU time: {', '.join(slow)}")


if __name__ == "__main__":
    main(sys.argv[1:])
