"""Bulk embedding: rows per second compared with the bare model loop, with one and two workers, and peak memory.

``python -m benchmarks.embed [--images 60000] [--captions 8000] [--workers 1 2] [--rounds 3] [--caption-rounds 3]
[--caption-workers 1 2] [--repeats 5] [--parts images captions memory] [--out FILE]`` writes a record, updated after
each part; parts that you do not request keep their values in the record, with their commit in ``commits``.

Pictures are all of CIFAR-10 as PNG bytes in a Parquet table, encoded by a ResNet-20 with random weights; texts are
captions of Multi30k, encoded by MiniLM and the head that is included in the library. The bare loop has its inputs
decoded in memory, calls the model on batches of the same size with one thread, like a worker, and writes nothing. It
runs before and after each of our runs, on a part of the inputs. To measure what the cores allow, one bare loop per
worker also runs in parallel, once on decoded inputs and once decoding its own. Rows per second exclude the first
chunk, because Ray workers take seconds to start; ``seconds`` includes it. Peak memory is that of processes that embed
a sixth of the pictures, and all of them five times. The last part has files that answer after 20 ms, like an object
store, with one thread that reads and decodes, and with 16.
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
from aureole.embed import (
    Embedder,
    EmbedOptions,
    SourceSpec,
    _worker as worker,
    embed,
    load_embedder,
)
from aureole.models import CifarResNet
from aureole.models._saving import MINILM_CAPTIONS
from aureole.records import Record, read_record, write_record
from aureole_paper.cifar import load_cifar10
from aureole_paper.data_folder import data_folder
from aureole_paper.text_data import load_captions
from benchmarks.retrieval import size_of
from tests.made_pictures import make_pictures

PARTS = ("images", "captions", "memory")
IMAGE_BATCH, TEXT_BATCH = 128, 32
_PEAK = r"""
import re, sys
import torch
torch.set_num_threads(1)
from aureole.embed import EmbedOptions, SourceSpec, embed
source = SourceSpec(sys.argv[1], id_column="id")
report = embed(source, *sys.argv[2:4], options=EmbedOptions(batch=int(sys.argv[4])))
# not ru_maxrss, which a process has from the one that started it
print(report.rows, re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1])
"""

_BARE = r"""
import sys, time
import torch
torch.set_num_threads(1)
from pathlib import Path
from aureole.embed import load_embedder
from benchmarks.embed import raw_inputs
table, column, encoder, modality, batch, count, begin, decode = sys.argv[1:]
batch, begin = int(batch), float(begin)
embedder = load_embedder(encoder, modality)
inputs = raw_inputs(Path(table), column, int(count))
if decode == "no":
    inputs = [embedder.prepare(one) for one in inputs]
    work = embedder.embed
else:
    work = embedder
work(inputs[:batch])
assert time.time() < begin, "this machine is too slow to start in time"
time.sleep(begin - time.time())
rows = 0
while time.time() < begin + 8:
    first = rows % (len(inputs) - batch + 1)
    work(inputs[first : first + batch])
    rows += batch
print(rows / (time.time() - begin))
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


def bare_at_once(
    table: Path,
    column: str,
    encoder: Path,
    modality: str,
    batch: int,
    processes: int,
    *,
    decode: bool,
) -> float:
    """Total rows per second of several bare loops in parallel: what the cores allow, with or without decoding."""
    begin = str(time.time() + 25)
    given = (table, column, encoder, modality, batch, 8 * batch, begin, "yes" if decode else "no")
    command = [str(part) for part in given]
    started = [
        subprocess.Popen([sys.executable, "-c", _BARE, *command], stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    return sum(float(process.communicate()[0]) for process in started)


def raw_inputs(table: Path, column: str, count: int) -> list[Any]:
    """The first inputs of a table, not decoded."""
    return read_column(table, column).tolist()[:count]


def measure(
    table: Path, column: str, encoder: Path, modality: str, *,
    rows: int, batch: int, workers: list[int], rounds: int, folder: Path,
) -> dict[str, Any]:  # fmt: skip
    """Rows per second of the bare loop and of ours, medians over rounds in which they alternate."""
    embedder = load_embedder(encoder, modality)  # pyright: ignore[reportArgumentType]
    first = table if table.is_file() else table / "0.parquet"
    part = [embedder.prepare(one) for one in raw_inputs(first, column, min(rows // 8, 7500))]
    bare: list[float] = []
    at_once: dict[tuple[int, bool], list[float]] = {
        (n, d): [] for n in workers for d in (False, True)
    }
    ours: dict[int, list[Any]] = {n: [] for n in workers}
    bytes_a_row = 0.0
    for round_ in range(rounds):
        for n in workers:
            bare.append(bare_rate(embedder, part, batch))
            out = folder / f"{modality}-{n}-{round_}.lance"
            source = SourceSpec(str(table), embedder.modality, column, "id")
            report = embed(source, encoder, out, workers=n, options=EmbedOptions(batch=batch))
            assert report.rows == rows, report
            bytes_a_row = size_of(out) / rows
            ours[n].append((report.rows_per_second, report.seconds))
            print(f"{modality}: bare {bare[-1]:.0f} rows/s, {n} workers {report}", flush=True)
        bare.append(bare_rate(embedder, part, batch))
        for (n, decode), rates in at_once.items():
            rates.append(bare_at_once(first, column, encoder, modality, batch, n, decode=decode))
    middle = median(bare)
    one = median(rate for rate, _ in ours[workers[0]])
    found: dict[str, Any] = {
        "rows": rows, "batch": batch, "bare rows a second": middle,
        "bytes a row": bytes_a_row, "dim": embedder.dim,
    }  # fmt: skip
    for n, runs in ours.items():
        rate = median(rate for rate, _ in runs)
        found[f"{n} workers"] = {
            "rows a second": rate,
            "of bare": rate / middle,
            "of one worker": rate / one,
            "bare loops at once": median(at_once[n, False]),
            "of bare loops at once": rate / median(at_once[n, False]),
            "loops that decode at once": median(at_once[n, True]),
            "of loops that decode at once": rate / median(at_once[n, True]),
            "seconds": median(seconds for _, seconds in runs),
        }
    return found


def peak(table: Path, encoder: Path, out: Path, batch: int) -> tuple[int, int]:
    """(Rows, peak bytes of memory) of a process that embeds a table."""
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(table), str(encoder), str(out), str(batch)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    rows, kilobytes = done.stdout.split()
    return int(rows), 1024 * int(kilobytes)


def with_latency(folder: Path, encoder: Path, *, rows: int, seconds: float) -> dict[str, Any]:
    """Rows per second of one process if each file takes some time to answer, by the number of decoding threads."""
    source = folder / "slow"
    make_pictures(source, rows)
    plain, found = worker.load_input, {}

    def late(raw: Any) -> Any:
        time.sleep(seconds)
        return plain(raw)

    for delay, decoders in ((0.0, 1), (seconds, 1), (seconds, 16)):
        worker.load_input = late if delay else plain
        try:
            out = folder / f"slow-{delay}-{decoders}.lance"
            spec = SourceSpec(str(source))
            report = embed(spec, encoder, out, options=EmbedOptions(batch=32, decoders=decoders))
        finally:
            worker.load_input = plain
        found[f"{1000 * delay:.0f} ms, {decoders} decoders"] = report.rows_per_second
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--captions", type=int, default=8_000, help="145,000 take half an hour")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--caption-rounds", type=int, help="default: the same as for pictures")
    parser.add_argument(
        "--caption-workers", type=int, nargs="+", help="default: the same as for pictures"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="repetitions of the pictures, for peak memory"
    )
    parser.add_argument("--out", type=Path, default=Path("results/scale/embed.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    caption_rounds = options.caption_rounds or options.rounds
    caption_workers = options.caption_workers or options.workers
    metrics: dict[str, Any] = {}
    commits: dict[str, str] = {}
    if options.out.is_file() and set(options.parts) < set(PARTS):
        before = read_record(options.out)
        metrics, commits = dict(before.metrics), dict(before.settings.get("commits", {}))

    def keep(part: str) -> None:
        """Write the measurements so far."""
        settings = {
            "images": options.images, "captions": options.captions, "rounds": options.rounds,
            "caption rounds": caption_rounds, "threads of a worker": 1, "cores": os.cpu_count(),
            "commits": commits,
        }  # fmt: skip
        numbers = (options.workers, caption_workers)
        workers, of_captions = (" ".join(str(n) for n in found) for found in numbers)
        command = (
            f"python -m benchmarks.embed --images {options.images} --captions {options.captions} --workers {workers} "
            f"--rounds {options.rounds} --caption-workers {of_captions} --caption-rounds {caption_rounds} "
            f"--repeats {options.repeats}"
        )
        record = Record("embed", metrics, command, 0, settings)
        commits[part] = record.commit
        write_record(record, options.out)

    with tempfile.TemporaryDirectory(prefix="embed-") as place:
        folder = Path(place)
        torch.manual_seed(0)
        au.PosteriorEncoder(CifarResNet(20), au.models.KappaFromNorm(64, 16)).save(
            folder / "encoder"
        )
        if "images" in options.parts:
            table = picture_table(folder, options.images)
            metrics["images"] = measure(
                table, "image", folder / "encoder", "image",
                rows=options.images, batch=IMAGE_BATCH,
                workers=options.workers, rounds=options.rounds, folder=folder,
            )  # fmt: skip
            print(metrics["images"], flush=True)
            keep("images")
        if "captions" in options.parts:
            table = caption_table(folder, options.captions)
            metrics["captions"] = measure(
                table, "caption", MINILM_CAPTIONS, "text",
                rows=options.captions, batch=TEXT_BATCH,
                workers=caption_workers, rounds=caption_rounds, folder=folder,
            )  # fmt: skip
            print(metrics["captions"], flush=True)
            keep("captions")
        if "memory" in options.parts:
            found = {}
            for count, repeats in ((options.images // 6, 1), (options.images, options.repeats)):
                table = picture_table(folder, count, repeats)
                rows, size = peak(
                    table, folder / "encoder", folder / f"p{count}.lance", IMAGE_BATCH
                )
                found[str(rows)] = size
                print(f"peak memory at {rows} rows: {size / 2**20:.0f} MiB", flush=True)
            least, most = found.values()
            metrics["peak memory"] = {"bytes by rows": found, "growth": most / least - 1}
            metrics["latency"] = with_latency(folder, folder / "encoder", rows=2000, seconds=0.02)
            print(metrics["latency"], flush=True)
            keep("memory")


if __name__ == "__main__":
    main()
