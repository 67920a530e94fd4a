"""Near duplicates among captions: exact and edited copies planted among captions of the same photos by other people.

``python -m benchmarks.near_duplicates [--draws 5] [--cache FOLDER]``

5,000 captions of Multi30k (five of each of 1,000 photos) with MiniLM, and 400 planted copies of captions of six words
or more: 100 exact ones, and 100 each with one, two and three words changed. They are changed here, not by the editor
that the command learns from. Other captions of the same photo are not duplicates, even where two people chose nearly
the same words. The method was developed on the captions of the test split; these are from the training split.

"Precision" counts a reported pair as right if it was planted, or has the same words in the same order. "Precision of
edits" counts only pairs whose words differ. Vectors alone: the same without the texts. "Cosine of 0.95": all pairs at
or above this cosine.
"""

import argparse
import gzip
from pathlib import Path
from typing import Any

import numpy as np

from aureole.data import TextEditor
from aureole.encoders import load
from aureole.records import Record, file_hash, write_record
from aureole.retrieval import NearDuplicates, find_near_duplicates
from aureole.retrieval._brute_force import nearest, unit_rows

ENCODER = "sentence-transformers:all-MiniLM-L6-v2"
PHOTOS, VIEWS, EACH, SHORTEST = 1000, 5, 100, 6
MADE = 2000
ASKED = (0.99, 0.95, 0.9, 0.8)
KINDS = ("exact", "one word", "two words", "three words")


def captions(data: Path) -> tuple[list[str], dict[str, str]]:
    """(The captions, five in a row for each photo, the hashes of their files)."""
    files = [data / "text" / f"multi30k_train.{view}.en.gz" for view in range(1, VIEWS + 1)]
    views = []
    for file in files:
        with gzip.open(file, "rt") as lines:
            views.append([line.strip() for _, line in zip(range(PHOTOS), lines, strict=False)])
    texts = [text for photo in zip(*views, strict=True) for text in photo]
    return texts, {file.name: file_hash(file) for file in files}


def changed(text: str, words: int, pool: list[str], rng: np.random.Generator) -> str:
    """The text with so many words at random places replaced by others, dropped, or preceded by a new word."""
    parts: list[list[str]] = [[word] for word in text.split()]
    for at in rng.choice(len(parts), words, replace=False):
        old, new = parts[at][0], pool[rng.integers(len(pool))]
        while new.casefold() == old.casefold():
            new = pool[rng.integers(len(pool))]
        parts[at] = ([new], [], [new, old])[rng.choice(3, p=[0.6, 0.2, 0.2])]
    return " ".join(word for part in parts for word in part)


class Draw:
    """One draw of planted copies and of edits to learn from, with the vectors of all texts."""

    def __init__(self, texts: list[str], seed: int, cache: Path) -> None:
        rng = np.random.default_rng(1000 + seed)
        pool = [word for text in texts for word in text.split() if word.isalpha()]
        long = [row for row, text in enumerate(texts) if len(text.split()) >= SHORTEST]
        self.originals = rng.choice(long, EACH * len(KINDS), replace=False)
        self.kinds = np.repeat(np.arange(len(KINDS)), EACH)
        planted = [
            changed(texts[row], int(kind), pool, rng)
            for row, kind in zip(self.originals, self.kinds, strict=True)
        ]
        self.texts, self.base = texts + planted, len(texts)
        editor = TextEditor(self.texts, np.random.default_rng(seed))
        self.sources = editor.rng.permutation(len(self.texts))[:MADE]
        self.made = [
            editor.edit(self.texts[row], int(editor.rng.integers(len(KINDS))))
            for row in self.sources
        ]
        gallery = vectors(texts, cache / "captions.npy")
        self.vectors = np.concatenate([gallery, vectors(planted, cache / f"planted_{seed}.npy")])
        self.copies = vectors(self.made, cache / f"made_{seed}.npy")

    def find(self, asked: float, share: float, *, words: bool = True) -> NearDuplicates:
        """The result for a gallery with this share of each kind of planted copies."""
        kept = np.flatnonzero(self.kept(share))
        places = np.full(len(self.texts), -1)
        places[kept] = np.arange(len(kept))
        known = places[self.sources] >= 0
        texts, made = [self.texts[row] for row in kept], np.array(self.made, object)[known].tolist()
        given: dict[str, Any] = {"texts": texts, "copy_texts": made} if words else {}
        return find_near_duplicates(
            self.vectors[kept],
            self.copies[known],
            places[self.sources[known]],
            precision=asked,
            **given,
        )

    def kept(self, share: float) -> np.ndarray:
        """Which rows are in the gallery: all captions, and the first of each kind of planted copies."""
        rank = np.tile(np.arange(EACH), len(KINDS))
        return np.concatenate([np.ones(self.base, bool), rank < share * EACH])

    def truth(self, share: float) -> dict[tuple[int, int], int]:
        """The kind of each planted pair, by rows of the gallery."""
        planted = self.kept(share)[self.base :]
        pairs = zip(self.originals[planted].tolist(), self.kinds[planted].tolist(), strict=True)
        return {(row, self.base + at): kind for at, (row, kind) in enumerate(pairs)}


def vectors(texts: list[str], file: Path) -> np.ndarray:
    """The vectors of texts, computed once."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        print(f"embedding {len(texts):,} texts into {file}", flush=True)
        np.save(file, load(ENCODER, "text").encode(texts, batch_size=64))
    return unit_rows(np.load(file), file.name)


def metrics(
    pairs: np.ndarray, equal: np.ndarray, truth: dict[tuple[int, int], int], base: int
) -> dict[str, float]:
    """Precision, recall by kind, and the share of pairs that are other captions of one photo."""
    kinds = np.array([truth.get((row, other), -1) for row, other in pairs.tolist()], int)
    right, edited = (kinds >= 0) | equal, ~equal
    same = (pairs[:, 0] // VIEWS == pairs[:, 1] // VIEWS) & (pairs[:, 1] < base)
    total = np.bincount(list(truth.values()), minlength=len(KINDS))
    result = {
        "precision": float(right.mean()) if len(right) else np.nan,
        "precision of edits": float(right[edited].mean()) if edited.any() else np.nan,
        "reported edits": float(edited.sum()),
        "wrong edits": float((edited & ~right).sum()),
        "captions of one photo among them": float((edited & same).sum()),
    }
    for kind, name in enumerate(KINDS):
        found = float((kinds == kind).sum())
        result[f"recall, {name}"] = found / total[kind] if total[kind] else np.nan
    return result


def result_metrics(found: NearDuplicates, draw: Draw, share: float) -> dict[str, float]:
    """Metrics of a result, and what it says of itself."""
    truth = draw.truth(share)
    return {
        **metrics(found.pairs, found.equal, truth, draw.base),
        "expected precision of edits": found.expected_precision,
        "estimated copies": found.edited_copies,
        "planted edits": float(sum(kind > 0 for kind in truth.values())),
    }


def baseline(draw: Draw, cosine: float = 0.95) -> dict[str, float]:
    """Metrics of all pairs at or above a cosine."""
    cosines, rows = nearest(draw.vectors, draw.vectors, 21)
    close = (cosines >= cosine) & (rows > np.arange(len(rows))[:, None])
    pairs = np.stack([np.nonzero(close)[0], rows[close]], axis=1)
    found = draw.find(0.99, 1.0)
    same = {tuple(pair) for pair in found.pairs[found.equal].tolist()}
    equal = np.array([tuple(pair) in same for pair in pairs.tolist()])
    return metrics(pairs, equal, draw.truth(1.0), draw.base)


def measure(draws: list[Draw]) -> dict[str, Any]:
    settings: dict[str, Any] = {
        f"{asked:g} asked for": lambda draw, asked=asked: result_metrics(
            draw.find(asked, 1.0), draw, 1.0
        )
        for asked in ASKED
    }
    for share, name in ((0.1, "a tenth of the copies"), (0.0, "no copies")):
        settings[f"0.99 asked for, {name}"] = lambda draw, share=share: result_metrics(
            draw.find(0.99, share), draw, share
        )
    settings["0.99 asked for, vectors alone"] = lambda draw: result_metrics(
        draw.find(0.99, 1.0, words=False), draw, 1.0
    )
    settings["cosine of 0.95"] = baseline
    results = {}
    for name, run in settings.items():
        results[name] = summary([run(draw) for draw in draws])
        print(name, {k: v["mean"] and round(v["mean"], 3) for k, v in results[name].items()})
    return results


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--cache", type=Path, default=Path("runs/near_duplicates"))
    arguments = parser.parse_args()
    texts, hashes = captions(arguments.data)
    results = measure([Draw(texts, seed, arguments.cache) for seed in range(arguments.draws)])
    settings = {"encoder": ENCODER, "captions": len(texts), "draws": arguments.draws, "each": EACH}
    command = "python -m benchmarks.near_duplicates"
    record = Record("benchmarks/near_duplicates", results, command, 0, settings, hashes)
    write_record(record, Path("results/benchmarks/near_duplicates.json"))


if __name__ == "__main__":
    main()
