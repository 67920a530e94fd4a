"""Two encoders, one sphere: pictures of emoji against their names and tags, and the time to fit a large TwoTowerHead.

Run ``npm install emoji-datasource-apple emoji-datasource-google emoji-datasource-twitter emoji-datasource-facebook
emojibase-data`` in a folder, then ``OMP_NUM_THREADS=1 python -m benchmarks.emoji FOLDER`` from a clean tree. It writes
results/benchmarks/emoji.json, and to the folder: the vectors, as a cache, and page.html with the most and the least
certain pictures and texts. The pictures belong to their vendors; do not publish them.

Each seed splits the emoji: a fifth for the test, and of the rest the share that ``TwoTowerHead`` holds out itself. The
baseline has the same maps from the same start, trained with InfoNCE on the same pairs, for the same steps; its
temperature and its step have the highest information about the held-out pairs that select the step of the head.
"""

import argparse
import html
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from aureole.data import open_picture
from aureole.distributions import VonMisesFisher
from aureole.evaluation import predictive_coverage, spearman
from aureole.losses import InfoNCE
from aureole.records import Record, file_hash, write_record
from aureole.training import Fit, FitOptions, Phase, TwoTowerHead, fit
from aureole.training._two_towers import (
    Towers,
    cross_information,
    cross_pairs,
    start_towers,
    turned,
)

OUT = Path("results/benchmarks/emoji.json")
SEEDS = (2, 3, 4, 5, 6)  # dim and the training of kappa were chosen with the splits of 0 and 1
DIM = 64
TEMPERATURES = (0.05, 0.1, 0.2)
WAYS = ("picture to text", "text to picture")
VENDORS = ("apple", "google", "twitter", "facebook")
COMPONENT = 2  # the group of skin tones and hair styles


@dataclass(frozen=True)
class Emoji:
    """Rows of pictures and of texts; ``of_picture`` and ``of_text`` number the emoji that a row belongs to."""

    files: list[Path]
    of_picture: torch.Tensor
    texts: list[str]
    of_text: torch.Tensor
    groups: list[str]


def read_emoji(folder: Path) -> Emoji:
    """The pictures of four vendors and two texts for each emoji: its name, and its tags."""
    modules = folder / "node_modules"
    base = modules / "emojibase-data"
    names = json.loads((base / "meta" / "groups.json").read_text())["groups"]
    known = json.loads((base / "en" / "data.json").read_text())
    drawn = json.loads((modules / f"emoji-datasource-{VENDORS[0]}" / "emoji.json").read_text())
    image = {_plain(entry["unified"]): entry["image"] for entry in drawn}
    files, of_picture, texts, of_text, groups = [], [], [], [], []
    for entry in known:
        if entry.get("group", COMPONENT) == COMPONENT or _plain(entry["hexcode"]) not in image:
            continue
        name = image[_plain(entry["hexcode"])]
        paths = [modules / f"emoji-datasource-{v}" / "img" / v / "64" / name for v in VENDORS]
        paths = [path for path in paths if path.is_file()]
        if not paths:
            continue
        said = [entry["label"], ", ".join(entry["tags"])]
        files += paths
        of_picture += [len(groups)] * len(paths)
        texts += said
        of_text += [len(groups)] * len(said)
        groups.append(names[str(entry["group"])])
    return Emoji(files, torch.tensor(of_picture), texts, torch.tensor(of_text), groups)


def _plain(code: str) -> str:
    return code.upper().replace("-FE0F", "")


def vectors_of(emoji: Emoji, folder: Path, data: Path) -> tuple[np.ndarray, np.ndarray]:
    """MobileNetV2's features of the pictures on white, and gte-small's vectors of the texts; cached in the folder."""
    cached = folder / "vectors.npz"
    if not cached.is_file():
        from sentence_transformers import SentenceTransformer

        from aureole_paper.mobilenet import load_mobilenet

        weights = data / "weights"
        network = load_mobilenet(weights / "mobilenetv2_imagenet_bottleneck_fp16.npz", 112)
        parts = []
        with torch.inference_mode():
            for start in range(0, len(emoji.files), 64):
                stack = np.stack([on_white(path) for path in emoji.files[start : start + 64]])
                parts.append(network(torch.from_numpy(stack).permute(0, 3, 1, 2)).numpy())
        model = SentenceTransformer(
            str(weights / "gte_small"), device="cpu", model_kwargs={"dtype": torch.float32}
        )
        texts = model.encode(emoji.texts, batch_size=64, show_progress_bar=False)
        np.savez(cached, pictures=np.concatenate(parts), texts=texts)
    both = np.load(cached)
    return both["pictures"], both["texts"]


def on_white(path: Path) -> np.ndarray:
    """A picture of 112 pixels on a white background."""
    with open_picture(path) as file:
        picture = file.convert("RGBA")
    ground = Image.new("RGBA", picture.size, "white")
    return np.array(
        Image.alpha_composite(ground, picture)
        .convert("RGB")
        .resize((112, 112), Image.Resampling.BICUBIC)
    )


@dataclass(frozen=True)
class Split:
    """Vectors, and the emoji of each, of one part of the emoji."""

    pictures: Tensor
    of_picture: Tensor
    texts: Tensor
    of_text: Tensor

    def where(self, inside: Tensor) -> "Split":
        """The rows of some of the emoji."""
        left, right = inside[self.of_picture], inside[self.of_text]
        return Split(
            self.pictures[left], self.of_picture[left], self.texts[right], self.of_text[right]
        )

    def pairs(self) -> Tensor:
        """All pairs of a picture and a text of one emoji."""
        return torch.nonzero(self.of_picture[:, None] == self.of_text)


def study(every: Split, seed: int) -> tuple[dict[str, Any], TwoTowerHead, Tensor]:
    """The metrics of one split of the emoji, the fitted head, and which emoji were tested."""
    n_emoji = int(every.of_text.max()) + 1
    order = torch.randperm(n_emoji, generator=torch.Generator().manual_seed(seed))
    tested = torch.zeros(n_emoji, dtype=torch.bool)
    tested[order[: n_emoji // 5]] = True
    training, test = every.where(~tested), every.where(tested)
    head = TwoTowerHead(DIM, seed=seed).fit(training.pictures, training.texts, training.pairs())
    posteriors = head.predict(test.pictures, test.texts)
    found: dict[str, Any] = {"TwoTowerHead": recalls(posteriors, test)}
    towers, temperature = baseline(training, head)
    with torch.no_grad():
        points = towers.left(test.pictures), towers.right(test.texts)
    found["InfoNCE"] = recalls(points, test)
    for way in WAYS:
        found["InfoNCE"][way].pop("by kappa")  # it has none
    left, right = test.pairs().T
    ends = posteriors[0][left], posteriors[1][right]
    covered = predictive_coverage(*ends, kappa_pos=head.kappa_pos_, masses=[0.5, 0.9])
    found |= {
        "coverage": {f"{mass:.0%}": share for mass, share in covered.items()},
        "information": head.information_,
        "temperature": temperature,
    }
    return found, head, tested


def recalls(posteriors: tuple[VonMisesFisher, VonMisesFisher], test: Split) -> dict[str, Any]:
    """R@1 both ways: of all queries, and of fifths of the queries by kappa and by the cosine of the first hit."""
    emoji = test.of_picture, test.of_text
    found = {}
    for way, own, other in zip(WAYS, (0, 1), (1, 0), strict=True):
        cosine, first = (posteriors[own].mu @ posteriors[other].mu.T).max(1)
        hit = (emoji[other][first] == emoji[own]).double()
        scores = {"by kappa": posteriors[own].kappa, "by top cosine": cosine}
        found[way] = {"all": hit.mean().item()}
        for name, score in scores.items():
            parts = hit[score.argsort()].tensor_split(5)
            found[way][name] = [part.mean().item() for part in parts]
    return found


def baseline(training: Split, head: TwoTowerHead) -> tuple[Towers, float]:
    """The maps of a head trained with InfoNCE instead, at the best of some temperatures."""
    sides = training.pictures, training.texts
    rng = torch.Generator().manual_seed(head.seed)
    pairs, held = cross_pairs(training.pairs(), *sides).split(head.held_out, rng)
    probe = held.split(0.5, rng)[0].draw(sides, len(held.pairs), rng)
    options = FitOptions(
        seed=head.seed, average=0.99, evaluate_every=head.steps // 20, select="information",
        patience=5, diagnose=False,
    )  # fmt: skip

    def trained(temperature: float) -> Fit:
        loss = InfoNCE(temperature=temperature, in_batch="all")
        return fit(
            start_towers(sides, pairs, DIM, width=head.width, seed=head.seed),
            loss,
            lambda step, rng: turned(pairs.draw(sides, head.items // 2, rng), step),
            phases=[Phase("mu", head.steps, head.lr)],
            options=options,
            evaluate=lambda model: {"information": cross_information(model, loss, probe)},
        )

    fits = {temperature: trained(temperature) for temperature in TEMPERATURES}
    best = max(fits, key=lambda t: max(point["information"] for point in fits[t].curve))
    towers = fits[best].encoder
    assert isinstance(towers, Towers)
    return towers, best


def over_seeds(runs: list[Any]) -> Any:
    """Mean and standard error of each number, in the structure of one run."""
    if isinstance(runs[0], dict):
        return {key: over_seeds([run[key] for run in runs]) for key in runs[0]}
    if isinstance(runs[0], list):
        return [over_seeds(list(each)) for each in zip(*runs, strict=True)]
    return {"mean": float(np.mean(runs)), "error": float(np.std(runs, ddof=1) / len(runs) ** 0.5)}


def timed(rows: int = 30_000, features: int = 512) -> dict[str, float]:
    """Seconds to fit a head with default settings to synthetic pairs, and what it then knows of 5,000 others."""
    rng = np.random.default_rng(0)
    things = rng.standard_normal((rows + 5000, 64), dtype=np.float32)
    views, noise = [], []
    for _ in range(2):
        level = rng.uniform(0.3, 1.5, (len(things), 1)).astype(np.float32)
        seen = things + level * rng.standard_normal(things.shape, dtype=np.float32)
        seen[:, :1] = level  # like an encoder whose vectors show how clear an input is
        turn = np.linalg.qr(rng.standard_normal((features, 64)))[0].astype(np.float32)
        views.append(seen @ turn.T)
        noise.append(torch.from_numpy(level[:, 0]))
    started, spent = time.perf_counter(), time.process_time()
    head = TwoTowerHead().fit(views[0][:rows], views[1][:rows])
    spent, took = time.process_time() - spent, time.perf_counter() - started
    sides = head.predict(views[0][rows:], views[1][rows:])
    ranks = [float(spearman(q.kappa, -level[rows:])) for q, level in zip(sides, noise, strict=True)]
    hit = (sides[0].mu @ sides[1].mu.T).argmax(1) == torch.arange(5000)
    return {
        "pairs": rows,
        "features": features,
        "CPU seconds": spent,
        "seconds": took,
        "rank of kappa with clarity, left": ranks[0],
        "rank of kappa with clarity, right": ranks[1],
        "R@1 of 5,000": hit.double().mean().item(),
    }


def page(emoji: Emoji, every: Split, head: TwoTowerHead, tested: Tensor, folder: Path) -> Path:
    """A page with the most and the least certain pictures and texts of the tested emoji."""
    pictures, texts = head.predict(every.pictures, every.texts)
    inside = [tested[of] for of in (every.of_picture, every.of_text)]
    parts = ["<meta charset=utf-8><style>body{font:14px sans-serif} figure{display:inline-block;"
             "width:104px;margin:6px;vertical-align:top;font-size:11px}</style>"]  # fmt: skip
    for title, most in (("Most certain", True), ("Least certain", False)):
        rows = [
            [int(i) for i in q.kappa.argsort(descending=most) if here[i]][:40]
            for q, here in zip((pictures, texts), inside, strict=True)
        ]
        parts.append(f"<h2>{title} pictures</h2>")
        for i in rows[0]:
            name = html.escape(emoji.texts[2 * int(every.of_picture[i])])
            source = emoji.files[i].relative_to(folder)
            parts.append(
                f"<figure><img src='{source}'><br>{name}<br>{pictures.kappa[i]:.0f}</figure>"
            )
        parts.append(f"<h2>{title} texts</h2><ul>")
        parts += [f"<li>{html.escape(emoji.texts[i])} ({texts.kappa[i]:.0f})" for i in rows[1]]
        parts.append("</ul>")
    path = folder / "page.html"
    path.write_text("\n".join(parts))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("AUREOLE_DATA", "")))
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    options = parser.parse_args()
    folder = options.folder.absolute()
    emoji = read_emoji(folder)
    pictures, texts = vectors_of(emoji, folder, options.data_dir)
    every = Split(
        torch.from_numpy(pictures), emoji.of_picture, torch.from_numpy(texts), emoji.of_text
    )
    code = "import json, benchmarks.emoji as b; print(json.dumps(b.timed()))"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    seconds = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(seconds), flush=True)
    runs = []
    for seed in options.seeds:
        found, head, tested = study(every, seed)
        runs.append(found)
        print(seed, json.dumps(found), flush=True)
        if len(runs) == 1:
            print(page(emoji, every, head, tested, folder), flush=True)
            continue
        sizes = {"emoji": len(emoji.groups), "pictures": len(emoji.files)}
        sizes |= {"texts": len(emoji.texts), "tested emoji": int(tested.sum())}
        metrics = {**over_seeds(runs), "runs": runs, "sizes": sizes, "fit": seconds}
        write(metrics, options.seeds[: len(runs)], folder / "node_modules")


def write(metrics: dict[str, Any], seeds: Sequence[int], modules: Path) -> None:
    """Write the record of the seeds so far."""
    named = [modules / "emojibase-data" / "en" / "data.json"]
    named += [modules / f"emoji-datasource-{vendor}" / "package.json" for vendor in VENDORS]
    data = {str(path.relative_to(modules)): file_hash(path) for path in named}
    settings = {"seeds": list(seeds), "dim": DIM, "temperatures": list(TEMPERATURES)}
    settings["threads"] = torch.get_num_threads()
    command = "python -m benchmarks.emoji FOLDER"
    write_record(Record("benchmarks/emoji", metrics, command, None, settings, data), OUT)


if __name__ == "__main__":
    main()
