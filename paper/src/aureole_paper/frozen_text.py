"""Frozen text: a head on MiniLM's sentence vectors, fitted on captions of one photo.

Tested on captions of other photos (how often a caption finds the other four of its photo), and on other sentences:
ambiguous sentences and their readings (AmbiEnt), and on the votes of people on pairs of sentences (ChaosNLI). Settings
were chosen on the validation photos.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from aureole.evaluation import rejection_curve, spearman
from aureole.records import file_hash
from aureole.sphere import normalize
from aureole.training import FrozenHead
from aureole.training._fit import Observer
from aureole_paper.settings import RunSetting
from aureole_paper.statistics import bootstrap, partial_spearman
from aureole_paper.text_data import CAPTIONS, load_ambient, load_captions, load_chaos_nli, load_stsb

Views = Literal["captions", "dropped", "stsb"]
Embed = Callable[[list[str], str], np.ndarray]
Certainties = Callable[[list[str], str], dict[str, Tensor]]
_SIMILAR = 4.0  # the score from which two sentences of STS-B count as similar
_WORDS = 21_000_003  # the seed of the words that are dropped
_CHAOS = ("snli", "mnli_m")


@dataclass(frozen=True)
class FrozenTextSetting(RunSetting):
    """Everything that decides a run, except the seed.

    ``views`` are what a group holds: the captions of a photo; those and one of them with half of its words dropped;
    or captions and separate pairs of similar sentences from STS-B.
    """

    name: str = "text"
    views: Views = "captions"
    dim: int = 32
    kappa_pos: float = 64.0
    width: int = 128
    steps: int = 400
    items: int = 1024
    lr: float = 4e-3
    photos: int | None = None


SETTINGS = (
    FrozenTextSetting(),
    FrozenTextSetting("text-dropped", views="dropped"),
    FrozenTextSetting("text-stsb", views="stsb"),
)


def data_hashes(folder: Path) -> dict[str, str]:
    """The hashes of the files of captions and of ambiguous sentences."""
    names = ("multi30k_train.1.en.gz", "multi30k_test_2016.1.en.gz", "ambient_full.jsonl.gz")
    return {f"text/{name}": file_hash(folder / "text" / name) for name in names}


def train(
    setting: FrozenTextSetting,
    seed: int,
    embed: Embed,
    *,
    folder: Path,
    checkpoint: Path | None = None,
    observer: Observer | None = None,
) -> FrozenHead:
    """The head, fitted on the vectors of the training photos' captions (and further views)."""
    parts = views_of(setting, folder)
    vectors = np.concatenate([embed(sentences, name) for name, sentences, _ in parts])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    groups = np.concatenate([labels for _, _, labels in parts])
    head = FrozenHead(
        setting.dim,
        kappa_pos=setting.kappa_pos,
        width=setting.width,
        steps=setting.steps,
        items=setting.items,
        lr=setting.lr,
        seed=seed,
    )
    return head.fit(vectors, groups, checkpoint=checkpoint, observer=observer)


def views_of(setting: FrozenTextSetting, folder: Path) -> list[tuple[str, list[str], np.ndarray]]:
    """(Name, sentences, the group of each sentence) of all training data."""
    photos = load_captions(folder, "train")[: setting.photos]
    count = np.arange(len(photos))
    sentences = [caption for captions in photos for caption in captions]
    parts = [("captions-train", sentences, count.repeat(CAPTIONS))]
    if setting.views == "dropped":
        rng = random.Random(_WORDS)
        halves = [_half(rng.choice(captions), rng) for captions in photos]
        parts.append(("captions-dropped", halves, count))
    if setting.views == "stsb":
        alike = [pair for pair in load_stsb(folder, "train") if pair.score >= _SIMILAR]
        sentences = [sentence for pair in alike for sentence in (pair.first, pair.second)]
        parts.append(("stsb-train", sentences, len(photos) + np.arange(len(alike)).repeat(2)))
    return parts


def _half(sentence: str, rng: random.Random) -> str:
    """The sentence with half of its words, in order."""
    words = sentence.split()
    kept = sorted(rng.sample(range(len(words)), max(1, len(words) // 2)))
    return " ".join(words[k] for k in kept)


@torch.no_grad()
def evaluate(head: FrozenHead, embed: Embed, *, folder: Path) -> dict[str, Any]:
    """The metrics of a head on the captions of test photos, and on sentences that are not captions."""
    captions = load_captions(folder, "test_2016")
    sentences = [caption for photo in captions for caption in photo]
    certainties = _certainties(head, embed, load_captions(folder, "val"))
    pooled = torch.from_numpy(np.array(embed(sentences, "captions-test")))
    vectors = normalize(pooled)
    groups = torch.arange(len(captions)).repeat_interleave(CAPTIONS)
    posterior = head.predict(vectors)
    certainty = certainties(sentences, "captions-test")
    own, theirs = photo_hits(posterior.mu), photo_hits(vectors)
    return {
        "information": head.score(vectors, groups),
        "coverage": {str(m): c for m, c in head.coverage(vectors, groups).items()},
        "held_out_coverage": {str(m): c for m, c in head.coverage_.items()},
        "recall_at_1": theirs.double().mean().item(),
        "recall_at_1_of_mu": own.double().mean().item(),
        "gains": {name: _gains(c, theirs) for name, c in certainty.items()},
        "gains_of_mu": _gains(certainty["kappa"], own),
        "rejection": rejection_curve(-certainty["kappa"], theirs, points=11)[1].tolist()[:-1],
        "kappa_by_caption": posterior.kappa.view(-1, CAPTIONS).median(0).values.tolist(),
        "words_rank": spearman(certainty["kappa"], certainty["words"]),
        "ambient": _ambient(certainties, folder),
        "chaos": {part: _chaos(certainties, folder, part) for part in _CHAOS},
        "extremes": _extremes(sentences, posterior.kappa),
    }


def photo_hits(vectors: Float[Tensor, "n d"]) -> Bool[Tensor, " n"]:
    """Whether each caption's vector is nearest to the mean of the other four captions of its own photo."""
    photos = vectors.view(-1, CAPTIONS, vectors.shape[-1])
    total, own = photos.sum(1), torch.arange(len(photos))
    hits = [
        (photos[:, k] @ normalize(total - photos[:, k]).T).argmax(1) == own for k in range(CAPTIONS)
    ]
    return torch.stack(hits, 1).flatten()


def _certainties(head: FrozenHead, embed: Embed, captions: list[list[str]]) -> Certainties:
    """A function that returns kappa and baselines of sentences, signed so that ``captions`` with hits rank higher."""
    known = [caption for photo in captions for caption in photo]
    vectors = torch.from_numpy(np.array(embed(known, "captions-val")))
    hits = photo_hits(normalize(vectors)).float()
    ranks = {name: spearman(x, hits) for name, x in _baselines(known, vectors).items()}

    def certainties(sentences: list[str], name: str) -> dict[str, Tensor]:
        pooled = torch.from_numpy(np.array(embed(sentences, name)))
        others = _baselines(sentences, pooled)
        signed = {key: x if ranks[key] >= 0 else -x for key, x in others.items()}
        return {"kappa": head.predict(normalize(pooled)).kappa, **signed}

    return certainties


def _baselines(sentences: list[str], pooled: Tensor) -> dict[str, Tensor]:
    return {
        "words": torch.tensor([float(len(s.split())) for s in sentences]),
        "characters": torch.tensor([float(len(s)) for s in sentences]),
        "norm": pooled.norm(dim=-1),
    }


def _gains(certainty: Float[Tensor, " n"], hits: Bool[Tensor, " n"]) -> dict[str, float]:
    """The difference of the hits of the most certain half, and of the least certain fifth, to those of all."""
    order, n = certainty.argsort(descending=True, stable=True), len(certainty)
    right = hits[order].double()
    return {
        "half": (right[: n // 2].mean() - right.mean()).item(),
        "fifth": (right[n - n // 5 :].mean() - right.mean()).item(),
    }


def _ambient(certainties: Certainties, folder: Path) -> dict[str, Any]:
    """How often a reading has a higher certainty than its ambiguous sentence; and at equal length."""
    items = load_ambient(folder)
    sentences = list(dict.fromkeys(s for item in items for s in (item.sentence, *item.readings)))
    place = {sentence: k for k, sentence in enumerate(sentences)}
    rows = [
        (k, place[item.sentence], place[reading])
        for k, item in enumerate(items)
        for reading in item.readings
    ]
    cluster, ambiguous, reading = torch.tensor(rows).T
    words = torch.tensor([len(s.split()) for s in sentences])
    same = words[ambiguous] == words[reading]
    metrics: dict[str, Any] = {"pairs": len(rows), "pairs_of_equal_length": int(same.sum())}
    for name, certainty in certainties(sentences, "ambient").items():
        higher = certainty[reading] - certainty[ambiguous]
        wins = (higher > 0).double() + 0.5 * (higher == 0).double()
        metrics[name] = {
            "all": _interval(wins, cluster),
            "equal_length": _interval(wins[same], cluster[same]),
        }
    return metrics


def _interval(values: Float[Tensor, " n"], clusters: Int[Tensor, " n"]) -> list[float]:
    return list(bootstrap(lambda rows: values[rows].mean().item(), clusters))


def _chaos(certainties: Certainties, folder: Path, part: Any) -> dict[str, Any]:
    """The rank correlation of uncertainty with the entropy of the votes, also given the length."""
    items = load_chaos_nli(folder, part)
    entropy = torch.tensor([item.entropy for item in items])
    metrics: dict[str, Any] = {"pairs": len(items)}
    for side in ("premise", "hypothesis"):
        sentences = [getattr(item, side) for item in items]
        by_name = certainties(sentences, f"chaos-{part}-{side}")
        for name, certainty in by_name.items():
            entry = {"all": _rank_interval(-certainty, entropy, None)}
            if name == "kappa":
                entry["given_length"] = _rank_interval(-certainty, entropy, by_name["words"])
            metrics.setdefault(side, {})[name] = entry
    return metrics


def _rank_interval(uncertainty: Tensor, entropy: Tensor, given: Tensor | None) -> list[float]:
    def statistic(rows: Tensor) -> float:
        if given is None:
            return spearman(uncertainty[rows], entropy[rows])
        return partial_spearman(uncertainty[rows], entropy[rows], given[rows])

    return list(bootstrap(statistic, torch.arange(len(uncertainty)), draws=300))


def _extremes(sentences: list[str], kappa: Float[Tensor, " n"]) -> dict[str, list[Any]]:
    """The sentences with the highest and the lowest kappa."""
    order = kappa.argsort(descending=True)
    return {
        name: [[sentences[k], round(kappa[k].item(), 1)] for k in chosen.tolist()]
        for name, chosen in (("highest", order[:8]), ("lowest", order.flip(0)[:8]))
    }
