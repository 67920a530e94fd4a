"""Encoders of every kind through embed, score, search and serve, next to the bare encoder; and the one-command jobs.

Run ``OMP_NUM_THREADS=1 python -m benchmarks.encoders`` from a clean tree: it writes results/benchmarks/encoders.json.
``--kinds`` measures some kinds only. Each is added to the record when it is measured, and the others are kept. timm
needs an environment with torchvision.

The bare loop calls the library of the encoder on the same inputs, in batches of the same size, and nothing else. Rounds
of the bare loop and of the commands alternate. Rates are rows per second of processor time of one thread, so that other
work on the machine does not matter: for ``search``, of a query's posterior, next to single inputs of the bare loop
(the search itself is ``search_ms``); for ``serve``, of the busiest of its processes, for 32 clients at a time that ask
for posteriors. An API does its work in another process, so its rates are rows per second on the clock.
Commands are timed without the seconds in which they load the model.
"""

import argparse
import csv
import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from typer.testing import CliRunner

from aureole import encoders
from aureole.cli._app import app
from aureole.data import read_picture, scan_inputs
from aureole.records import Record, read_record, write_record
from aureole.retrieval import CredibleIndex
from aureole.scale import EmbedOptions, ModelSpec, SourceSpec, embed, load_embedder
from aureole.serve import Client
from aureole.training import FrozenHead
from benchmarks.served import serving

OUT = Path("results/benchmarks/encoders.json")
BATCH = 64
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
EVERY = ["minilm", "gte", "transformers", "onnx", "openai", "mobilenet", "vit", "saved"]
EVERY += ["jobs-text", "jobs-mobilenet"]
MOBILENET = """
from pathlib import Path
import numpy as np
import torch
from aureole_paper.mobilenet import load_mobilenet

network = load_mobilenet(Path({weights!r}), 112)

@torch.inference_mode()
def encode(pictures):
    squares = [np.array(picture.resize((112, 112))) for picture in pictures]
    return network(torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2)).numpy()

encode.kind = "image"
encode.resolution = 112
"""
API = """
import sys
import torch, uvicorn
from fastapi import FastAPI
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(sys.argv[1], device="cpu", model_kwargs={"dtype": torch.float32})
app = FastAPI()

@app.post("/v1/embeddings")
def embeddings(body: dict):
    rows = model.encode(body["input"], batch_size=64, show_progress_bar=False).tolist()
    return {"data": [{"index": i, "embedding": row} for i, row in enumerate(rows)]}

uvicorn.run(app, port=int(sys.argv[2]), log_level="critical")
"""


class Bench:
    """The inputs and models of the benchmark, in a folder."""

    def __init__(self, folder: Path, data: Path, rows: int) -> None:
        self.folder, self.data, self.rows = folder, data, rows
        self.gte = data / "weights" / "gte_small"

    def captions(self, rows: int, name: str) -> Path:
        """A CSV file of captions with the photo as the group."""
        path = self.folder / name
        texts = []
        for number in range(1, 6):
            with gzip.open(self.data / "text" / f"multi30k_test_2016.{number}.en.gz", "rt") as file:
                texts.append(file.read().splitlines())
        table = [
            (photo, number + 1, texts[number][photo])
            for photo in range(1000)
            for number in range(5)
        ]
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([("photo", "number", "caption"), *table[:rows]])
        return path

    def pictures(self, rows: int, name: str) -> Path:
        """CIFAR-10's first test pictures in class folders."""
        mosaic = read_picture(self.data / "cifar10" / "test_batch.webp").permute(1, 2, 0).numpy()
        tiles = mosaic.reshape(100, 32, 100, 32, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3)
        labels = np.load(self.data / "cifar10" / "labels.npz")["test"]
        for number in range(rows):
            folder = self.folder / name / CLASSES[labels[number]]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(tiles[number]).save(folder / f"{number:05d}.png")
        return self.folder / name

    def mobilenet(self) -> str:
        """MobileNetV2 with its real weights as a function of Python."""
        path = self.folder / "photos.py"
        weights = self.data / "weights" / "mobilenetv2_imagenet_bottleneck_fp16.npz"
        path.write_text(MOBILENET.format(weights=str(weights)))
        return f"python:{path}:encode"

    def vision(self) -> str:
        """A vision transformer of transformers (tiny, 224 pixels) with random weights."""
        from transformers import ViTConfig, ViTModel
        from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

        folder = self.folder / "vit"
        torch.manual_seed(0)
        sizes: dict[str, Any] = {
            "hidden_size": 192,
            "num_attention_heads": 3,
            "intermediate_size": 768,
        }
        ViTModel(ViTConfig(**sizes)).save_pretrained(folder)
        ViTImageProcessorPil().save_pretrained(folder)
        return f"transformers:{folder}"

    def timm(self) -> str:
        """ResNet-18 of timm with random weights."""
        import timm
        from timm.models import save_for_hf

        torch.manual_seed(0)
        folder = self.folder / "resnet18"
        save_for_hf(timm.create_model("resnet18"), str(folder), safe_serialization=True)
        return f"timm:{folder}"

    def saved(self) -> str:
        """A saved PosteriorEncoder: ResNet-20 with random weights."""
        from aureole.models import CifarResNet, KappaFromNorm, PosteriorEncoder

        torch.manual_seed(0)
        folder = self.folder / "encoder"
        return str(PosteriorEncoder(CifarResNet(20), KappaFromNorm(64, 16)).save(folder))

    def onnx(self) -> str:
        """gte-small in ONNX format."""
        from transformers import AutoModel, AutoTokenizer

        options = {"dtype": torch.float32, "attn_implementation": "eager"}
        model = AutoModel.from_pretrained(self.gte, add_pooling_layer=False, **options).eval()

        class States(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, input_ids: Any, attention_mask: Any) -> Any:
                return self.model(input_ids, attention_mask=attention_mask).last_hidden_state

        folder = self.folder / "onnx"
        folder.mkdir()
        for path in self.gte.glob("*token*"):
            shutil.copy(path, folder)
        tokenizer = AutoTokenizer.from_pretrained(self.gte)
        batch = tokenizer(["a dog", "two cats sleep"], padding=True, return_tensors="pt")
        names, axes = ["input_ids", "attention_mask"], {0: "batch", 1: "length"}
        torch.onnx.export(
            States(), tuple(batch[name] for name in names), str(folder / "model.onnx"), input_names=names,
            output_names=["last_hidden_state"], dynamic_axes=dict.fromkeys((*names, "last_hidden_state"), axes),
            dynamo=False,
        )  # fmt: skip
        return f"onnx:{folder / 'model.onnx'}"


@contextmanager
def api(gte: Path, port: int = 18_999) -> Iterator[str]:
    """gte-small behind the embeddings protocol, in a separate process."""
    process = subprocess.Popen([sys.executable, "-c", API, str(gte), str(port)])
    spec = f"openai:http://127.0.0.1:{port}/v1#gte-small"
    try:
        for _ in range(120):
            time.sleep(1)
            try:
                os.environ["AUREOLE_API_RETRIES"] = "0"
                encoders.load(spec)
                break
            except encoders_error():
                continue
        os.environ.pop("AUREOLE_API_RETRIES", None)
        yield spec
    finally:
        process.kill()
        process.wait()


def encoders_error() -> type[Exception]:
    """The error of an encoder that does not answer."""
    from aureole.errors import EncoderError

    return EncoderError


def bare_loop(kind: str, spec: str, inputs: list[Any]) -> Callable[[int], object]:
    """The encoder's own library on the inputs, ``batch`` at a time."""
    scheme, _, name = spec.partition(":")
    if scheme == "sentence-transformers":
        from sentence_transformers import SentenceTransformer

        place = str(encoders.packaged_folder(name) or name)
        model = SentenceTransformer(place, device="cpu", model_kwargs={"dtype": torch.float32})
        return lambda batch: model.encode(inputs, batch_size=batch, show_progress_bar=False)
    if scheme == "timm":
        import timm
        from timm.data import create_transform, resolve_model_data_config

        model = timm.create_model(f"local-dir:{name}", pretrained=True, num_classes=0).eval()
        transform: Any = create_transform(**resolve_model_data_config(model), is_training=False)

        def images(batch: int) -> None:
            with torch.inference_mode():
                for i in range(0, len(inputs), batch):
                    part = [
                        transform(Image.open(path).convert("RGB")) for path in inputs[i : i + batch]
                    ]
                    model(torch.stack(part)).numpy()

        return images
    if scheme == "transformers" and kind == "image":
        from transformers import AutoImageProcessor, ViTModel

        processor = AutoImageProcessor.from_pretrained(name, backend="pil")
        vit = ViTModel.from_pretrained(name).eval()

        def vision(batch: int) -> None:
            with torch.inference_mode():
                for i in range(0, len(inputs), batch):
                    part = [Image.open(path).convert("RGB") for path in inputs[i : i + batch]]
                    vit(**processor(images=part, return_tensors="pt")).pooler_output.numpy()

        return vision
    if scheme == "python":
        found: dict[str, Any] = {}
        exec(Path(name.rpartition(":")[0]).read_text(), found)

        def function(batch: int) -> None:
            for i in range(0, len(inputs), batch):
                found["encode"]([Image.open(path).convert("RGB") for path in inputs[i : i + batch]])

        return function
    return _bare_text(scheme, name, inputs) if kind == "text" else _bare_saved(spec, inputs)


def _bare_saved(folder: str, inputs: list[Any]) -> Callable[[int], object]:
    from aureole.models import PosteriorEncoder

    model = PosteriorEncoder.load(folder)

    def run(batch: int) -> None:
        with torch.inference_mode():
            for i in range(0, len(inputs), batch):
                part = [np.array(Image.open(path).convert("RGB")) for path in inputs[i : i + batch]]
                model(torch.from_numpy(np.stack(part)).permute(0, 3, 1, 2))

    return run


def _bare_text(scheme: str, name: str, inputs: list[Any]) -> Callable[[int], object]:
    """transformers, ONNX Runtime and an API, on texts sorted by length, as sentence-transformers sorts them."""
    texts = sorted(inputs, key=len, reverse=True)
    if scheme == "openai":
        import httpx

        url, _, model = name.partition("#")
        client = httpx.Client(timeout=60)

        def post(batch: int) -> None:
            for i in range(0, len(texts), batch):
                body = {"model": model, "input": texts[i : i + batch]}
                client.post(f"{url}/embeddings", json=body).json()

        return post
    from transformers import AutoModel, AutoTokenizer

    options = {"padding": True, "truncation": True, "return_tensors": "pt"}
    tokenizer = AutoTokenizer.from_pretrained(str(Path(name).parent) if scheme == "onnx" else name)

    def pooled(states: Any, mask: Any) -> Any:
        return (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)

    if scheme == "onnx":
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(name, settings, providers=["CPUExecutionProvider"])

        def run(batch: int) -> None:
            for i in range(0, len(texts), batch):
                part = tokenizer(texts[i : i + batch], **options)
                feed = {key: part[key].numpy() for key in ("input_ids", "attention_mask")}
                pooled(session.run(None, feed)[0], feed["attention_mask"])

        return run
    model = AutoModel.from_pretrained(name, dtype=torch.float32).eval()

    def states(batch: int) -> None:
        with torch.inference_mode():
            for i in range(0, len(texts), batch):
                part = tokenizer(texts[i : i + batch], **options)
                pooled(model(**part).last_hidden_state, part["attention_mask"]).numpy()

    return states


def cpu(pid: int | str = "self") -> float:
    """The processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def busiest(pid: int) -> Callable[[], float]:
    """A function that returns the processor seconds of the busiest of a process and its children since now."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    before = {one: cpu(one) for one in (str(pid), *children)}
    return lambda: max(cpu(one) - start for one, start in before.items())


def measure(kind: str, spec: str, table: Path, folder: Path, rounds: int) -> dict[str, Any]:
    """The rates of one encoder through the four commands, and of the bare loop."""
    text = kind == "text"
    column = "caption" if text else "image"
    inputs = [value for _, value in scan_inputs(table, column, "text" if text else "image")]
    bare = bare_loop(kind, spec, inputs)
    encoder = encoders.load(spec, "text" if text else "image")
    head = None
    if not isinstance(encoder, encoders.PosteriorModel):
        vectors = encoder.encode(inputs, batch_size=BATCH)
        groups = np.arange(len(inputs)) // 5
        head = FrozenHead(8, steps=20, items=128).fit(vectors, groups)
        head.fingerprint_ = encoder.fingerprint
        head.save(folder / "head")
    place = None if head is None else folder / "head"
    embedder = load_embedder(encoder, head=place)
    model = ModelSpec(encoder, place)
    clock = time.perf_counter if spec.startswith("openai:") else cpu
    source = SourceSpec(str(table), "text" if text else "image", column if text else None)
    gallery = folder / "gallery.lance"
    embed(source, model, gallery)
    parts: dict[str, Callable[[], object]] = {"bare": lambda: bare(BATCH)}
    names = (folder / f"e{number}.lance" for number in range(10**6))
    options = EmbedOptions(batch=BATCH)
    parts["embed"] = lambda: embed(source, model, next(names), options=options)
    if place is not None:
        parts["score"] = lambda: _score(table, column, text, encoder, place, folder / "s.parquet")
    rates = _rates(parts, len(inputs), rounds, clock)
    few = inputs[: min(len(inputs), 60)]
    one_bare = bare_loop(kind, spec, few)
    singles = {
        "bare": lambda: one_bare(1),
        "search": lambda: [embedder.posterior(raw) for raw in few],
    }
    single = _rates(singles, len(few), rounds, clock)
    with CredibleIndex.open(gallery) as index:
        queries = [_single(embedder, raw) for raw in few]
        start = cpu()
        for query in queries:
            index.search(query, limit=10)
        single["search"]["search_ms"] = 1000 * (cpu() - start) / len(few)
    words = () if place is None else ("--head", str(place))
    if spec.startswith("python:"):
        words = (*words, "--modality", kind)
    with serving(gallery, spec, *words, log=folder / "serve.log", label=None) as service:
        url = f"http://{service.host}:{service.port}"
        served = []
        for number in range(rounds + 1):
            start = clock()
            bare(32)
            alone, start = clock() - start, clock()
            used = busiest(service.process.pid)
            _requests(url, inputs, text)
            taken = used() if clock is cpu else clock() - start
            if number:
                served.append((alone, taken))
    ratio = median(alone / used for alone, used in served)
    rate = len(inputs) / median(used for _, used in served)
    return {
        "kind": spec.partition(":")[0] if ":" in spec else "saved",
        "input": kind,
        "dim": encoder.dim,
        "rows": len(inputs),
        "bare": rates["bare"]["rate"],
        "bare_single": single["bare"]["rate"],
        **{name: rates[name] for name in ("embed", "score") if name in rates},
        "search": single["search"],
        "serve": {"rate": rate, "ratio": ratio},
    }


def _rates(
    parts: dict[str, Callable[[], object]], rows: int, rounds: int, clock: Callable[[], float]
) -> dict[str, Any]:
    """Rows per second of each part, and its ratio to the bare loop, in alternating rounds after a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in parts}
    for number in range(rounds + 1):
        for name, run in parts.items():
            start = clock()
            run()
            if number:
                times[name].append(clock() - start)
    return {
        name: {
            "rate": rows / median(taken),
            "ratio": median(b / t for b, t in zip(times["bare"], taken, strict=True)),
        }
        for name, taken in times.items()
    }


def _score(table: Path, column: str, text: bool, encoder: Any, head: Path, out: Path) -> None:
    """``aureole score`` with an encoder that is loaded already."""
    plain = encoders.load
    encoders.load = lambda *_: encoder
    try:
        flag = "--text-column" if text else "--image-column"
        words = [
            "score",
            table,
            flag,
            column,
            "--encoder",
            "python:x:y",
            "--head",
            head,
            "--out",
            out,
        ]
        done = CliRunner().invoke(app, [str(word) for word in words])
        if done.exit_code:
            raise RuntimeError(done.output) from done.exception
    finally:
        encoders.load = plain


def _single(embedder: Any, raw: Any) -> Any:
    posterior = embedder.posterior(raw)
    return type(posterior)(posterior.mu[0], posterior.kappa[0], validate_args=False)


def _requests(url: str, inputs: list[Any], text: bool) -> None:
    """The posterior of each input over HTTP, 32 requests at a time."""
    local = threading.local()

    def ask(raw: Any) -> None:
        if not hasattr(local, "client"):
            local.client = Client(url)
        local.client.embed(**{"text" if text else "image": raw})

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(ask, inputs))


def job(words: list[str], folder: Path) -> dict[str, Any]:
    """Wall and processor seconds of a command in a separate process, and what it reports."""
    command = [sys.executable, "-m", "aureole", *words, "--json"]
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    facts = json.loads(done.stdout)
    return {
        "command": f"aureole {' '.join(words)}",
        "rows": facts["rows"],
        "groups": facts["groups"],
        "seconds": time.perf_counter() - start,
        "cpu_seconds": used,
        "information": facts["test"]["information"],
        "recall_at_1": facts["test"]["recall_at_1"],
        "auroc": facts["test"]["auroc"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("AUREOLE_DATA", "")))
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="*", help=f"some of {' '.join(EVERY)} timm jobs-timm")
    parser.add_argument("--keep", type=Path, help="folder for the pages of the jobs")
    options = parser.parse_args()
    chosen = options.kinds or EVERY
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), options.data_dir.absolute(), options.rows)
        captions = bench.captions(options.rows, "captions.csv")
        photos = bench.pictures(options.rows, "photos")
        models: dict[str, tuple[str, str, Callable[[], str]]] = {
            "minilm": (
                "all-MiniLM-L6-v2",
                "text",
                lambda: "sentence-transformers:all-MiniLM-L6-v2",
            ),
            "gte": ("gte-small", "text", lambda: f"sentence-transformers:{bench.gte}"),
            "transformers": ("gte-small", "text", lambda: f"transformers:{bench.gte}"),
            "onnx": ("gte-small", "text", bench.onnx),
            "openai": ("gte-small", "text", lambda: ""),
            "mobilenet": ("MobileNetV2", "image", bench.mobilenet),
            "vit": ("ViT-tiny, random weights", "image", bench.vision),
            "timm": ("resnet18, random weights", "image", bench.timm),
            "saved": ("ResNet-20, random weights", "image", bench.saved),
        }
        for key in (key for key in chosen if key in models):  # in the order given
            title, kind, make = models[key]
            table = captions if kind == "text" else photos
            place = Path(name) / f"run-{key}"
            place.mkdir()
            with api(bench.gte) if key == "openai" else nullcontext(None) as served:
                spec = served or make()
                found = measure(kind, spec, table, place, options.rounds)
            _store("encoders", key, {"model": title, **found}, options)
        _jobs(bench, chosen, options)


def _store(part: str, key: str, found: dict[str, Any], options: argparse.Namespace) -> None:
    """Print a result and add it to the record."""
    print(key, json.dumps(found), flush=True)
    metrics: dict[str, Any] = {"encoders": {}, "jobs": {}}
    if OUT.is_file():
        metrics |= read_record(OUT).metrics
    metrics[part][key] = found
    command = f"python -m benchmarks.encoders --rows {options.rows} --rounds {options.rounds}"
    settings = {"rows": options.rows, "rounds": options.rounds, "batch": BATCH}
    settings["threads"] = torch.get_num_threads()
    write_record(Record("encoders", metrics, command, settings=settings), OUT)


def _jobs(bench: Bench, chosen: list[str], options: argparse.Namespace) -> None:
    """The two one-command jobs at the size of the issue: 5,000 captions, and 2,000 pictures."""
    text, gte = "sentence-transformers:all-MiniLM-L6-v2", f"sentence-transformers:{bench.gte}"
    wanted: dict[str, tuple[str, Callable[[], str], str]] = {
        "captions-minilm": ("jobs-text", lambda: text, "text"),
        "captions-gte": ("jobs-text", lambda: gte, "text"),
        "pictures-mobilenet": ("jobs-mobilenet", bench.mobilenet, "image"),
        "pictures-timm": ("jobs-timm", bench.timm, "image"),
    }
    for title, (group, make, kind) in wanted.items():
        if group not in chosen:
            continue
        folder = bench.folder / f"job-{title}"
        folder.mkdir()
        words = [
            "--encoder",
            make(),
            "--out",
            "head",
            "--report",
            "page.html",
            "--scores",
            "scores.csv",
        ]
        if kind == "text":
            bench.captions(5000, f"job-{title}/captions.csv")
            columns = ["--text-column", "caption", "--group-column", "photo"]
            words = ["fit-head", "captions.csv", *columns, *words]
        else:
            bench.pictures(2000, f"job-{title}/photos")
            words = ["fit-head", "photos", *words]
        found = job(words, folder)
        for place in (bench.folder, bench.data):  # not part of the command
            found["command"] = found["command"].replace(f"{place}/", "")
        _store("jobs", title, found, options)
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / "page.html", options.keep / f"{title}.html")


if __name__ == "__main__":
    main()
