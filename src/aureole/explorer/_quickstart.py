"""The quickstart: an encoder of drawn shapes whose label distributions are known, in about two minutes.

It trains the encoder on pictures and votes, checks it on other pictures against the distributions that the votes were
drawn from (which the encoder never sees), builds a gallery, searches it and writes a page. Runs resume if interrupted.
"""

import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aureole._io import check_local
from aureole.caps import CredibleIndex, SearchOptions
from aureole.data import PairBatch, label_rates, poisson_pairs
from aureole.data._image_files import write_picture
from aureole.distributions import VonMisesFisher
from aureole.engines import Origin
from aureole.errors import AureoleError, InvalidInputError
from aureole.evaluation import rejection_curve, spearman
from aureole.evaluation._retrieval_metrics import nearest_label_matches
from aureole.explorer._quickstart_page import (
    CapSearch,
    Findings,
    count_labels,
    two_caps_figure,
    write_page,
)
from aureole.losses import ClosedFormInfoNCE
from aureole.models import Card, CifarResNet, KappaFromNorm, PosteriorEncoder, whiten_last_layer
from aureole.models._saving import WEIGHTS
from aureole.plot import as_file
from aureole.records import Record, file_hash, read_record, write_record
from aureole.synthetic import KINDS, DrawnShapes, blur_pictures, deteriorate, drawn_shapes
from aureole.synthetic._image_transforms import augment
from aureole.training import FitOptions, Phase, fit
from aureole.training._fit import Observer

EXTRAS = "pip install 'aureole[train,explore,images,search]'"
_PACKAGES = ("lightning_fabric", "matplotlib", "jinja2", "PIL")
_ENGINES = ("lance", "faiss")
_PLAN, _RECORD, _CHECKPOINT = "plan.json", "quickstart.json", "training.safetensors"
_PAGE, _CAPS = "quickstart.html", "caps.svg"
_LARGE, _LARGEST = 40, 120  # pixels: of a picture on the page, and of a query

Say = Callable[[str], None]
Watch = Callable[[], AbstractContextManager[Observer | None]]
_BLURS = (0.0, 0.75, 1.5, 2.25, 3.0, 4.0)  # pixels
_CROPS = (1.0, 0.85, 0.7, 0.55, 0.4, 0.25)  # of the side
_POINTS = 51  # of the rejection curve
GALLERIES = ("gallery.lance", "gallery.faiss")  # the ending is the engine's module
_SHAPE = "star"  # the query's, set before any search was seen


@dataclass(frozen=True)
class QuickstartSetting:
    """Everything that decides a quickstart, except the seed. Tuned on other seeds than the reported ones.

    ``annotators`` vote on each picture. Batches hold ``items`` pictures and ``pairs`` positive pairs on average.
    The first ``gallery`` held-out pictures can be searched.
    """

    pictures: int = 4000
    held_out: int = 2000
    gallery: int = 240
    annotators: int = 20
    depth: int = 8
    dim: int = 8
    kappa_pos: float = 32.0
    kappa_start: float = 10.0
    items: int = 96
    pairs: int = 1024
    steps: int = 600
    lr: float = 5e-3
    blur: float = 2.25
    mass: float = 0.95

    def shortened(self, max_batches: int | None) -> "QuickstartSetting":
        """The setting with at most that many steps, and accordingly fewer pictures."""
        if max_batches is None or max_batches >= self.steps:
            return self
        return replace(
            self,
            steps=max_batches,
            pictures=min(self.pictures, max(800, self.items * max_batches)),
            held_out=min(self.held_out, 800),
        )


@dataclass(frozen=True)
class Quickstart:
    """A finished quickstart: its record, its page, its gallery, and whether it had been finished before."""

    record: Record
    page: Path
    gallery: Path
    found: bool = False


@dataclass(frozen=True)
class Shapes:
    """The pictures to train on, and those held out of training."""

    train: DrawnShapes
    held_out: DrawnShapes


def draw(setting: QuickstartSetting, seed: int) -> Shapes:
    """The shapes of a seed."""
    return Shapes(
        drawn_shapes(setting.pictures, seed=10 * seed, annotators=setting.annotators),
        drawn_shapes(setting.held_out, seed=10 * seed + 1, annotators=setting.annotators),
    )


def train(
    setting: QuickstartSetting,
    shapes: DrawnShapes,
    seed: int,
    *,
    checkpoint: Path | None = None,
    observer: Observer | None = None,
) -> tuple[PosteriorEncoder, float]:
    """(An encoder trained on pairs by the votes with the closed form, the seconds it took)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = _new_encoder(setting, shapes)
    fitted = fit(
        encoder,
        ClosedFormInfoNCE(kappa_pos=setting.kappa_pos),
        _Batches(setting, shapes),
        phases=[Phase("joint", setting.steps, setting.lr)],
        options=FitOptions(seed=seed, average=0.99, checkpoint_seconds=10.0, diagnose=False),
        checkpoint=checkpoint,
        observer=observer,
    )
    assert isinstance(fitted.encoder, PosteriorEncoder)
    return fitted.encoder.eval(), fitted.seconds


def _new_encoder(setting: QuickstartSetting, shapes: DrawnShapes) -> PosteriorEncoder:
    backbone = CifarResNet(setting.depth)
    head = KappaFromNorm(backbone.n_out, setting.dim)
    with torch.no_grad():
        features = backbone(shapes.pictures[:500])
        whiten_last_layer(head.linear, features)  # otherwise all directions start equal
    head.initialise(features, kappa=setting.kappa_start)
    card = Card(
        name="Drawn shapes",
        data=f"{len(shapes):,} pictures of drawn_shapes with the votes of {setting.annotators} annotators each",
        kappa_pos=setting.kappa_pos,
        licence="apache-2.0",
        notes="Trained by aureole quickstart, on eight shapes of 32 pixels only.",
    )
    return PosteriorEncoder(backbone, head, card=card)


class _Batches:
    """Batches of pictures, mirrored at random, with pairs by their votes."""

    def __init__(self, setting: QuickstartSetting, shapes: DrawnShapes) -> None:
        self.pictures = shapes.pictures
        self.labels = (shapes.votes / setting.annotators).float()
        self.prior = self.labels.mean(0)
        self.items, self.pairs = setting.items, setting.pairs

    def __call__(self, _: int, rng: torch.Generator) -> PairBatch:
        chosen = torch.randperm(len(self.pictures), generator=rng)[: self.items]
        pictures = augment(self.pictures[chosen], 0.0, rng)
        rates = label_rates(self.labels[chosen], self.prior)
        pairs = poisson_pairs(rates, self.pairs, generator=rng)
        return PairBatch(pictures, pairs, float(self.pairs))


@torch.inference_mode()
def embed(encoder: PosteriorEncoder, pictures: Tensor) -> VonMisesFisher:
    """The posteriors of pictures in float32, as ``aureole search`` and ``aureole serve`` make them."""
    parts = [encoder(chunk) for chunk in pictures.split(250)]
    mu, kappa = (torch.cat([getattr(q, name) for q in parts]).clone() for name in ("mu", "kappa"))
    return VonMisesFisher(mu, kappa, validate_args=False)


def measure(
    encoder: PosteriorEncoder, shapes: DrawnShapes
) -> tuple[VonMisesFisher, dict[str, Any]]:
    """(The posteriors of held-out pictures, their metrics).

    ``entropy_rank`` is the rank correlation of kappa with minus the known entropy; half of the entropies are 0, so
    its maximum is ``entropy_rank_best``. Recall@1 is for the label with most votes, which is itself uncertain where
    votes disagree.
    """
    posterior = embed(encoder, shapes.pictures)
    kappa, entropy = posterior.kappa.double(), shapes.entropy
    matches = nearest_label_matches(posterior.mu, shapes.labels)
    rejected, kept = rejection_curve(-kappa, matches, points=_POINTS)
    order = torch.empty(len(kappa), dtype=torch.float64)
    order[entropy.argsort(stable=True)] = torch.arange(len(kappa)).double()
    metrics: dict[str, Any] = {
        "entropy_rank": spearman(-kappa, entropy),
        "entropy_rank_best": spearman(order, entropy),
        "recall_at_1": float(matches.double().mean()),
        "recall_at_1_sure_half": float(kept[_POINTS // 2]),
        "rejection": {"rejected": rejected.tolist(), "kept": kept.tolist()},
    }
    for number, kind in enumerate(KINDS):
        metrics[f"kappa_{kind}"] = float(kappa[shapes.kinds == number].median())
    return posterior, metrics | _deteriorated(encoder, shapes)


def _deteriorated(encoder: PosteriorEncoder, shapes: DrawnShapes) -> dict[str, Any]:
    """The median kappa of clear pictures under increasing blur and tighter central crops."""
    clear = shapes.pictures[shapes.kinds == 0][:300]

    def kappa(change: Callable[[Tensor, Tensor], Tensor], amount: float) -> float:
        changed = change(clear, torch.full((len(clear),), amount))
        return float(embed(encoder, changed).kappa.median())

    return {
        "blur": {"width": list(_BLURS), "kappa": [kappa(blur_pictures, w) for w in _BLURS]},
        "crop": {"size": list(_CROPS), "kappa": [kappa(deteriorate, s) for s in _CROPS]},
    }


def item_name(number: int) -> str:
    """The id of a picture of the gallery, and the name of its file."""
    return f"shape-{number:03d}"


def write_gallery(
    out: Path,
    encoder: Path,
    shapes: DrawnShapes,
    posterior: VonMisesFisher,
    setting: QuickstartSetting,
) -> Path:
    """Write the first held-out pictures to ``out/pictures`` and an index of their posteriors; return its path.

    The engine is Lance, or FAISS if Lance is not installed. The gallery of an interrupted run is replaced.
    """
    gallery = next((out / name for name in GALLERIES if find_spec(Path(name).suffix[1:])), None)
    if gallery is None:
        raise AureoleError("a gallery needs Lance or FAISS: pip install 'aureole[search]'.")
    for name in GALLERIES:
        if (out / name).is_dir():
            shutil.rmtree(out / name)
        (out / name).unlink(missing_ok=True)
    count = min(setting.gallery, len(shapes))
    for number in range(count):
        write_picture(shapes.pictures[number], out / "pictures" / f"{item_name(number)}.png")
    payload = {
        "label": [shapes.names[label] for label in shapes.labels[:count]],
        "entropy": shapes.entropy[:count].tolist(),
    }
    rows = VonMisesFisher(posterior.mu[:count], posterior.kappa[:count], validate_args=False)
    names = [item_name(number) for number in range(count)]
    with CredibleIndex.create(gallery, rows, names, payload) as index:
        index.origin = Origin(float(setting.kappa_pos), file_hash(encoder / WEIGHTS))
    return gallery


def choose_query(shapes: DrawnShapes, kappa: Tensor, setting: QuickstartSetting) -> int:
    """The clear star outside of the gallery with the median kappa of all of these: a typical example, not the best."""
    star = shapes.names.index(_SHAPE)
    wanted = (shapes.kinds == 0) & (shapes.probabilities.argmax(-1) == star)
    wanted[: setting.gallery] = False
    stars = wanted.nonzero().squeeze(-1)
    if not len(stars):
        raise InvalidInputError(
            f"no clear {_SHAPE} among the {len(shapes)} held-out pictures outside of the gallery ({setting.gallery}). "
            "Hold out more pictures."
        )
    return int(stars[kappa[stars].argsort()[len(stars) // 2]])


def two_searches(
    gallery: Path,
    encoder: PosteriorEncoder,
    shapes: DrawnShapes,
    query: int,
    setting: QuickstartSetting,
) -> tuple[CapSearch, CapSearch]:
    """The searches for a picture and for the same picture blurred, each with all items in its cap."""
    sharp = shapes.pictures[query]
    blurred = blur_pictures(sharp[None], torch.tensor([setting.blur]))[0]
    searches = []
    with CredibleIndex.open(gallery) as index:
        count = index.count()
        names = [item_name(number) for number in range(count)]
        mu = index.fetch(names)[0].mu.double()
        for title, picture in (("sharp", sharp), ("blurred", blurred)):
            posterior = embed(encoder, picture[None])
            results = index.search(posterior, setting.mass, options=SearchOptions(kind="credible"))
            assert isinstance(results, list)
            (hits,) = results
            cosines = (mu @ posterior.mu[0].double()).clamp(-1, 1)
            searches.append(
                CapSearch(
                    title=title,
                    picture=picture,
                    kappa=float(posterior.kappa),
                    degrees=math.degrees(math.acos(float(hits.threshold[0].clamp(-1, 1)))),
                    members=tuple(names.index(name) for name in hits.ids),
                    angles=tuple(torch.rad2deg(torch.acos(cosines)).tolist()),
                )
            )
    return searches[0], searches[1]


def missing_packages() -> list[str]:
    """The packages that a quickstart needs and that are not installed."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if not any(find_spec(name) for name in _ENGINES):
        missing.append(" or ".join(_ENGINES))
    return missing


def run_quickstart(
    out: Path,
    seed: int = 0,
    *,
    setting: QuickstartSetting | None = None,
    command: str,
    say: Say = lambda _: None,
    watch: Watch = nullcontext,
) -> Quickstart:
    """Draw shapes, train, check, search and write the results to a folder.

    A finished run is read, not repeated; an interrupted run resumes from its last checkpoint. A folder with other
    content raises an error and is not changed.

    ``say`` is called with one sentence before each step; ``watch`` returns a context manager with the observer of the
    training; ``command`` is recorded.
    """
    setting = QuickstartSetting() if setting is None else setting
    _claim(out, json.loads(json.dumps({"quickstart": asdict(setting), "seed": seed})))
    gallery = next((out / name for name in GALLERIES if (out / name).exists()), None)
    if (out / _RECORD).is_file() and (out / _PAGE).is_file() and gallery is not None:
        return Quickstart(read_record(out / _RECORD), out / _PAGE, gallery, found=True)
    started = time.monotonic()
    count = setting.pictures + setting.held_out
    say(f"Drawing {count:,} shapes, and {setting.annotators} votes on what each shows.")
    shapes = draw(setting, seed)
    say(f"Training an encoder on {setting.pictures:,} of them, on pairs with the same vote.")
    resume = out / _CHECKPOINT
    with watch() as observer:
        encoder, seconds = train(setting, shapes.train, seed, checkpoint=resume, observer=observer)
    encoder.save(out / "encoder")
    say(f"Checking it on the {setting.held_out:,} others.")
    posterior, metrics = measure(encoder, shapes.held_out)
    metrics["seconds_training"] = seconds
    say("Searching for a star, and for the same star blurred.")
    gallery = write_gallery(out, out / "encoder", shapes.held_out, posterior, setting)
    query = choose_query(shapes.held_out, posterior.kappa, setting)
    searches = two_searches(gallery, encoder, shapes.held_out, query, setting)
    say("Writing the page.")
    large = drawn_shapes(setting.held_out, side=_LARGE, seed=10 * seed + 1).pictures
    sharp = drawn_shapes(query + 1, side=_LARGEST, seed=10 * seed + 1).pictures[query]
    width = torch.tensor([setting.blur * _LARGEST / 32])  # the same share of the side
    queries = [sharp, blur_pictures(sharp[None], width)[0]]
    metrics |= _write_searches(out, shapes.held_out, searches, (large[: setting.gallery], queries))
    metrics["query"] = shapes.held_out.names[int(shapes.held_out.probabilities[query].argmax())]
    metrics["parameters"] = sum(p.numel() for p in encoder.parameters())
    metrics["seconds"] = time.monotonic() - started
    hashes = {_CAPS: file_hash(out / _CAPS)}
    record = Record("quickstart", metrics, command, seed, asdict(setting), data=hashes)
    steps = next_steps(out, gallery)
    found = Findings(record, shapes.held_out, posterior.kappa, large, searches, queries, steps)
    page = write_page(found, out / _PAGE)
    write_record(record, out / _RECORD)
    resume.unlink(missing_ok=True)
    return Quickstart(record, page, gallery)


def _write_searches(
    out: Path,
    shapes: DrawnShapes,
    searches: Sequence[CapSearch],
    large: tuple[Tensor, Sequence[Tensor]],
) -> dict[str, Any]:
    """Write the queries' pictures and the figure of the two caps, and return the metrics of the searches.

    ``large`` are the pictures of the gallery and of the queries as the figure shows them.
    """
    labels = [shapes.names[label] for label in shapes.labels[: len(large[0])]]
    svg = two_caps_figure(searches, large[0], labels, large[1])
    text = f'<?xml version="1.0" encoding="utf-8"?>\n{as_file(svg)}\n'
    (out / _CAPS).write_text(text, encoding="utf-8")
    metrics = []
    for search in searches:
        write_picture(search.picture, out / f"{search.title}.png")
        metrics.append(
            {
                "title": search.title,
                "kappa": search.kappa,
                "degrees": search.degrees,
                "members": len(search.members),
                "labels": count_labels([labels[i] for i in search.members]),
            }
        )
    return {"searches": metrics}


def next_steps(out: Path, gallery: Path) -> list[tuple[str, str]]:
    """(What you can do next, the command that does it)."""
    encoder, pictures = out / "encoder", out / "pictures"
    return [
        (
            "search again, or with a picture of your own",
            f"aureole search {gallery} --image {out / 'blurred.png'} --encoder {encoder} --kind credible",
        ),
        ("explore the gallery in one file", f"aureole report {gallery} --pictures {pictures}"),
        (
            "serve it, with a page for browsers",
            f"aureole serve --index {gallery} --encoder {encoder} --images {pictures} --label-column label",
        ),
    ]


def _claim(out: Path, plan: dict[str, Any]) -> None:
    """Create the folder, or check that it is empty or holds a quickstart with the same plan."""
    marker = out / _PLAN
    if marker.is_file():
        try:
            claimed = json.loads(marker.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InvalidInputError(
                f"{marker} was not written by a quickstart ({error}). Choose another folder with --out."
            ) from error
        if claimed != plan:
            theirs = claimed.get("seed") if isinstance(claimed, dict) else None
            raise InvalidInputError(
                f"{out} holds a quickstart with other settings or another seed ({theirs}). Choose another folder with "
                "--out, or delete this one."
            )
        return
    check_local(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidInputError(
            f"{out} already exists and is not a quickstart. Choose another folder with --out."
        )
    out.mkdir(parents=True, exist_ok=True)
    marker.write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
