"""Adaptive retrieval: which results are good enough, by every rule that we know of, on questions with known answers.

Vectors are those of a finished encoder and stay as they are. Rules are calibrated on labelled questions; test questions
only judge. A seed is a resampling: 80 % of the labelled questions. "Pooled AP" is the average precision over all pairs
of a test question and its 300 nearest items, sorted by one score. Sets at 90 % come from a cut on held-out labelled
questions that should hold 90 % of a question's matches on average.

The official split of InsuranceQA leaks: 3 % of the right answers of test questions are also right for a train question,
against 76 % of the candidates. An answer near its own train question is hardly ever right in test. CSLS whose hubness
includes an answer's own questions profits from this, so it is listed apart; ``MatchCalibrator`` leaves them out.
"""

import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from aureole.errors import AureoleWarning
from aureole.match import MatchCalibrator
from aureole_paper.adaptive_data import (
    Collection,
    EncoderName,
    Queries,
    Vectors,
    load_insurance,
    load_photos,
)
from aureole_paper.adaptive_scores import Judged, auroc, bm25_scores, conditional, measured
from aureole_paper.features import Progress
from aureole_paper.settings import RunSetting

FEW = (50, 200, 1000)  # labelled questions
_DOMAINS = 5  # of InsuranceQA, each removed in turn
_SCALES = (10.0, 20.0, 50.0, 100.0)  # of cosines in a softmax
_BM25 = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)  # weights of BM25 in a sum with the calibrator's score
_GAP = 100  # items among which the largest gap is sought
Score = Callable[[Judged], np.ndarray]


@dataclass(frozen=True)
class AdaptiveSetting(RunSetting):
    """Everything that decides a run, except the seed. ``size`` limits the data."""

    name: str
    data: Literal["insuranceqa", "captions"] = "insuranceqa"
    encoder: EncoderName = "minilm"
    size: int | None = None
    steps: int = 0  # there is nothing to shorten


SETTINGS = (
    AdaptiveSetting("insuranceqa-minilm"),
    AdaptiveSetting("insuranceqa-gte-small", encoder="gte-small"),
    AdaptiveSetting("captions-minilm", data="captions"),
)


def load(
    setting: AdaptiveSetting, folder: Path, cache: Path, progress: Progress | None
) -> Collection:
    """The texts and vectors of a setting."""
    embed = Vectors(setting.encoder, folder, cache, progress)
    reader = load_insurance if setting.data == "insuranceqa" else load_photos
    return reader(folder, embed, setting.size)


def evaluate(data: Collection, seed: int, progress: Progress | None = None) -> dict[str, Any]:
    """All rules on one resampling of the labelled questions; the first seed also judges abstention."""
    with warnings.catch_warnings():
        # few labels show nothing, and foreign questions drift
        warnings.simplefilter("ignore", AureoleWarning)
        sample = data.labelled.take(_sample(len(data.labelled.texts), None, seed))
        metrics: dict[str, Any] = {
            "questions": {"labelled": len(sample.texts), "test": len(data.test.texts)},
            "gallery": len(data.gallery),
            "answered": _answered(data.test),
        }
        metrics["rules"] = rules(data, sample, seed, progress)
        metrics["few labels"] = {
            str(n): few_labels(data, n, seed) for n in FEW if n < len(data.labelled.texts)
        }
        if seed == 0 and data.domains is not None:
            metrics["abstention"] = abstentions(data)
    return metrics


def rules(
    data: Collection, sample: Queries, seed: int, progress: Progress | None
) -> dict[str, dict[str, Any]]:
    """The metrics of each rule."""
    results: dict[str, dict[str, Any]] = {}
    lexical: list[np.ndarray] = []
    for mapped in (False, True):
        started = time.process_time()
        fitted = MatchCalibrator(seed=seed, query_map=mapped)
        fitted.fit(sample.vectors, data.gallery, sample.matches)
        spent = time.process_time() - started
        parts = (sample.take(fitted.held_out_rows_), data.test)
        judged = [Judged(fitted.map_queries(q.vectors), data.gallery, q.matches) for q in parts]
        lexical = lexical or [bm25_scores(data.texts, q.texts) for q in parts]
        own, name = MatchScore(fitted), "ours, query map" if mapped else "ours"
        results[name] = {
            **measured(own, *judged),
            **_probabilities(fitted, judged[1]),
            "conditional": conditional(own, *judged),
            "cpu_seconds_fit": spent,
        }
        results[f"{name}, with BM25"] = _with_bm25(own, judged, lexical)
        if mapped:
            results["CSLS, query map"] = measured(_csls(fitted.hubness_), *judged)
        else:
            by_words = dict(zip(map(id, judged), lexical, strict=True))
            results["BM25"] = measured(lambda x, by=by_words: by[id(x)], *judged)
            results |= _fixed_rules(data, sample, fitted, judged)
        if progress is not None:
            progress("rules", 1 + mapped, 2)
    return results


class MatchScore:
    """The score behind a calibrated probability, for every pair."""

    def __init__(self, calibrator: MatchCalibrator) -> None:
        self._weights, self._hubness = calibrator.weights_, calibrator.hubness_

    def __call__(self, judged: Judged) -> np.ndarray:
        """The scores [n, m]."""
        return self._weights.score(judged.cosines, judged.level, self._hubness).astype(np.float32)


def _fixed_rules(
    data: Collection, sample: Queries, fitted: MatchCalibrator, judged: list[Judged]
) -> dict[str, dict[str, Any]]:
    """Rules that learn nothing but where to cut."""
    hubness = fitted.hubness_
    reference = np.delete(sample.vectors, fitted.held_out_rows_, axis=0)
    everyone = _mean_of_ten(data.gallery, reference)
    scores: Mapping[str, Score] = {
        "cosine": lambda x: x.cosines,
        "cosine - level": lambda x: x.cosines - x.level,
        "cosine - hubness": lambda x: x.cosines - hubness,
        "CSLS": _csls(hubness),
        "CSLS, own questions included": _csls(everyone),
        "z-score": lambda x: (x.cosines - x.cosines.mean(1, keepdims=True)) / x.spread,
        "fixed k": lambda x: -x.ranks,
    }
    results = {name: measured(score, *judged) for name, score in scores.items()}
    trials = {scale: _softmax(scale) for scale in _SCALES}
    best = max(_SCALES, key=lambda scale: judged[0].average_precision(trials[scale](judged[0])))
    results["softmax over the gallery"] = measured(trials[best], *judged) | {"scale": best}
    results["largest gap"] = judged[1].at(_gap_choice(judged[1]), 0.5)
    results["conflare"] = _conflare(*judged)
    return results


def _csls(hubness: np.ndarray) -> Score:
    return lambda x: 2 * x.cosines - x.level - hubness


def _softmax(scale: float) -> Score:
    def score(x: Judged) -> np.ndarray:
        high = x.cosines.max(1, keepdims=True)
        total = np.exp(scale * (x.cosines - high)).sum(1, keepdims=True)
        return x.cosines - high - np.log(total) / scale

    return score


def _gap_choice(x: Judged) -> np.ndarray:
    """1 for the items before the largest gap among a question's nearest, otherwise 0 (Adaptive-k)."""
    near = x.top_cosines[:, :_GAP]
    cut = np.argmax(near[:, :-1] - near[:, 1:], axis=1)
    return (x.ranks <= cut[:, None]).astype(np.float32)


def _conflare(held: Judged, test: Judged) -> dict[str, Any]:
    """The cut of the package conflare: a percentile of the distances of labelled pairs, here 90."""
    cut = float(np.percentile(held.own(held.cosines), 10))
    return {"at 90 %": test.coverage(test.cosines, cut)}


def _with_bm25(own: MatchScore, judged: list[Judged], lexical: list[np.ndarray]) -> dict[str, Any]:
    """BM25 added to the score of the calibrator, with the weight that is best on held-out questions."""
    words = dict(zip(map(id, judged), lexical, strict=True))
    trial = own(judged[0])
    weight = max(_BM25, key=lambda w: judged[0].average_precision(trial + w * lexical[0]))
    return measured(lambda x: own(x) + weight * words[id(x)], *judged) | {"weight": weight}


def _probabilities(fitted: MatchCalibrator, test: Judged) -> dict[str, Any]:
    """Calibration error, and what thresholds for precision and recall 0.5 give, and CSLS at the same point."""
    p = fitted.probability(test.top_cosines, test.rows)
    rank = np.argsort(np.argsort(-p, axis=1, kind="stable"), axis=1)
    sharp = (p >= fitted.threshold(precision=0.5)) & (rank < fitted.limit)
    wide = p >= fitted.threshold(recall=0.5)
    precise = float(test.labels[sharp].mean()) if sharp.any() else None
    pooled = (wide & test.labels).sum() / test.counts.sum()
    precision, recall = test.curve(_csls(fitted.hubness_)(test))
    enough = np.flatnonzero(precision >= precise) if precise is not None else []
    return {
        "calibration_error": test.calibration_error(p),
        "precision 0.5 asked": {
            "precision": precise,
            "recall": float((sharp & test.labels).sum() / test.counts.sum()),
            "recall of CSLS": float(recall[enough[-1]]) if len(enough) else 0.0,
        },
        "recall 0.5 asked": {
            "recall": float(((wide & test.labels).sum(1) / test.counts).mean()),
            "precision": float(test.labels[wide].mean()),
            "precision of CSLS": float(
                precision[min(np.searchsorted(recall, pooled), len(recall) - 1)]
            ),
        },
    }


def few_labels(data: Collection, count: int, seed: int) -> dict[str, Any]:
    """The calibrator and CSLS with few labelled questions."""
    chosen = data.labelled.take(_sample(len(data.labelled.texts), count, seed))
    results = {}
    for mapped in (False, True):
        fitted = MatchCalibrator(seed=seed, query_map=mapped)
        fitted.fit(chosen.vectors, data.gallery, chosen.matches)
        queries = fitted.map_queries(data.test.vectors)
        test = Judged(queries, data.gallery, data.test.matches)
        results["ours, query map" if mapped else "ours"] = {
            "pooled_ap": test.average_precision(MatchScore(fitted)(test)),
            **_probabilities(fitted, test),
        }
        if not mapped:
            results["CSLS"] = {"pooled_ap": test.average_precision(_csls(fitted.hubness_)(test))}
    return results


def abstentions(data: Collection) -> dict[str, Any]:
    """Unanswerable questions: foreign ones, and those of a domain whose answers are removed from the gallery."""
    assert data.domains is not None
    fitted = MatchCalibrator().fit(data.labelled.vectors, data.gallery, data.labelled.matches)
    results = {"BoolQ": _abstention(fitted, data.gallery, data.test.vectors, data.foreign)}
    known, asked = (np.array(part) for part in data.domains)
    for domain, _ in Counter(asked.tolist()).most_common(_DOMAINS):
        gone = {
            row
            for part, domains in ((data.labelled, known), (data.test, asked))
            for i in np.flatnonzero(domains == domain)
            for row in part.matches[i]
        }
        kept = np.array([row for row in range(len(data.gallery)) if row not in gone])
        place = {row: i for i, row in enumerate(kept.tolist())}
        chosen = data.labelled.take(np.flatnonzero(known != domain))
        matches = [[place[row] for row in group if row in place] for group in chosen.matches]
        gallery = data.gallery[kept]
        fitted = MatchCalibrator().fit(chosen.vectors, gallery, matches)
        parts = (data.test.vectors[asked != domain], data.test.vectors[asked == domain])
        results[domain] = _abstention(fitted, gallery, *parts)
    return results


def _abstention(
    fitted: MatchCalibrator, gallery: np.ndarray, answerable: np.ndarray, other: np.ndarray
) -> dict[str, dict[str, float]]:
    """How well scores separate answerable from unanswerable questions."""
    scores: dict[str, list[np.ndarray]] = {}
    for queries in (answerable, other):
        near = Judged(queries, gallery, [[] for _ in queries])
        probabilities = fitted.probability(near.top_cosines, near.rows)
        for name, values in {
            "highest cosine": 1 - fitted.no_match_p_value(near.top_cosines),
            "highest probability": probabilities.max(1),
            "gap of the best two": near.top_cosines[:, 0] - near.top_cosines[:, 1],
            "mean of the ten best": near.level[:, 0],
        }.items():
            scores.setdefault(name, []).append(values)
    results = {
        name: {
            "auroc": auroc(without, answered),
            "answered at 97 %": float((without >= np.quantile(answered, 0.03)).mean()),
        }
        for name, (answered, without) in scores.items()
    }
    answered, without = scores["highest cosine"]
    level = {"with": answered, "without": without}
    return results | {"p <= 0.05": {k: float((v >= 0.95).mean()) for k, v in level.items()}}


def _sample(count: int, size: int | None, seed: int) -> np.ndarray:
    """A resampling of ``size`` questions, or of 80 % of them."""
    return np.random.default_rng(seed).permutation(count)[: size or count * 4 // 5]


def _answered(test: Queries) -> dict[str, int]:
    counts = Counter(min(len(group), 3) for group in test.matches)
    return {"one": counts[1], "two": counts[2], "more": counts[3]}


def _mean_of_ten(gallery: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """The mean of each item's ten highest cosines with queries."""
    parts = [
        np.partition(gallery[start : start + 1024] @ queries.T, -10, axis=1)[:, -10:].mean(1)
        for start in range(0, len(gallery), 1024)
    ]
    return np.concatenate(parts)
