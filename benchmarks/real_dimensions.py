"""Whether the closed-form loss and its gradients are finite, over random settings of tests/losses/settings.py.

``python -m benchmarks.real_dimensions [--count 5000] [--out results/benchmarks/real_dimensions.json]``

Batches of 8 to 128 items, log-uniform. Progress is kept next to the record, and the same command resumes after an
interruption. ``--count 50000`` is the long run.
"""

import argparse
import json
import time
from pathlib import Path

import torch

from aureole.records import Record, write_record
from tests.losses import settings

SIZES = (8, 128)
SAVED_EVERY = 50


def check(index: int) -> str | None:
    """A description of the setting if a value or gradient is not finite, or the loss negative; else None."""
    setting = settings.make(index, SIZES)
    value, grads = setting.loss_and_gradients()
    finite = all(bool(torch.isfinite(x).all()) for x in (value, *grads))
    return None if finite and value >= 0 else str(setting)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/real_dimensions.json"))
    arguments = parser.parse_args()
    progress = arguments.out.with_suffix(".progress")
    state = {"done": 0, "seconds": 0.0, "failures": []}
    if progress.exists():
        state = json.loads(progress.read_text())
    while state["done"] < arguments.count:
        start = time.process_time()
        end = min(state["done"] + SAVED_EVERY, arguments.count)
        found = [check(index) for index in range(state["done"], end)]
        state = {
            "done": end,
            "seconds": state["seconds"] + time.process_time() - start,
            "failures": state["failures"] + [text for text in found if text],
        }
        progress.parent.mkdir(parents=True, exist_ok=True)
        progress.write_text(json.dumps(state))
        print(f"{end} settings, {len(state['failures'])} failures", flush=True)
    metrics = {
        "settings": state["done"],
        "not finite or negative": len(state["failures"]),
        "CPU seconds": state["seconds"],
        "failures": state["failures"][:20],
    }
    command = f"python -m benchmarks.real_dimensions --count {arguments.count}"
    write_record(
        Record("benchmark-real-dimensions", metrics, command, 0, {"items": list(SIZES)}),
        arguments.out,
    )
    progress.unlink()


if __name__ == "__main__":
    main()
