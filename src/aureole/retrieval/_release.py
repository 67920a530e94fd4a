"""Versioned roll-outs: check a new version of a gallery against the current one, switch to it in one step, and back.

What refuses a release, since searches would fail or lose results: damage, columns that are missing or have another
type, more than 1 % of the ids missing, a recall below 0.98, a missing calibration, a head that did not make the
gallery, and kappas that are all equal. What only warns, since a better encoder may do it: fewer missing ids, other
ranks of kappa, a calibration that is further off, and a model that is not named.
"""

import os
import zlib
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from aureole._io import reporting_writes
from aureole.errors import AureoleError, InvalidInputError
from aureole.evaluation import spearman
from aureole.models import WEIGHTS
from aureole.records import file_hash
from aureole.retrieval._conformal import ConformalMass
from aureole.retrieval._index import CredibleIndex
from aureole.retrieval._live import lock
from aureole.retrieval._live_files import (
    SUFFIX,
    Live,
    LiveVersion,
    is_live,
    read_live,
    resolve,
    stored,
    write_live,
)

Outcome = Literal["passed", "warning", "failed"]
SAMPLE = (
    100_000  # ids of each version that are compared; a gallery with fewer is compared completely
)
LEAST_RECALL = 0.98
MOST_MISSING = 0.01  # share of the old ids
_RECALL_QUERIES = 50
_LEAST_CORRELATION = 0.5
_MASSES = (0.5, 0.9, 0.95)
_MORE_MISCALIBRATED = 0.05


@dataclass(frozen=True)
class ReleaseCheck:
    """The outcome of one check of a new version: a sentence, and the numbers behind it."""

    name: str
    outcome: Outcome
    text: str
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Release:
    """What :func:`release` did.

    Attributes
    ----------
    switched
        Whether the new version is in service.
    checks
        The outcome of every check, in a fixed order.
    live
        The versions in service and before it, after the call; None if nothing was released yet.
    """

    switched: bool
    checks: tuple[ReleaseCheck, ...]
    live: Live | None

    @property
    def failed(self) -> list[ReleaseCheck]:
        """The checks that refuse the release."""
        return [check for check in self.checks if check.outcome == "failed"]


def release(
    gallery: str | os.PathLike[str],
    where: str | os.PathLike[str],
    *,
    model: Mapping[str, str | os.PathLike[str] | None] | None = None,
    force: bool = False,
    observer: Callable[[int], None] | None = None,
) -> Release:
    """Check a gallery against the version in service, and put it in service if no check fails.

    Readers that have ``where`` open use the new version from their next call on, and the whole of it. The old version
    does not change, and :func:`rollback` returns to it. Cost: two passes over the new version and one over the ids
    of the old one; memory for 100,000 ids of each, and 8 bytes per row.

    Parameters
    ----------
    gallery
        Address of the new version, of any engine.
    where
        Path that ends in ``.live``; the first release creates it.
    model
        ``encoder``, ``head`` and ``calibrator`` of the new version, as ``aureole serve`` takes them, so that services
        can load them without a restart.
    force
        Switch even if checks fail.
    observer
        Called with the number of rows read so far.

    Examples
    --------
    >>> import tempfile
    >>> from aureole.distributions import VonMisesFisher
    >>> folder = tempfile.mkdtemp()
    >>> for kappa in (20.0, 30.0):
    ...     gallery = VonMisesFisher(torch.eye(3), torch.tensor([5.0, 1.0, 2.0]) * kappa)
    ...     CredibleIndex.create(f"{folder}/{kappa:g}.faiss", gallery, ["ant", "bee", "cat"]).close()
    >>> release(f"{folder}/20.faiss", f"{folder}/animals.live").switched
    True
    >>> index = CredibleIndex.open(f"{folder}/animals.live")
    >>> release(f"{folder}/30.faiss", f"{folder}/animals.live").switched
    True
    >>> index.fetch(["bee"])[0].kappa
    tensor([30.])
    >>> rollback(f"{folder}/animals.live").current.gallery
    '20.faiss'
    """
    path, gallery = _live_path(where), os.fspath(gallery)
    if is_live(gallery):
        raise InvalidInputError(f"{gallery} is not a gallery: release the gallery that it names.")
    given = {
        name: None if place is None else os.fspath(place) for name, place in (model or {}).items()
    }
    if not given.keys() <= {"encoder", "head", "calibrator"}:
        raise InvalidInputError(
            f"a model has encoder, head and calibrator, but got {sorted(given)}."
        )
    named = {
        n: None if p is None else stored(path, p, encoder=n == "encoder") for n, p in given.items()
    }
    version = LiveVersion(stored(path, gallery), **named)
    before = read_live(path) if path.exists() else None
    if before is not None and before.current == version:
        raise InvalidInputError(f"{gallery} is the current version of {path} already.")
    with CredibleIndex.open(gallery) as new:
        checks = [*_current_problem(path, before)]
        old = None if before is None or checks else CredibleIndex.open(path, follow=False)
        try:
            model_check = _model_check(new, old, path, version)
            checks += [*check_release(new, old, observer=observer), model_check]
        finally:
            if old is not None:
                old.close()
    found = Release(False, tuple(checks), before)
    if found.failed and not force:
        return found
    return replace(found, switched=True, live=_switch(path, before, version))


def rollback(where: str | os.PathLike[str]) -> Live:
    """Put the previous version back in service, and return what is in service now; a second call undoes the first."""
    path = _live_path(where)
    before = read_live(path)
    if before.previous is None:
        raise InvalidInputError(f"{path} has no previous version to return to.")
    address = resolve(path, before.previous.gallery)
    with CredibleIndex.open(address) as previous:  # raises if it does not exist any more
        previous.count()
    return _switch(path, before, before.previous)


def check_release(
    new: CredibleIndex,
    old: CredibleIndex | None = None,
    *,
    observer: Callable[[int], None] | None = None,
) -> list[ReleaseCheck]:
    """The checks of a new version of a gallery that concern its rows; without an ``old`` one, those of the new alone.

    Ids and kappas are compared on a sample that depends on the ids alone, so that it holds the same ids of both
    versions: all of up to 100,000, and about as many of larger galleries.
    """
    progress = _Progress(observer)
    problems = new.check(observer=progress.part())
    text = problems[0] if problems else f"{new.count():,} rows are valid"
    if len(problems) > 1:
        text += f" (and {len(problems) - 1} more; see aureole index check)"
    checks = [ReleaseCheck("rows valid", _failed_if(problems), text, {"problems": problems})]
    if problems:
        return checks
    rows = max(new.count(), 0 if old is None else old.count())
    sample = _sample(new, rows, progress.part())
    if old is not None:
        others = _sample(old, rows, progress.part())
        checks += [_columns(new, old), _ids(new, old, sample, others), _kappas(sample, others)]
    checks += [*_recall(new, old, sample), *_calibration(new, old)]
    return checks


def _switch(path: Path, before: Live | None, version: LiveVersion) -> Live:
    """Replace the file, unless another process did since ``before`` was read."""
    with reporting_writes(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with lock(path):
        now = read_live(path) if path.exists() else None
        if now != before:
            raise InvalidInputError(
                f"{path} was switched by another process meanwhile. Run the command again."
            )
        number = 1 if before is None else before.number + 1
        live = Live(number, version, None if before is None else before.current)
        write_live(path, live)
    return live


def _live_path(where: str | os.PathLike[str]) -> Path:
    if not is_live(where):
        raise InvalidInputError(
            f"{os.fspath(where)} cannot name the version in service: use a local path that ends in {SUFFIX}."
        )
    return Path(where)


def _current_problem(path: Path, before: Live | None) -> list[ReleaseCheck]:
    """A warning if the current version does not open, so that nothing can be compared with it."""
    if before is None:
        return []
    try:
        CredibleIndex.open(path, follow=False).close()
    except AureoleError as error:
        return [ReleaseCheck("current version", "warning", f"nothing was compared: {error}")]
    return []


class _Progress:
    """Adds up the rows of several passes."""

    def __init__(self, observer: Callable[[int], None] | None) -> None:
        self._observer, self._before, self._now = observer, 0, 0

    def part(self) -> Callable[[int], None]:
        """The observer of the next pass."""
        self._before += self._now
        self._now = 0
        return self._observe

    def _observe(self, done: int) -> None:
        self._now = done
        if self._observer is not None:
            self._observer(self._before + done)


def _sample(index: CredibleIndex, rows: int, observer: Callable[[int], None]) -> dict[str, float]:
    """The kappas of ids whose hash is small enough that about ``SAMPLE`` of this many rows have one."""
    bound = 2**32 if rows <= SAMPLE else 2**32 * SAMPLE // rows
    sample: dict[str, float] = {}
    done = 0
    for ids, kappas, _ in index.scan():
        for name, kappa in zip(ids, kappas.tolist(), strict=True):
            if zlib.crc32(name.encode()) < bound:
                sample[name] = kappa
        done += len(ids)
        observer(done)
    return sample


def _columns(new: CredibleIndex, old: CredibleIndex) -> ReleaseCheck:
    lost = [
        name for name, kind in old.schema.columns.items() if new.schema.columns.get(name) != kind
    ]
    values = {"old": dict(old.schema.columns), "new": dict(new.schema.columns)}
    if lost:
        shown = ", ".join(lost)
        text = f"missing or of another type: {shown}"
    else:
        text = f"all {len(old.schema.columns)} payload columns exist"
    return ReleaseCheck("columns", _failed_if(lost), text, values)


def _ids(
    new: CredibleIndex, old: CredibleIndex, sample: dict[str, float], others: dict[str, float]
) -> ReleaseCheck:
    missing, added = others.keys() - sample.keys(), sample.keys() - others.keys()
    lost = len(missing) / len(others) if others else 0.0
    values = {
        "old": old.count(),
        "new": new.count(),
        "missing": lost,
        "added": len(added) / len(sample) if sample else 0.0,
        "compared": len(others),
        "examples": sorted(missing)[:5],
    }
    text = f"{values['old']:,} → {values['new']:,}; {100 * lost:.2f} % of the old ids are missing"
    if missing:
        text += f", such as {min(missing)[:60]!r}"
    if len(others) < values["old"]:
        text += f" (of a sample of {len(others):,})"
    outcome: Outcome = "warning" if missing else "passed"
    return ReleaseCheck("ids", "failed" if lost > MOST_MISSING else outcome, text, values)


def _kappas(sample: dict[str, float], others: dict[str, float]) -> ReleaseCheck:
    """How far kappa has moved: its quantiles, and whether the same items are the certain ones."""
    common = sorted(sample.keys() & others.keys())
    pair = [
        torch.tensor([each[n] for n in common], dtype=torch.float64) for each in (others, sample)
    ]
    rank = spearman(*pair) if len(common) > 1 else float("nan")
    quantiles = [_quantiles(each) for each in (others, sample)]
    values = {"old": quantiles[0], "new": quantiles[1], "rank_correlation": rank}
    values["compared"] = len(common)
    if not sample or not others:
        return ReleaseCheck("kappa", "warning", "a version has no rows", values)
    medians = [each["0.5"] for each in quantiles]
    text = f"median {medians[0]:.4g} → {medians[1]:.4g}; rank correlation {rank:.3f}"
    constant, was_constant = (min(each.values()) == max(each.values()) for each in (sample, others))
    if constant and not was_constant and len(sample) > 1:
        return ReleaseCheck("kappa", "failed", f"all kappas are {medians[1]:.4g}", values)
    outcome: Outcome = "warning" if rank < _LEAST_CORRELATION else "passed"
    return ReleaseCheck("kappa", outcome, text, values)


def _quantiles(sample: dict[str, float]) -> dict[str, float]:
    kappa = np.array(list(sample.values()))
    masses = (0.05, 0.25, 0.5, 0.75, 0.95)
    if not len(kappa):
        return {}
    found = np.quantile(kappa, masses, method="nearest")  # kappa may be infinite
    return {f"{mass:g}": float(value) for mass, value in zip(masses, found, strict=True)}


def _recall(
    new: CredibleIndex, old: CredibleIndex | None, sample: dict[str, float]
) -> list[ReleaseCheck]:
    """The recall of the approximate index, if there is one."""
    if new.approximate is None:
        if old is None or old.approximate is None:
            return []
        text = "the new version has no approximate index, so every search scans all rows"
        return [ReleaseCheck("recall", "warning", text)]
    names = sorted(sample, key=lambda name: zlib.crc32(name.encode()))[:_RECALL_QUERIES]
    recall = new.check_recall(new.fetch(names)[0], least=0.0)
    values = {"recall": recall.share, "queries": recall.queries, "members": recall.members}
    text = f"{recall.share:.4f} of the members of the caps of {recall.queries} rows"
    if recall.share < LEAST_RECALL:
        text += f", below {LEAST_RECALL}: rebuild the index with more --probes or --width"
    return [ReleaseCheck("recall", _failed_if(recall.share < LEAST_RECALL), text, values)]


def _calibration(new: CredibleIndex, old: CredibleIndex | None) -> list[ReleaseCheck]:
    """How often uncalibrated predictive caps held the partner on the pairs of the conformal calibrations."""
    found, before = new.conformal, None if old is None else old.conformal
    if found is None:
        if before is None:
            return []
        text = "the new version has none, so searches with a guarantee would fail"
        return [ReleaseCheck("calibration", "failed", text)]
    values: dict[str, Any] = {"new": _coverage(found)}
    text = (
        f"nominal 90 % caps held {100 * values['new']['0.9']:.1f} % of {len(found.scores):,} pairs"
    )
    outcome: Outcome = "passed"
    if before is not None:
        values["old"] = _coverage(before)
        text += f" (before: {100 * values['old']['0.9']:.1f} %)"
        worse = max(
            abs(values["new"][mass] - float(mass)) - abs(values["old"][mass] - float(mass))
            for mass in values["old"]
        )
        fewer = len(found.scores) < len(before.scores)
        outcome = "warning" if worse > _MORE_MISCALIBRATED or fewer else "passed"
        text += "; fewer pairs than before" if fewer else ""
    return [ReleaseCheck("calibration", outcome, text, values)]


def _coverage(calibration: ConformalMass) -> dict[str, float]:
    count = max(1, len(calibration.scores))
    return {f"{mass:g}": bisect_right(calibration.scores, mass) / count for mass in _MASSES}


def _model_check(
    new: CredibleIndex, old: CredibleIndex | None, path: Path, version: LiveVersion
) -> ReleaseCheck:
    """Whether the model that was named made the new version; services need one if it changes."""
    origin, values = new.origin, asdict(version)
    named = version.encoder if version.head is None else version.head
    if named is not None:
        weights = Path(resolve(path, named, encoder=version.head is None)) / WEIGHTS
        if version.head is not None and not weights.is_file():
            raise InvalidInputError(
                f"{weights} does not exist: {weights.parent} holds no saved head."
            )
        if weights.is_file() and origin.weights not in (None, file_hash(weights)):
            text = f"the gallery was not made by {weights.parent}: their weights differ"
            return ReleaseCheck("model", "failed", text, values)
        return ReleaseCheck("model", "passed", "services load the new model", values)
    known = origin.fingerprint
    if old is None:
        return ReleaseCheck("model", "passed", "not named", values)
    if known is not None and (origin.weights, origin.encoder) == (
        old.origin.weights,
        old.origin.encoder,
    ):
        return ReleaseCheck("model", "passed", "the same as before", values)
    text = "another or unknown model, and --encoder or --head is missing: services that embed queries must be restarted"
    return ReleaseCheck("model", "warning", text, values)


def _failed_if(problem: Any) -> Outcome:
    return "failed" if problem else "passed"
