"""Whether a server of the /v1/embeddings protocol and the same model loaded here return the same vectors.

``python -m benchmarks.openai_server URL#MODEL FOLDER [--data ../shared/data] [--out results/benchmarks/infinity.json]``

The record was written with Infinity 0.0.78 and gte-small: ``infinity_emb v2 --model-id FOLDER --served-model-name
gte-small --engine torch --device cpu --dtype float32 --port 7997``, in a separate environment, on the same machine.
"""

import argparse
import gzip
import time
from pathlib import Path

import numpy as np

from aureole import encoders
from aureole.records import Record, file_hash, write_record
from aureole.retrieval._brute_force import unit_rows

ROWS = 500


def main() -> None:
    """Compare the vectors of 500 captions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server")
    parser.add_argument("folder")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/infinity.json"))
    arguments = parser.parse_args()
    file = arguments.data / "text" / "multi30k_test_2016.1.en.gz"
    with gzip.open(file, "rt") as lines:
        texts = [line.strip() for line in lines][:ROWS]
    started = time.perf_counter()
    served = unit_rows(encoders.load(f"openai:{arguments.server}").encode(texts), "served")
    seconds = time.perf_counter() - started
    model = encoders.load(f"sentence-transformers:{arguments.folder}")
    own = unit_rows(model.encode(texts), "own")
    metrics = {
        "rows": ROWS,
        "largest difference": float(np.abs(served - own).max()),
        "lowest cosine": float((served * own).sum(1).min()),
        "rows per second": ROWS / seconds,
    }
    print(metrics)
    command = f"python -m benchmarks.openai_server {arguments.server} gte_small"
    data = {file.name: file_hash(file)}
    record = Record("benchmarks/openai_server", metrics, command, 0, {"rows": ROWS}, data)
    write_record(record, arguments.out)


if __name__ == "__main__":
    main()
