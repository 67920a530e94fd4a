"""Time that ``import aureole`` adds to ``import torch``, in fresh interpreters.

``python -m benchmarks.import_time [--repeats N] [--out results/benchmarks/import_time.json]``
"""

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import median

from aureole.records import Record, write_record

_TIMED = "import time, torch; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
_HEAVY = "import sys, aureole; print(*sorted({name.split('.')[0] for name in sys.modules}))"
FORBIDDEN = (
    "scipy",
    "matplotlib",
    "pandas",
    "sklearn",
    "ray",
    "lightning_fabric",
    "lance",
    "faiss",
)


def seconds(module: str) -> float:
    """Seconds to import a module after torch, in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", _TIMED.format(module)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def heavy_modules() -> list[str]:
    """Heavy modules that ``import aureole`` loads but should not."""
    done = subprocess.run(
        [sys.executable, "-c", _HEAVY], capture_output=True, text=True, check=True
    )
    return [name for name in done.stdout.split() if name in FORBIDDEN]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/import_time.json"))
    arguments = parser.parse_args()
    added = [seconds("aureole") for _ in range(arguments.repeats)]
    heavy = heavy_modules()
    metrics = {
        "import aureole, after import torch": {
            "seconds added": median(added),
            "heavy modules loaded": ", ".join(heavy) or "none",
        }
    }
    for setting, values in metrics.items():
        print(setting)
        for name, value in values.items():
            print(f"  {name:24s} {value}")
    command = "python -m benchmarks.import_time"
    write_record(Record("benchmark-import-time", metrics, command=command), arguments.out)


if __name__ == "__main__":
    main()
