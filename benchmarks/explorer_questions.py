"""Questions about CIFAR-10H's test images: suspicious labels, outliers, near duplicates, and two encoders compared.

``python -m benchmarks.explorer_questions --work DIR`` writes results/benchmarks/explorer_questions.json.

The gallery has never seen the votes: pretrained CIFAR-10 classifiers (ResNet-20 and ResNet-56, trained on the 50,000
training images) give features of the 10,000 test images, and the head of one half of the images was fitted on the
labels of the other half. Definitions of a suspicious label are compared on the first half; all results are those of the
second. A label is wrong if most of about 50 people chose another class. Baselines get the same labels: the classifier's
own probability of the label (self-confidence, as in confident learning) and the share of the 20 nearest images, by the
classifier's features, with another label.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import aureole as au
from aureole.data import edit_picture
from aureole.distributions import VonMisesFisher
from aureole.evaluation import spearman
from aureole.explorer import QuestionOptions, compare_galleries, inspect_gallery, outlier_p_values
from aureole.explorer._nearest_rows import GalleryRows, nearest_rows
from aureole.explorer._questions import outlier_angles
from aureole.records import Record, write_record
from aureole.retrieval import CredibleIndex, Origin, find_near_duplicates
from aureole_paper.cifar import CLASSES, Cifar10H, load_cifar10h
from aureole_paper.cifar10h import data_hashes, load_backbone
from aureole_paper.data_folder import data_folder

NAMES = ("resnet20", "resnet56")
FIRST = 20  # suspicious labels that a person would look at
HEAD = {"dim": 16, "steps": 120, "items": 512, "seed": 0}
RANK = 10  # of the neighbour that makes an outlier
PLANTED, EDITS = 100, 300


@torch.no_grad()
def features(work: Path, data: Path) -> dict[str, torch.Tensor]:
    """Features and logits of the test images, cached."""
    path = work / "features.safetensors"
    if path.is_file():
        return load_file(path)
    content, found = load_cifar10h(data), {}
    found["labels"] = content.labels
    for name in NAMES:
        backbone, last = load_backbone(name, data)
        backbone.eval()
        found[name] = torch.cat([backbone(part) for part in content.images.split(500)]).float()
        found[f"{name}_logits"] = last(found[name])
    save_file({name: value.contiguous() for name, value in found.items()}, path)
    return found


def halves() -> list[torch.Tensor]:
    """The row numbers of two random halves of the images."""
    order = torch.randperm(10_000, generator=torch.Generator().manual_seed(0))
    return [order[:5000].sort().values, order[5000:].sort().values]


def posteriors(
    work: Path, given: dict[str, torch.Tensor], name: str, half: int
) -> dict[str, torch.Tensor]:
    """The posteriors of one half by the head of the other half, cached."""
    path = work / f"post_{name}_{half}.safetensors"
    if not path.is_file():
        fitted, own = halves()[1 - half], halves()[half]
        head = au.FrozenHead(**HEAD).fit(given[name][fitted], given["labels"][fitted])
        q = head.predict(given[name][own])
        kappa_pos = torch.tensor(head.kappa_pos_)
        save_file({"mu": q.mu, "kappa": q.kappa, "rows": own, "kpos": kappa_pos}, path)
    return load_file(path)


def gallery(found: dict[str, torch.Tensor], labels: torch.Tensor) -> CredibleIndex:
    """A gallery in memory with CIFAR-10's labels."""
    ids = [f"test-{row:05d}" for row in found["rows"].tolist()]
    names = [CLASSES[code] for code in labels[found["rows"]].tolist()]
    posterior = VonMisesFisher(found["mu"], found["kappa"], validate_args=False)
    index = CredibleIndex.create("faiss://", posterior, ids, {"label": names})
    index.origin = Origin(kappa_pos=float(found["kpos"]))
    return index


def quality(score: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """Precision among the first 20 and 50, and average precision; ties are broken at random."""
    order = np.lexsort((np.random.default_rng(0).random(len(score)), -score))
    hit = wrong[order]
    precision = np.cumsum(hit) / np.arange(1, len(hit) + 1)
    return {
        "precision at 20": float(hit[:FIRST].mean()),
        "precision at 50": float(hit[:50].mean()),
        "average precision": float(precision[hit].mean()),
    }


def suspicious(
    index: CredibleIndex, given: dict[str, torch.Tensor], data: Cifar10H, name: str
) -> dict[str, Any]:
    """How well each definition finds labels that most people reject."""
    votes = data.counts.double()
    share = (votes / votes.sum(1, keepdim=True)).gather(1, data.labels[:, None])[:, 0].numpy()
    wrong_all = (data.counts.argmax(1) != data.labels).numpy()
    results: dict[str, Any] = {}
    mean_share = float("nan")
    rows = GalleryRows.read(index, ["label"])
    at = np.array([int(each.removeprefix("test-")) for each in rows.ids])
    wrong, own = wrong_all[at], share[at]
    for neighbours in (10, 20, 50) if name == NAMES[0] else (20,):
        for kappa_pos, weights in ((None, "S h"), (0.0, "count")):
            # with kappa_pos = 0 all weights are 1 and the cap is half of the sphere or more
            options = QuestionOptions(neighbours=neighbours)
            found = inspect_gallery(
                index, label_column="label", kappa_pos=kappa_pos, options=options, rows=rows
            )
            assert found.suspicion is not None
            assert found.shares is not None
            key = f"{neighbours} neighbours, {weights}"
            results[f"{key}, odds"] = quality(found.suspicion, wrong)
            results[f"{key}, share"] = quality(1 - np.nan_to_num(found.shares.own, nan=1), wrong)
            if (neighbours, weights) == (QuestionOptions().neighbours, "S h"):
                first = np.lexsort((np.arange(len(at)), -found.suspicion))[:FIRST]
                mean_share = float(own[first].mean())
    chance = float(wrong.mean())
    probability = given[f"{name}_logits"][at].double().softmax(1)
    confidence = probability.gather(1, data.labels[at][:, None])[:, 0].numpy()
    results["baseline: self-confidence"] = quality(-confidence, wrong)
    unit = torch.nn.functional.normalize(given[name][at], dim=1).numpy()
    labels = data.labels.numpy()[at]
    near = nearest_rows(unit, 20)
    disagree = (labels[near.rows] != labels[:, None]).mean(1)
    results["baseline: kNN disagreement"] = quality(disagree, wrong)
    facts = {"images": len(at), "wrong labels": int(wrong.sum()), "chance": chance}
    facts["votes for the label among the first 20"] = mean_share
    facts["votes for the label, all"] = float(own.mean())
    return {"by definition": results, "facts": facts}


def area(novel: np.ndarray, known: np.ndarray) -> float:
    """The AUROC of a score that is larger for novel items."""
    ordered = np.sort(known)
    below = np.searchsorted(ordered, novel, "left") + np.searchsorted(ordered, novel, "right")
    return float(below.mean() / 2 / len(known))


def novelty(
    found: dict[str, torch.Tensor], vectors: torch.Tensor, labels: np.ndarray
) -> dict[str, Any]:
    """One class after another is left out of the gallery: how novel it looks, compared with images of the others."""
    rng = np.random.default_rng(0)
    mu = torch.nn.functional.normalize(found["mu"], dim=1).numpy()
    unit = torch.nn.functional.normalize(vectors[found["rows"]], dim=1).numpy()
    kappa, codes = found["kappa"].numpy(), labels[found["rows"].numpy()]
    scores: dict[str, list[float]] = {}
    alarms, caught = [], []
    for code in range(10):
        others = rng.permutation(np.flatnonzero(codes != code))
        known, held = others[:1000], others[1000:]
        novel = np.flatnonzero(codes == code)
        own = outlier_angles(nearest_rows(mu[held], RANK), RANK)

        def angle(rows: np.ndarray, space: np.ndarray, rank: int, kept: np.ndarray = held) -> Any:
            cosine = space[rows] @ space[kept].T
            return np.arccos(np.clip(np.partition(cosine, -rank, 1)[:, -rank], -1, 1))

        p_known, p_novel = (outlier_p_values(own, angle(rows, mu, RANK)) for rows in (known, novel))
        alarms.append(float((p_known <= 0.05).mean()))
        caught.append(float((p_novel <= 0.05).mean()))
        for name, score in {
            "10th neighbour": lambda rows: angle(rows, mu, RANK),
            "nearest neighbour": lambda rows: angle(rows, mu, 1),
            "nearest neighbour, features": lambda rows: angle(rows, unit, 1),
            "10th neighbour, features": lambda rows: angle(rows, unit, RANK),
            "kappa": lambda rows: -kappa[rows],
        }.items():
            scores.setdefault(name, []).append(area(score(novel), score(known)))
    means = {name: float(np.mean(each)) for name, each in scores.items()}
    lowest = {name: float(np.min(each)) for name, each in scores.items()}
    return {
        "AUROC": means,
        "AUROC, lowest class": lowest,
        "alarms at p <= 0.05, known": float(np.mean(alarms)),
        "alarms at p <= 0.05, novel": float(np.mean(caught)),
    }


def planted_copies(
    found: dict[str, torch.Tensor],
    head: Any,
    data: Cifar10H,
    folder: Path,
) -> dict[str, float]:
    """Edited copies of 100 images in the gallery: how many are found, and how many reported pairs are right."""
    from PIL import Image

    backbone, _ = load_backbone(NAMES[0], folder)
    backbone.eval()
    rng = np.random.default_rng(0)
    rows = found["rows"].numpy()
    chosen = rng.permutation(len(rows))[: PLANTED + EDITS]
    edited = []
    for row in rows[chosen]:
        picture = Image.fromarray(data.images[int(row)].permute(1, 2, 0).numpy())
        copy = edit_picture(picture, rng).resize((32, 32))
        edited.append(torch.from_numpy(np.array(copy)).permute(2, 0, 1))
    with torch.no_grad():
        vectors = torch.cat([backbone(part) for part in torch.stack(edited).split(100)]).float()
    mu = torch.nn.functional.normalize(head.predict(vectors).mu, dim=1)
    base = torch.nn.functional.normalize(found["mu"], dim=1)
    whole = torch.cat([base, mu[:PLANTED]]).numpy()
    real = {(int(chosen[i]), len(rows) + i) for i in range(PLANTED)}
    copies, originals = mu[PLANTED:].numpy(), chosen[PLANTED:]
    results: dict[str, float] = {}
    for precision in (0.9, 0.5):
        pairs = find_near_duplicates(whole, copies, originals, precision=precision).pairs.tolist()
        right = sum(tuple(pair) in real for pair in pairs)
        results |= {
            f"pairs, {precision} asked for": len(pairs),
            f"found, {precision} asked for": right,
            f"recall, {precision} asked for": right / PLANTED,
        }
    return results


def cost() -> dict[str, float]:
    """CPU seconds of the parts of an inspection, on random directions in 32 dimensions."""
    rng = np.random.default_rng(0)
    n = 10_000
    mu = rng.standard_normal((n, 32)).astype(np.float32)
    mu /= np.linalg.norm(mu, axis=1)[:, None]
    kappa = torch.from_numpy((5 * 40 ** rng.random(n)).astype(np.float32))
    posterior = VonMisesFisher(torch.from_numpy(mu), kappa, validate_args=False)
    labels = [f"class {code}" for code in rng.integers(40, size=n)]
    index = CredibleIndex.create(
        "faiss://", posterior, [f"{i:05d}" for i in range(n)], {"c": labels}
    )
    index.origin = Origin(kappa_pos=64.0)
    started = time.process_time()
    inspect_gallery(index, label_column="c")
    whole = time.process_time() - started
    sample = rng.standard_normal((100_000, 32)).astype(np.float32)
    sample /= np.linalg.norm(sample, axis=1)[:, None]
    few, reference = 1000, torch.from_numpy(sample)
    started = time.process_time()
    block = torch.from_numpy(sample[:few])
    from aureole.explorer._nearest_rows import _largest

    for part in block.split(335):
        _largest(part @ reference.T, 20)
    each = (time.process_time() - started) / few
    return {
        "CPU seconds, 10,000 items": whole,
        "CPU milliseconds per item against 100,000": 1e3 * each,
        "CPU hours, 1,000,000 items (from 1,000)": each * 1e6 / 3600,
    }


def compared(work: Path, given: dict[str, torch.Tensor], data: Cifar10H) -> dict[str, Any]:
    """ResNet-20 and ResNet-56 on the second half."""
    one, two = (gallery(posteriors(work, given, name, 1), data.labels) for name in NAMES)
    found = compare_galleries(one, two, label_column="label", names=NAMES)
    at = torch.tensor([int(each.removeprefix("test-")) for each in found.ids])
    entropy = data.entropy[at].double()
    kappas = [torch.from_numpy(side.kappa).double() for side in (found.first, found.second)]
    return found.summary() | {
        "rank correlation of kappa and agreement of people": [
            spearman(kappa, -entropy) for kappa in kappas
        ]
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder, work = data_folder(arguments.data_dir), arguments.work
    work.mkdir(parents=True, exist_ok=True)
    data, given = load_cifar10h(folder), features(work, folder)
    results: dict[str, Any] = {}

    def save(key: str, values: dict[str, Any]) -> None:
        results[key] = values
        print(key, values, flush=True)
        settings = {"head": HEAD, "neighbours": QuestionOptions().neighbours, "outlier rank": RANK}
        command = "python -m benchmarks.explorer_questions --work DIR"
        record = Record(
            "benchmarks/explorer_questions", results, command, 0, settings, data_hashes(folder)
        )
        write_record(record, Path("results/benchmarks/explorer_questions.json"))

    for name in NAMES:
        for half, part in enumerate(("chosen on", "reported on")):
            found = posteriors(work, given, name, half)
            values = suspicious(gallery(found, data.labels), given, data, name)
            save(f"suspicious labels, {name}, {part}", values)
    found = posteriors(work, given, NAMES[0], 1)
    save("novel class", novelty(found, given[NAMES[0]], data.labels.numpy()))
    save("two encoders", compared(work, given, data))
    save("cost", cost())
    fitted = halves()[0]
    head = au.FrozenHead(**HEAD).fit(given[NAMES[0]][fitted], given["labels"][fitted])
    save("planted copies", planted_copies(found, head, data, folder))


if __name__ == "__main__":
    main()
