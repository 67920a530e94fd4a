"""check_release: compare a new version of a gallery with the one that it replaces."""

import zlib
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any, Literal

import numpy as np
import torch

from aureole._rank_correlation import spearman
from aureole.caps._index import CredibleIndex

Outcome = Literal["passed", "warning", "failed"]
SAMPLE = 100_000  # ids of each gallery that are compared, or all


@dataclass(frozen=True)
class ReleaseCheck:
    """The outcome of one check of a new gallery: a sentence, and the numbers behind it."""

    name: str
    outcome: Outcome
    text: str
    values: dict[str, Any] = field(default_factory=dict)


def check_release(new: CredibleIndex, old: CredibleIndex) -> list[ReleaseCheck]:
    """Compare a new version of a gallery with the one in service; one of the checks "failed" if it loses results.

    Failures: invalid rows, columns that are missing or have another type, more than 1 % of the ids missing, kappas
    that are all equal, a recall below 0.98, a missing calibration. Warnings, since a better encoder may cause them:
    fewer missing ids, other ranks of kappa, a calibration further off.

    Ids and kappas are compared on about 100,000 rows, the same ids of both. Cost: two passes over ``new``, one over
    ``old``.

    Examples
    --------
    >>> from aureole.distributions import VonMisesFisher
    >>> kappa, ids = torch.tensor([5.0, 1.0, 2.0]), ["ant", "bee", "cat"]
    >>> old = CredibleIndex.create("faiss://", VonMisesFisher(torch.eye(3), kappa), ids)
    >>> new = CredibleIndex.create("faiss://", VonMisesFisher(torch.eye(3)[:2], kappa[:2]), ids[:2])
    >>> [check.text for check in check_release(new, old) if check.outcome == "failed"]
    ["3 → 2; 33.33 % of the old ids are missing, such as 'cat'"]
    """
    problems = new.check()
    text = problems[0] if problems else f"{new.count():,} rows are valid"
    checks = [_check("rows valid", problems, text, {"problems": problems})]
    if problems:
        return checks
    rows = max(new.count(), old.count())
    sample, others = _sample(new, rows), _sample(old, rows)
    checks += [_columns(new, old), _ids(new, old, sample, others), _kappas(sample, others)]
    return [*checks, *_recall(new, old, sample), *_calibration(new, old)]


def _sample(index: CredibleIndex, rows: int) -> dict[str, float]:
    """The kappas of ids whose hash is small enough that about ``SAMPLE`` of this many rows have one."""
    bound = 2**32 if rows <= SAMPLE else 2**32 * SAMPLE // rows
    return {
        name: kappa
        for ids, kappas, _ in index.scan()
        for name, kappa in zip(ids, kappas.tolist(), strict=True)
        if zlib.crc32(name.encode()) < bound
    }


def _columns(new: CredibleIndex, old: CredibleIndex) -> ReleaseCheck:
    columns = new.schema.columns
    lost = [name for name, kind in old.schema.columns.items() if columns.get(name) != kind]
    text = f"missing or of another type: {', '.join(lost)}"
    return _check("columns", lost, text if lost else "all exist", {"lost": lost})


def _ids(
    new: CredibleIndex, old: CredibleIndex, sample: dict[str, float], others: dict[str, float]
) -> ReleaseCheck:
    missing = others.keys() - sample.keys()
    lost = len(missing) / max(1, len(others))
    text = f"{old.count():,} → {new.count():,}; {100 * lost:.2f} % of the old ids are missing"
    if missing:
        text += f", such as {min(missing)[:60]!r}"
    outcome: Outcome = "warning" if missing else "passed"
    return ReleaseCheck("ids", "failed" if lost > 0.01 else outcome, text, {"missing": lost})


def _kappas(sample: dict[str, float], others: dict[str, float]) -> ReleaseCheck:
    """Compare the medians of kappa, and the ranks of the items that both galleries hold."""
    if not sample or not others:
        return ReleaseCheck("kappa", "warning", "a gallery has no rows")
    common = sorted(sample.keys() & others.keys())
    before, after = (
        torch.tensor([each[n] for n in common], dtype=torch.float64) for each in (others, sample)
    )
    rank = spearman(before, after) if len(common) > 1 else float("nan")
    medians = [median_low(each.values()) for each in (others, sample)]
    text = f"median {medians[0]:.4g} → {medians[1]:.4g}; rank correlation {rank:.3f}"
    values = {"medians": medians, "rank_correlation": rank}
    if len(set(sample.values())) == 1 < min(len(set(others.values())), len(sample)):
        return ReleaseCheck("kappa", "failed", f"all kappas are {medians[1]:.4g}", values)
    return ReleaseCheck("kappa", "warning" if rank < 0.5 else "passed", text, values)


def _recall(new: CredibleIndex, old: CredibleIndex, sample: dict[str, float]) -> list[ReleaseCheck]:
    """Measure the recall of the approximate index, if there is one, on 50 rows."""
    if new.approximate is None:
        text = "the new gallery has no approximate index, so every search scans all rows"
        return [] if old.approximate is None else [ReleaseCheck("recall", "warning", text)]
    names = sorted(sample, key=lambda name: zlib.crc32(name.encode()))[:50]
    recall = new.check_recall(new.fetch(names)[0], least=0.0).share
    text = f"{recall:.4f} of the members of the caps of {len(names)} rows"
    return [_check("recall", recall < 0.98, text, {"recall": recall})]


def _calibration(new: CredibleIndex, old: CredibleIndex) -> list[ReleaseCheck]:
    """Compare how often nominal predictive caps held the partner on the pairs of the conformal calibrations."""
    now, then = new.conformal, old.conformal
    if then is None:
        return []
    if now is None:
        text = "the new gallery has none, so searches with a guarantee would fail"
        return [ReleaseCheck("calibration", "failed", text)]
    before, after = (float(np.mean(np.asarray(each.scores) <= 0.9)) for each in (then, now))
    text = f"nominal 90 % caps held {before:.1%} → {after:.1%} of the pairs"
    worse = abs(after - 0.9) - abs(before - 0.9) > 0.05 or len(now.scores) < len(then.scores)
    outcome: Outcome = "warning" if worse else "passed"
    return [ReleaseCheck("calibration", outcome, text, {"old": before, "new": after})]


def _check(name: str, failed: Any, text: str, values: dict[str, Any]) -> ReleaseCheck:
    return ReleaseCheck(name, "failed" if failed else "passed", text, values)
