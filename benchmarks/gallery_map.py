"""The map and the table of a large gallery: CPU time, quality, memory and size of the columns.

``python -m benchmarks.gallery_map [--rows 1000000] [--sample 50000] [--out results/benchmarks]`` writes
gallery_map-ROWS.json. The gallery is a Lance table of clustered directions with a label and a caption. Times are of the
process, so they do not depend on what else the machine does.
"""

import argparse
import resource
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aureole.distributions import VonMisesFisher
from aureole.explorer import GalleryTable, write_map
from aureole.records import Record, write_record
from aureole.retrieval import CredibleIndex
from benchmarks.engines import clustered

DIM, CLUSTERS, NOISE = 64, 200, 0.6
ADDED = 1000


def create(folder: Path, rows: int) -> tuple[CredibleIndex, VonMisesFisher]:
    """A gallery of all rows but the last 1,000, and those."""
    posterior = clustered(rows + ADDED, DIM, clusters=CLUSTERS, noise=NOISE, seed=1)
    first = VonMisesFisher(posterior.mu[:rows], posterior.kappa[:rows], validate_args=False)
    index = CredibleIndex.create(
        folder / "gallery.lance", first, [f"item-{i:07d}" for i in range(rows)], payload(0, rows)
    )
    return index, VonMisesFisher(posterior.mu[rows:], posterior.kappa[rows:], validate_args=False)


def payload(start: int, stop: int) -> dict[str, list[Any]]:
    """A label of 100 classes, a caption and a price per row."""
    rng = np.random.default_rng(start)
    return {
        "label": [f"class {k}" for k in rng.integers(0, 100, stop - start)],
        "caption": [f"a picture of thing {i}, seen from afar" for i in range(start, stop)],
        "price": rng.lognormal(3, 1, stop - start).tolist(),
    }


def measured(work: Any) -> tuple[Any, float]:
    """(What a function returns, its CPU seconds)."""
    start = time.process_time()
    return work(), time.process_time() - start


def table_metrics(index: CredibleIndex) -> dict[str, Any]:
    """Loading the table, its columns as they are sent, and searches."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    table, load = measured(lambda: GalleryTable.read(index, "label", "caption"))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    columns = {}
    for name, column in table.columns.items():
        if column.data is not None:
            content = column.content()
            packed, seconds = measured(lambda content=content: zlib.compress(content, 1))
            columns[name] = {
                "bytes": len(content), "deflated": len(packed), "deflate seconds": seconds
            }  # fmt: skip
    numbers = list(range(0, len(table), max(1, len(table) // 10_000)))
    names, seconds = measured(lambda: table.ids(numbers))
    found, lookup = measured(lambda: table.numbers(names))
    assert found == numbers
    return {
        "load seconds": load,
        "peak megabytes": (after - before) / 1024,
        "columns": columns,
        "ids of 10,000 rows seconds": seconds,
        "rows of 10,000 ids seconds": lookup,
        "search seconds": {
            text: measured(lambda text=text: table.find(text))[1]
            for text in ("thing 77", "picture", "nothing at all")
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--sample", type=int, default=50_000)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    steps: dict[str, float] = {}
    started = time.process_time()

    def observe(step: str, done: int, total: int) -> None:
        steps[step] = time.process_time() - started
        print(f"{step} {done:,}/{total:,} {steps[step]:.0f} s", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        index, late = create(Path(folder), options.rows)
        started = time.process_time()
        made, seconds = measured(lambda: write_map(index, sample=options.sample, observer=observe))
        table = table_metrics(index)
        names = [f"item-{i:07d}" for i in range(options.rows, options.rows + ADDED)]
        index.append(late, names, payload(options.rows, options.rows + ADDED))
        extended, added = measured(lambda: write_map(index))
        size = sum(file.stat().st_size for file in Path(folder).glob("*.map"))
    metrics = {
        "map seconds": seconds,
        "seconds until": dict(steps),
        "neighbours kept": made.note.neighbours_kept,
        "fitted": made.note.fitted,
        "map bytes": size,
        "added rows seconds": added,
        "neighbours kept with added rows": extended.note.neighbours_kept,
        "table": table,
    }
    settings = {
        "rows": options.rows, "dim": DIM, "clusters": CLUSTERS, "noise": NOISE, "sample": options.sample,
        "threads": 1,
    }  # fmt: skip
    command = f"python -m benchmarks.gallery_map --rows {options.rows} --sample {options.sample}"
    path = options.out / f"gallery_map-{options.rows}.json"
    write_record(Record("gallery_map", metrics, command, 0, settings), path)
    print(path)


if __name__ == "__main__":
    main()
