"""The recipes of ``aureole train``: from a config to a saved encoder and the metrics of its record.

There is one recipe per kind of data: vectors, captions, images, and a process with known posteriors. All ranks call
``train`` with the same arguments. Rank 0 prepares inputs once (decoded images, embedded texts) in the work folder,
where the other ranks memory-map them and where a resumed run finds them.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from aureole._io import atomic_file
from aureole.data import (
    ARRAYS,
    Groups,
    PairBatch,
    RemotePath,
    list_pictures,
    read_column,
    read_groups,
    read_pairs,
    read_pictures,
    read_vectors,
    table_files,
)
from aureole.errors import InvalidInputError
from aureole.evaluation import predictive_coverage, recovery
from aureole.losses import ClosedFormInfoNCE, ContrastiveLoss, InfoNCE, MCInfoNCE, n_ranks, rank
from aureole.models import (
    Card,
    CifarResNet,
    IndependentEncoder,
    KappaFromNorm,
    PosteriorEncoder,
    ResidualMLP,
    ResNet18,
    whiten_last_layer,
)
from aureole.models._networks import hold_statistics
from aureole.records import file_hash
from aureole.synthetic import ControlledProcess, draw_generator
from aureole.training._config import Config
from aureole.training._distributed import from_first
from aureole.training._fit import Fit, FitOptions, Observer, fit
from aureole.training._frozen_head import (
    FrozenHead,
    Partners,
    best_information,
    halves,
    information,
    pair_rows,
)
from aureole.training._schedule import Phase
from aureole.training._sentence_transformers import minilm_folder, pooling_pipeline
from aureole_paper.classifier import load_classifier

_BATCH, _LARGEST_HASHED = 64, 2**33  # texts per batch, bytes of a file
_SIDE = 32  # pixels, the input size of the image networks
_SAMPLE, _PROBE, _PAIRS = 1000, 512, 2048  # images to start from, to select by; pairs to measure


@dataclass(frozen=True)
class _Places:
    """Where the encoder is saved, and where checkpoints and prepared inputs are."""

    out: Path
    work: Path
    observer: Observer | None

    @property
    def checkpoint(self) -> Path:
        return self.work / "checkpoint.safetensors"


def train(
    config: Config, out: Path, *, work: Path, observer: Observer | None = None
) -> dict[str, Any]:
    """Train an encoder by a config, save it in ``out`` and return the metrics of its record ({} on ranks other than 0).

    ``work`` is a folder that all ranks share, for checkpoints and prepared inputs: an interrupted run resumes from
    there. The caller deletes it.
    """
    recipes: dict[str, Callable[[Config, _Places], dict[str, Any]]] = {
        "vectors": _train_on_vectors,
        "captions": _train_on_captions,
        "images": _train_on_images,
        "process": _train_on_process,
    }
    metrics = recipes[config.kind](config, _Places(out, work, observer))
    return metrics if rank() == 0 else {}


def _train_on_vectors(config: Config, places: _Places) -> dict[str, Any]:
    """A head on a table of vectors."""
    path = Path(config["data.path"])
    columns_from = config.path("data.columns_from")
    columns = columns_from or path
    # an array file needs no column name; a table given as columns_from may contain only the ids of pairs
    grouped = config["data.group_column"] is not None or (
        columns_from is not None and columns_from.suffix in ARRAYS
    )
    if grouped == (config["data.pairs"] is not None):
        raise InvalidInputError(
            "give either data.group_column or data.pairs, not both and not neither."
        )
    vectors = read_vectors(path, config["data.vector_column"], work=places.work)
    groups = read_groups(columns, config["data.group_column"]) if grouped else None
    pairs = config.path("data.pairs")
    partners = None
    if pairs is not None:
        ids = (columns, config["data.id_column"]) if config["data.id_column"] else None
        partners = read_pairs(pairs, (config["data.left"], config["data.right"]), ids=ids)
    files = dict.fromkeys(p for p in (path, columns, pairs) if p is not None)
    return _train_head(config, places, vectors, groups=groups, pairs=partners, files=list(files))


def _train_on_captions(config: Config, places: _Places) -> dict[str, Any]:
    """A head on the MiniLM embeddings of texts."""
    path = Path(config["data.path"])
    groups = read_groups(path, config["data.group_column"])

    def embed() -> np.ndarray:
        texts = read_column(path, config["data.text_column"])
        empty = [n for n, text in enumerate(texts) if not isinstance(text, str) or not text.strip()]
        if empty:
            raise InvalidInputError(
                f"row {empty[0]} (counted from 0) of {path} has no text in {config['data.text_column']!r}. Drop "
                "such rows."
            )
        pipeline = pooling_pipeline(minilm_folder())
        vectors = pipeline.encode(list(texts), batch_size=_BATCH, show_progress_bar=False)
        return vectors.astype(np.float32)

    vectors = _prepared(places.work / "vectors.npy", embed)
    return _train_head(config, places, vectors, groups=groups, pairs=None, files=[path])


def _train_head(
    config: Config,
    places: _Places,
    vectors: np.ndarray,
    *,
    groups: np.ndarray | None,
    pairs: np.ndarray | None,
    files: list[Path],
) -> dict[str, Any]:
    head = FrozenHead(
        config["encoder.dim"],
        kappa_pos=config["loss.kappa_pos"],
        width=config["encoder.width"],
        steps=config["training.steps"],
        items=config["training.items"],
        lr=config["training.lr"],
        held_out=config["training.held_out"],
        seed=config["training.seed"],
    )
    head.fit(vectors, groups, pairs=pairs, checkpoint=places.checkpoint, observer=places.observer)
    if rank() > 0:
        return {}
    head.save(places.out, card=Card(name="A head on frozen vectors", data=files[0].name))
    return {
        "rows": len(vectors),
        "dim": head.dim_,
        "kappa_pos": head.kappa_pos_,
        "information": head.information_,
        "coverage": keyed(head.coverage_),
        **_fit_metrics(head.fit_),
        "data": hashes(files),
    }


def hashes(paths: Sequence[Path]) -> dict[str, str]:
    """The SHA-256 of each file by name; files of a folder are named "folder/file".

    Files with the same name are listed by their full paths. Files above 8 GiB are not hashed: the value says so.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "table"
    >>> folder.mkdir()
    >>> _ = (folder / "a.csv").write_text("x")
    >>> hashes([folder])
    {'table/a.csv': '2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881'}
    """
    named = [(_name_below(path, file), file) for path in paths for file in table_files(path)]
    count = Counter(name for name, _ in named)
    by_name = {}
    for name, file in named:
        by_name[name if count[name] == 1 else str(file)] = _hash_of(file)
    return by_name


def _name_below(path: Path, file: Path | RemotePath) -> str:
    """The name of a file of a folder; that of a file on an object store is its address."""
    if isinstance(file, RemotePath):
        return str(file)
    return file.name if file == path else f"{path.name}/{file.relative_to(path)}"


def _hash_of(file: Path | RemotePath) -> str:
    """The SHA-256 of a file, or that it is too large."""
    if isinstance(file, RemotePath):
        digest = sha256()
        with file.stream() as content:
            while piece := content.read(2**20):
                digest.update(piece)
        return digest.hexdigest()
    size = file.stat().st_size
    return file_hash(file) if size <= _LARGEST_HASHED else f"{size} bytes, too large to be hashed"


def _train_on_images(config: Config, places: _Places) -> dict[str, Any]:
    """A network for small images; images with the same label match."""
    check_ranks(config, n_ranks())
    paths, labels = list_pictures(Path(config["data.path"]))
    digest = places.work / "pictures.json"

    def read() -> np.ndarray:
        images, checksum = read_pictures(paths, _SIDE)
        digest.write_text(json.dumps({"pictures": checksum}))
        return images

    images = torch.from_numpy(_prepared(places.work / "pictures.npy", read))
    rng = torch.Generator().manual_seed(config["training.seed"])
    training, held = Groups.of(labels).split(config["training.held_out"], rng)
    selecting, measuring = halves(held, rng)
    loss, items = _make_loss(config), config["training.items"]
    probe = _image_batch(images, selecting, _PROBE, rng, mirror=False)
    if min(len(probe.inputs), len(training.draw(items, rng)[0])) < 4:
        raise InvalidInputError(
            f"{config['data.path']} has too few images to hold some out: {len(paths)} images of {len(set(labels))} "
            "labels. Give more than 20 images per label, more labels, or another training.held_out."
        )
    kappa_pos, mirror = config["loss.kappa_pos"], config["data.mirror"]
    judge = ClosedFormInfoNCE(kappa_pos)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config["training.seed"])
        encoder = _image_encoder(config, images[training.members[:_SAMPLE]])
    fitted = fit(
        encoder,
        loss,
        lambda _, rng: _image_batch(images, training, items, rng, mirror=mirror),
        phases=[Phase("joint", config["training.steps"], config["training.lr"])],
        options=FitOptions(
            seed=config["training.seed"],
            average=0.99,
            evaluate_every=max(1, config["training.steps"] // 10),
            select="information",
        ),
        checkpoint=places.checkpoint,
        evaluate=lambda model: {"information": information(model, judge, probe)},
        observer=places.observer,
    )
    model = fitted.encoder
    assert isinstance(model, PosteriorEncoder)
    if rank() > 0:
        return {}
    with torch.no_grad():
        query, partner = (model(images[rows]) for rows in pair_rows(measuring, _PAIRS, rng))
    coverage = predictive_coverage(query, partner, kappa_pos=kappa_pos)
    name, data = f"{config['encoder.network']} with posteriors", Path(config["data.path"]).name
    model.card = Card(name=name, data=data, kappa_pos=kappa_pos, coverage=coverage)
    model.save(places.out)
    return {
        "rows": len(paths),
        "labels": len(set(labels)),
        "dim": config["encoder.dim"],
        "kappa_pos": kappa_pos,
        "information": best_information(fitted),
        "coverage": keyed(coverage),
        **_fit_metrics(fitted),
        "data": json.loads(digest.read_text()),
    }


def check_ranks(config: Config, ranks: int) -> None:
    """Raise an error for images without pretrained weights on several ranks: batch norms would see parts of a batch."""
    if ranks > 1 and config.kind == "images" and config["encoder.weights"] is None:
        raise InvalidInputError(
            "encoder.weights is missing: without pretrained weights this network trains its batch norms, which on "
            f"{ranks} ranks would see only a part of each batch. Give weights, or train on one rank."
        )


def _image_batch(
    images: Tensor, partners: Partners, items: int, rng: torch.Generator, *, mirror: bool
) -> PairBatch:
    rows, pairs = partners.draw(items, rng)
    chosen = images[rows]
    if mirror:
        flipped = torch.rand(len(rows), 1, 1, 1, generator=rng) < 0.5
        chosen = torch.where(flipped, chosen.flip(-1), chosen)
    return PairBatch(chosen, pairs, float(len(pairs)))


def _image_encoder(config: Config, sample: Tensor) -> PosteriorEncoder:
    name = config["encoder.network"]
    backbone = ResNet18() if name == "resnet18" else CifarResNet(int(name.removeprefix("resnet")))
    head = KappaFromNorm(backbone.n_out, config["encoder.dim"])
    weights = config["encoder.weights"]
    if weights is not None:
        head.start_from(load_classifier(backbone, weights))
        hold_statistics(backbone)
    with torch.no_grad():
        features = backbone(sample)
        if weights is None:  # features are positive, so all mu would start close together
            whiten_last_layer(head.linear, features)
    head.initialise(features, kappa=config["loss.kappa_pos"])
    return PosteriorEncoder(backbone, head, head_rate=1.0 if weights is None else 3.0)


def _train_on_process(config: Config, places: _Places) -> dict[str, Any]:
    """An encoder for a synthetic process, and its errors against the known posteriors."""
    seed, dim, width = config["training.seed"], config["data.dim"], config["encoder.width"]
    kappas = (config["data.kappa_low"], config["data.kappa_high"])
    generator = draw_generator(dim, kappas, kind=config["data.generator"], seed=seed)
    process = ControlledProcess(generator, kappa_pos=config["loss.kappa_pos"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = [ResidualMLP(dim, n, width=width) for n in (dim, 1)]
        encoder = IndependentEncoder(*networks, n_in=dim)
        encoder.initialise(process.inputs(4096))
    items, pairs = config["training.items"], config["training.pairs"]

    def scores(model: nn.Module) -> dict[str, float]:
        x = process.inputs(2000, torch.Generator().manual_seed(~seed % 2**63))
        with torch.no_grad():
            return recovery(model(x), *process.generator(x), max_items=1000)

    fitted = fit(
        encoder,
        _make_loss(config),
        lambda _, rng: process.batch(items, pairs, generator=rng),
        phases=[Phase("joint", config["training.steps"], config["training.lr"])],
        options=FitOptions(seed=seed, evaluate_every=max(1, config["training.steps"] // 10)),
        checkpoint=places.checkpoint,
        evaluate=scores,
        observer=places.observer,
    )
    model = fitted.encoder
    assert isinstance(model, IndependentEncoder)
    if rank() > 0:
        return {}
    name, kappa_pos = "A process with known posteriors", config["loss.kappa_pos"]
    model.save(places.out, card=Card(name=name, kappa_pos=kappa_pos, data="drawn"))
    kinds = ("mu_", "kappa_r", "kappa_m")
    recovered = {name: v for name, v in fitted.curve[-1].items() if name.startswith(kinds)}
    return {"dim": dim, "kappa_pos": kappa_pos, **recovered, **_fit_metrics(fitted)}


def _make_loss(config: Config) -> ContrastiveLoss:
    """The loss of a config."""
    kappa_pos = config["loss.kappa_pos"]
    if config["loss.name"] == "mcinfonce":
        return MCInfoNCE(kappa_pos, config["loss.n_samples"])
    if config["loss.name"] == "infonce":
        return InfoNCE(temperature=1 / kappa_pos)
    return ClosedFormInfoNCE(kappa_pos, centring=config["loss.centring"])


def _prepared(path: Path, make: Callable[[], np.ndarray]) -> np.ndarray:
    """The memory-mapped array in a file, which rank 0 makes if it does not exist."""
    if rank() == 0 and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)  # ``make`` may also write there
        values = make()
        with atomic_file(path) as file:
            np.save(file, values, allow_pickle=False)
    from_first(None)  # the other ranks wait
    return np.load(path, mmap_mode="c", allow_pickle=False)


def _fit_metrics(fitted: Fit) -> dict[str, Any]:
    """The metrics of a fit for a record, as JSON values: NaN and infinity become None.

    Examples
    --------
    >>> names = ("loss", "kappa_low", "kappa_median", "kappa_high", "information")
    >>> _fit_metrics(Fit(nn.Identity(), [dict.fromkeys(names, 0.5) | {"information": math.nan}]))["curve"]
    [{'loss': 0.5, 'kappa_low': 0.5, 'kappa_median': 0.5, 'kappa_high': 0.5, 'information': None}]
    """

    def finite(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    curve = [{name: finite(value) for name, value in point.items()} for point in fitted.curve]
    return {
        **{name: curve[-1][name] for name in ("loss", "kappa_low", "kappa_median", "kappa_high")},
        "ranks": n_ranks(),
        "seconds_training": round(fitted.seconds, 1),
        "curve": curve,
    }


def keyed(coverage: dict[float, float]) -> dict[str, float]:
    """Coverage by mass with text keys, for JSON."""
    return {f"{mass:g}": share for mass, share in coverage.items()}
