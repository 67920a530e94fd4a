"""Change the code of the numerical core, one operator or number at a time, and list the changes that no test notices.

``python tools/mutations.py [--sample 20] [--seed 0] [--only self_pairs]`` draws changes (mutations) of each file below
with cosmic-ray, runs the tests of that file on a copy of the repository, and prints the share that a test notices
(killed) and the survivors. At least 85 % must be killed. Needs ``pip install cosmic-ray``.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
GOAL = 0.85
# file: the tests that are to notice its mutations
TARGETS = {
    "sphere/_angle.py": "tests/sphere/test_cosine.py",
    "sphere/_bessel.py": "tests/sphere/test_bessel.py tests/sphere/test_normalizer.py",
    "sphere/_normalizer.py": "tests/sphere/test_normalizer.py",
    "sphere/_geometry.py": "tests/sphere/test_geometry.py",
    "sphere/_sampling.py": "tests/distributions/test_sampling.py",
    "sphere/_positivity.py": "tests/sphere/test_positivity.py",
    "sphere/_predictive.py": "tests/sphere/test_predictive.py",
    "losses/_self_pairs.py": "tests/losses/test_self_pairs.py",
    "losses/_contrastive.py": "tests/losses/test_hostile.py tests/losses/test_among.py",
    "losses/_cross_entropy.py": "tests/losses/test_values.py tests/losses/test_among.py",
    "losses/_negatives.py": "tests/losses/test_values.py",
}
CONFIG = """[cosmic-ray]
module-path = "src/aureole/{source}"
timeout = {timeout}
excluded-modules = []
test-command = "{python} -m pytest -q -x -n 0 -p no:cacheprovider --quick {tests}"
[cosmic-ray.distributor]
name = "local"
"""


def leave_out(session: Path, source: str, sample: int, seed: int) -> None:
    """Skip all but a random sample of the mutations, and those of annotations and decorators."""
    from cosmic_ray.work_db import use_db
    from cosmic_ray.work_item import WorkerOutcome, WorkResult

    lines = (ROOT / "src/aureole" / source).read_text().splitlines()
    with use_db(str(session)) as db:
        items = list(db.pending_work_items)
        useful = [
            item
            for item in items
            if not lines[item.mutations[0].start_pos[0] - 1].lstrip().startswith(("@", "def "))
            and "->" not in lines[item.mutations[0].start_pos[0] - 1]
        ]
        chosen = {
            item.job_id for item in random.Random(seed).sample(useful, min(sample, len(useful)))
        }
        for item in items:
            if item.job_id not in chosen:
                db.set_result(item.job_id, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))


def run(source: str, copy: Path, options: argparse.Namespace) -> tuple[int, list[str]]:
    """Return the number of mutations of a file that were tried, and the diffs of the survivors."""
    ray = [sys.executable, "-m", "cosmic_ray.cli"]
    config, session = (copy / f"mutations.{end}" for end in ("toml", "sqlite"))
    settings = {"source": source, "tests": TARGETS[source], "python": sys.executable}
    config.write_text(CONFIG.format(timeout=options.timeout, **settings))
    session.unlink(missing_ok=True)
    subprocess.run([*ray, "init", config, session], cwd=copy, check=True)
    leave_out(session, source, options.sample, options.seed)
    subprocess.run([*ray, "exec", config, session], cwd=copy, check=True)
    dump = subprocess.check_output([*ray, "dump", session], cwd=copy, text=True)
    results = [json.loads(line)[1] for line in dump.splitlines()]
    tried = [r for r in results if r and r["test_outcome"] is not None]
    return len(tried), [r["diff"] for r in tried if r["test_outcome"] == "survived"]


def main() -> None:
    """Print the table, and exit with an error below the goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=20, help="mutations per file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds per mutation")
    parser.add_argument("--only", default="", help="part of the names of the files")
    options = parser.parse_args()
    tried = survived = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("src", "tests", "pyproject.toml"):
            place = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            place(ROOT / name, copy / name)
        for source in (name for name in TARGETS if options.only in name):
            count, survivors = run(source, copy, options)
            tried, survived = tried + count, survived + len(survivors)
            print(f"{source}: {count - len(survivors)} of {count} killed", flush=True)
            print(*survivors, sep="\n", flush=True)
    share = 1 - survived / max(tried, 1)
    print(f"{share:.0%} of {tried} mutations killed; the goal is {GOAL:.0%}")
    sys.exit(share < GOAL)


if __name__ == "__main__":
    main()
