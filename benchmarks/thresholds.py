"""One threshold for all queries: InsuranceQA with vectors as they are, calibrated on train and valid questions only.

``python -m benchmarks.thresholds [--model all-MiniLM-L6-v2] [--name minilm] [--cache FOLDER]``

27,413 answers, 14,889 labelled questions to calibrate with, 2,000 test questions. "Pooled AP" is the average precision
over all pairs of a test question and its 300 nearest answers, sorted by one score. Ten resamplings draw 80 % of the
calibration questions (all of 50, 200 or 1,000 at random for the rows with few labels).

The official split leaks: 3 % of the right answers of test questions are also right for a train question, against 76 %
of the candidates. An answer near its own train question is therefore hardly ever right in test. CSLS whose hubness
includes an answer's own questions profits from this, so it is listed apart; ``MatchCalibrator`` leaves them out.
"""

import argparse
import gzip
import json
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

import aureole as au
from aureole.encoders._sentence_transformers import packaged_folder
from aureole.errors import AureoleWarning
from aureole.records import Record, file_hash, write_record
from aureole.retrieval._brute_force import nearest, unit_rows

SPLITS = ("train", "valid", "test")
DEPTH = 300
RESAMPLINGS = 10
DOMAINS = 5
TOKENS = 64


class Insurance:
    """Questions, their right answers and domains, and the vectors of all texts."""

    def __init__(self, data: Path, model: str, cache: Path) -> None:
        files = {
            name: data / "qa" / f"insuranceqa_{name}.jsonl.gz" for name in (*SPLITS, "answers")
        }
        files["boolq"] = data / "qa" / "boolq_questions.jsonl.gz"
        self.hashes = {f.name: file_hash(f) for f in files.values()}
        rows = {name: _lines(file) for name, file in files.items()}
        texts = {name: [r.get("text") or r["question"] for r in rows[name]] for name in rows}
        self.vectors = {name: _vectors(model, texts[name], cache / f"{name}.npy") for name in texts}
        self.matches = {name: [r["answers"] for r in rows[name]] for name in SPLITS}
        self.domains = {name: [r["domain"] for r in rows[name]] for name in SPLITS}
        self.answers = self.vectors["answers"]
        self.queries = np.concatenate([self.vectors["train"], self.vectors["valid"]])
        self.labels = self.matches["train"] + self.matches["valid"]


def _lines(file: Path) -> list[dict[str, Any]]:
    with gzip.open(file, "rt") as lines:
        return [json.loads(line) for line in lines]


def _vectors(model: str, texts: list[str], file: Path) -> np.ndarray:
    """The vectors of texts cut at 64 tokens, computed once."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        from sentence_transformers import SentenceTransformer

        folder = packaged_folder(model) or model
        loaded = SentenceTransformer(
            str(folder), device="cpu", model_kwargs={"dtype": torch.float32}
        )
        loaded.max_seq_length = TOKENS
        print(f"embedding {len(texts):,} texts into {file}", flush=True)
        np.save(file, loaded.encode(texts, batch_size=64))
    return unit_rows(np.load(file), file.name)


class Test:
    """The nearest answers of the test questions, and the metrics of a score for each."""

    def __init__(self, queries: np.ndarray, gallery: np.ndarray, matches: list[list[int]]) -> None:
        self.cosines, self.rows = nearest(queries, gallery, DEPTH)
        pairs = zip(self.rows, matches, strict=True)
        self.labels = np.stack([np.isin(row, group) for row, group in pairs])
        self.counts = np.array([len(group) for group in matches])
        self.level = self.cosines[:, :10].mean(1, keepdims=True)

    def curve(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(Precision, recall) over all pairs, at each of them, from the best down."""
        right = np.cumsum(self.labels.ravel()[np.argsort(-scores.ravel(), kind="stable")])
        return right / np.arange(1, right.size + 1), right / self.counts.sum()

    def metrics(self, scores: np.ndarray) -> dict[str, float]:
        """Of one threshold for all queries, and of each query's best answer."""
        precision, recall = self.curve(scores)
        step = np.diff(recall, prepend=0)
        best = np.argmax(scores, axis=1)[:, None]
        return {
            "pooled AP": float(precision @ step),
            "best F1": float(
                (2 * precision * recall / np.maximum(precision + recall, 1e-12)).max()
            ),
            "R@1": float(np.take_along_axis(self.labels, best, 1).mean()),
        }

    def calibration_error(self, p: np.ndarray) -> float:
        """Of ten bins of the candidates above 0.05."""
        shown = p > 0.05
        part = np.minimum((p[shown] * 10).astype(int), 9)
        sums = [np.bincount(part, x, minlength=10) for x in (p[shown], self.labels[shown])]
        return float(np.abs(sums[0] - sums[1]).sum() / shown.sum())

    def aims(
        self, calibrator: au.MatchCalibrator, p: np.ndarray, csls: np.ndarray
    ) -> dict[str, float]:
        """What thresholds for precision 0.5 and recall 0.5 give, and CSLS at the same precision and recall."""
        rank = np.argsort(np.argsort(-p, axis=1), axis=1)
        kept = (p >= calibrator.threshold(precision=0.5)) & (rank < calibrator.limit)
        precise = self.labels[kept].mean() if kept.any() else np.nan
        found = (kept & self.labels).sum() / self.counts.sum()
        shares = ((p >= calibrator.threshold(recall=0.5)) & self.labels).sum(1) / self.counts
        wide = p >= calibrator.threshold(recall=0.5)
        precision, recall = self.curve(csls)
        enough = np.flatnonzero(precision >= precise)
        pooled = (wide & self.labels).sum() / self.counts.sum()
        return {
            "precision asked 0.5": float(precise),
            "its recall": float(found),
            "recall of CSLS there": float(recall[enough[-1]]) if len(enough) else 0.0,
            "recall asked 0.5": float(shares.mean()),
            "its precision": float(self.labels[wide].mean()),
            "precision of CSLS there": float(precision[np.searchsorted(recall, pooled)]),
        }


def csls_scores(test: Test, gallery: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """CSLS with the hubness of all queries, an answer's own ones included."""
    cosines, _ = nearest(gallery, queries, 10)
    return 2 * test.cosines - test.level - cosines.mean(1)[test.rows]


def resampled(data: Insurance, test: Test, size: int | None, seed: int) -> dict[str, float]:
    """The metrics of a calibrator fitted on some of the calibration questions, and of CSLS with the same ones."""
    rng = np.random.default_rng(seed)
    count = size or len(data.queries) * 4 // 5
    chosen = rng.permutation(len(data.queries))[:count]
    queries, labels = data.queries[chosen], [data.labels[i] for i in chosen]
    spent = time.process_time()
    calibrator = au.MatchCalibrator(seed=seed).fit(queries, data.answers, labels)
    spent = time.process_time() - spent
    p = calibrator.probability(test.cosines, test.rows)
    with_own = csls_scores(test, data.answers, queries)
    without = 2 * test.cosines - test.level - calibrator.hubness_[test.rows]
    return {
        **test.metrics(p),
        "calibration error": test.calibration_error(p),
        **test.aims(calibrator, p, without),
        "pooled AP of CSLS, own questions left out": test.metrics(without)["pooled AP"],
        "pooled AP of CSLS": test.metrics(with_own)["pooled AP"],
        "CPU seconds of fit": spent,
    }


def auroc(unanswerable: np.ndarray, answerable: np.ndarray) -> float:
    """How often an answerable query scores higher than an unanswerable one."""
    order = np.sort(unanswerable)
    low, high = (np.searchsorted(order, answerable, side=side) for side in ("left", "right"))
    return float((low + high).mean() / 2 / len(order))


def abstention(
    calibrator: au.MatchCalibrator, gallery: np.ndarray, answerable: np.ndarray, other: np.ndarray
) -> dict[str, dict[str, float]]:
    """How well scores tell queries with an answer in the gallery from those without."""
    scores: dict[str, list[np.ndarray]] = {}
    for queries in (answerable, other):
        cosines, rows = nearest(queries, gallery, 100)
        named = {
            "1 - p-value (highest cosine)": 1 - calibrator.no_match_p_value(cosines),
            "highest probability": calibrator.probability(cosines, rows).max(1),
            "gap of the best two": cosines[:, 0] - cosines[:, 1],
            "mean of the ten best": cosines[:, :10].mean(1),
        }
        for name, values in named.items():
            scores.setdefault(name, []).append(values)
    return {
        name: {
            "AUROC": auroc(without, with_answer),
            "answered without an answer, at 97 % of those with one": float(
                (without >= np.quantile(with_answer, 0.03)).mean()
            ),
            **(_at_level(with_answer, without) if "p-value" in name else {}),
        }
        for name, (with_answer, without) in scores.items()
    }


def _at_level(with_answer: np.ndarray, without: np.ndarray) -> dict[str, float]:
    """What a level of 0.05 gives."""
    return {
        "p <= 0.05 with an answer": float((with_answer >= 0.95).mean()),
        "p <= 0.05 without an answer": float((without >= 0.95).mean()),
    }


def removed_domain(data: Insurance, domain: str) -> dict[str, dict[str, float]]:
    """Abstention when all answers to questions of a domain are missing from the gallery."""
    gone = {
        row
        for name in SPLITS
        for group, own in zip(data.matches[name], data.domains[name], strict=True)
        if own == domain
        for row in group
    }
    kept = np.array([row for row in range(len(data.answers)) if row not in gone])
    place = {row: i for i, row in enumerate(kept.tolist())}
    domains = data.domains["train"] + data.domains["valid"]
    chosen = [i for i, own in enumerate(domains) if own != domain]
    labels = [[place[row] for row in data.labels[i] if row in place] for i in chosen]
    calibrator = au.MatchCalibrator().fit(data.queries[chosen], data.answers[kept], labels)
    test = np.array(data.domains["test"])
    queries = data.vectors["test"]
    return abstention(
        calibrator, data.answers[kept], queries[test != domain], queries[test == domain]
    )


def summary(runs: list[dict[str, float]]) -> dict[str, dict[str, Any]]:
    """Mean, standard error and lowest of each metric, over the runs that have it."""
    result: dict[str, dict[str, Any]] = {}
    for name in runs[0]:
        values = np.array([run[name] for run in runs])
        values = values[np.isfinite(values)]
        several = len(values) > 1
        result[name] = {
            "mean": float(values.mean()) if len(values) else None,
            "standard error": float(values.std(ddof=1) / len(values) ** 0.5) if several else None,
            "lowest": float(values.min()) if len(values) else None,
            "runs": len(values),
            "values": [round(float(value), 4) for value in values],
        }
    return result


def measure(data: Insurance) -> dict[str, Any]:
    test = Test(data.vectors["test"], data.answers, data.matches["test"])
    hub, _ = nearest(data.answers, data.vectors["train"], 10)
    hubness = hub.mean(1)[test.rows]
    metrics: dict[str, Any] = {
        "fixed scores": {
            "cosine": test.metrics(test.cosines),
            "minus the query's level": test.metrics(test.cosines - test.level),
            "minus the item's hubness": test.metrics(test.cosines - hubness),
            "CSLS": test.metrics(2 * test.cosines - test.level - hubness),
        }
    }
    for size in (50, 200, 1000, None):
        runs = [resampled(data, test, size, seed) for seed in range(RESAMPLINGS)]
        name = "80 % of all labelled queries" if size is None else f"{size:,} labelled queries"
        metrics[name] = summary(runs)
        print(name, {k: v["mean"] for k, v in metrics[name].items()}, flush=True)
    calibrator = au.MatchCalibrator().fit(data.queries, data.answers, data.labels)
    boolq = abstention(calibrator, data.answers, data.vectors["test"], data.vectors["boolq"])
    metrics["abstention, BoolQ"] = boolq
    largest = [name for name, _ in Counter(data.domains["test"]).most_common(DOMAINS)]
    metrics["abstention, removed domain"] = {name: removed_domain(data, name) for name in largest}
    return metrics


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--name", default="minilm")
    parser.add_argument("--cache", type=Path, default=Path("runs/thresholds"))
    arguments = parser.parse_args()
    warnings.simplefilter(
        "ignore", AureoleWarning
    )  # few labels show nothing, other questions drift
    data = Insurance(arguments.data, arguments.model, arguments.cache / arguments.name)
    metrics = measure(data)
    command = f"python -m benchmarks.thresholds --name {arguments.name}"
    settings = {"encoder": arguments.name, "tokens": TOKENS, "resamplings": RESAMPLINGS}
    record = Record("benchmarks/thresholds", metrics, command, 0, settings, data.hashes)
    write_record(record, Path(f"results/benchmarks/thresholds_{arguments.name}.json"))


if __name__ == "__main__":
    main()
