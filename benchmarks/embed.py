"""Bulk embedding: rows per second compared with the bare model loop, by the number of workers, and peak memory.

``python -m benchmarks.embed [--images 60000] [--captions 8000] [--workers 1 2] [--rounds 2] [--out FILE]`` writes a
record. A part with 0 inputs is left out.

Pictures are CIFAR-10 as PNG bytes in a Parquet table, encoded by a ResNet-20 with random weights; texts are captions of
Multi30k, encoded by MiniLM and the head that is included in the library. The bare loop has its inputs decoded in
memory, calls the model on batches of the same size with one thread, like a worker, and writes nothing. It runs before
and after each of our runs, on a part of the inputs. Rows per second are measured from the first rows on, because Ray
workers take seconds to start; ``seconds`` includes it. Peak memory is that of processes that embed a sixth of the
pictures, and all of them five times.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import aureole as au
from aureole.data import read_column, write_columns
from aureole.data._image_files import write_picture
from aureole.data._table_files import pyarrow_package
from aureole.embed import Embedder, ModelSpec, SourceSpec, embed
from aureole.models import CifarResNet
from aureole.models._saving import MINILM_CAPTIONS
from aureole.records import Record, write_record
from aureole_paper.cifar import load_cifar10
from aureole_paper.data_folder import data_folder
from aureole_paper.text_data import load_captions
from benchmarks.retrieval import size_of

IMAGE_BATCH, TEXT_BATCH = 128, 32
_PEAK = r"""
import re, sys
import torch
torch.set_num_threads(1)
from aureole.embed import SourceSpec, embed
report = embed(SourceSpec(sys.argv[1], id_column="id"), *sys.argv[2:4], batch=int(sys.argv[4]))
# not ru_maxrss, which a process has from the one that started it
print(report.rows, re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1])
"""


def picture_table(folder: Path, count: int, repeats: int = 1) -> Path:
    """A Parquet table of PNG bytes with ids; ``repeats`` files of the same pictures with other ids."""
    data = data_folder()
    pixels = torch.cat([load_cifar10(data, part)[0] for part in ("train", "test")])[:count]
    encoded = []
    scratch = folder / "scratch.png"
    for picture in pixels:
        write_picture(picture, scratch)
        encoded.append(scratch.read_bytes())
    scratch.unlink()
    column = pyarrow_package().array(encoded)
    place = folder / f"images-{count}-of-{repeats}"
    place.mkdir(exist_ok=True)
    for number in range(repeats):
        ids = np.array([f"{number}/{i}" for i in range(count)], dtype=object)
        write_columns(place / f"{number}.parquet", {"image": column, "id": ids})
    return place


def caption_table(folder: Path, count: int) -> Path:
    """A Parquet table of captions with ids, in the order of the data set."""
    found = [text for five in load_captions(data_folder(), "train") for text in five][:count]
    ids = np.array([str(i) for i in range(len(found))], dtype=object)
    place = folder / "captions.parquet"
    return write_columns(place, {"caption": np.array(found, dtype=object), "id": ids})


def bare_rate(embedder: Embedder, inputs: list[Any], batch: int) -> float:
    """Rows per second of the model alone, on decoded inputs in batches, in their given order."""
    embedder.embed(inputs[:batch])
    begin = time.perf_counter()
    for first in range(0, len(inputs), batch):
        embedder.embed(inputs[first : first + batch])
    return len(inputs) / (time.perf_counter() - begin)


def measure(
    spec: SourceSpec, model: ModelSpec, *, batch: int, workers: list[int], rounds: int, folder: Path
) -> dict[str, Any]:
    """Rows per second of the bare loop and of ours, medians over rounds in which they alternate."""
    embedder = model.load(spec.modality)
    path = Path(spec.path)
    first = path if path.is_file() else path / "0.parquet"
    inputs = read_column(first, spec.column).tolist()
    part = [embedder.prepare(one) for one in inputs[: max(batch, min(len(inputs) // 8, 7500))]]
    bare = [bare_rate(embedder, part, batch)]
    runs: dict[int, list[Any]] = {n: [] for n in workers}
    for round_ in range(rounds):
        for n in workers:
            out = folder / f"{spec.modality}-{n}-{round_}.lance"
            runs[n].append(embed(spec, model, out, batch=batch, workers=n))
            bare.append(bare_rate(embedder, part, batch))
            print(f"{spec.modality}: bare {bare[-1]:.0f} rows/s, {n} workers: {runs[n][-1]}")
    rates = {n: median(report.rows_per_second for report in reports) for n, reports in runs.items()}
    report = runs[workers[0]][0]
    found: dict[str, Any] = {
        "rows": report.rows, "batch": batch, "dim": report.dim,
        "bare rows a second": median(bare), "bytes a row": size_of(Path(report.table)) / report.rows,
    }  # fmt: skip
    for n, rate in rates.items():
        found[f"{n} workers"] = {
            "rows a second": rate,
            "of bare": rate / median(bare),
            "of one worker": rate / rates[workers[0]],
            "seconds": median(report.seconds for report in runs[n]),
        }
    return found


def peak_memory(folder: Path, encoder: Path, images: int) -> dict[str, Any]:
    """Peak bytes of processes that embed a sixth of the pictures, and all of them five times."""
    found = {}
    for count, repeats in ((max(1, images // 6), 1), (images, 5)):
        table = picture_table(folder, count, repeats)
        arguments = [str(table), str(encoder), str(folder / f"p{count}.lance"), str(IMAGE_BATCH)]
        command = [sys.executable, "-c", _PEAK, *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows, kilobytes = done.stdout.split()
        found[rows] = 1024 * int(kilobytes)
    least, most = found.values()
    return {"bytes by rows": found, "growth": most / least - 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--captions", type=int, default=8_000, help="145,000 take half an hour")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/scale/embed.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    metrics: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="embed-") as place:
        folder = Path(place)
        shared = {"workers": options.workers, "rounds": options.rounds, "folder": folder}
        if options.images:
            encoder = folder / "encoder"
            kappa = au.models.KappaFromNorm(64, 16)
            au.PosteriorEncoder(CifarResNet(20), kappa).save(encoder)
            spec = SourceSpec(str(picture_table(folder, options.images)), "image", "image", "id")
            metrics["images"] = measure(spec, ModelSpec(encoder), batch=IMAGE_BATCH, **shared)
            metrics["peak memory"] = peak_memory(folder, encoder, options.images)
        if options.captions:
            table = caption_table(folder, options.captions)
            spec = SourceSpec(str(table), "text", "caption", "id")
            model = ModelSpec("sentence-transformers:all-MiniLM-L6-v2", MINILM_CAPTIONS)
            metrics["captions"] = measure(spec, model, batch=TEXT_BATCH, **shared)
    settings = {"threads of a worker": 1, "cores": os.cpu_count(), "rounds": options.rounds}
    workers = " ".join(str(n) for n in options.workers)
    command = (
        f"python -m benchmarks.embed --images {options.images} --captions {options.captions} --workers {workers} "
        f"--rounds {options.rounds}"
    )
    write_record(Record("embed", metrics, command, 0, settings), options.out)


if __name__ == "__main__":
    main()
