"""The report of a match calibrator: one page on which results are good enough, and how to use it in your database."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aureole._io import atomic_write
from aureole.errors import AureoleWarning
from aureole.explorer._head import versions
from aureole.explorer._page import Picture, Section, Table, format_share, render
from aureole.match import MatchCalibrator, MatchQuality
from aureole.plot import BLUE, INK, VERMILION, canvas

PRECISIONS = RECALLS = (0.5, 0.7, 0.9)  # shown unless others are asked for
MADE = (
    "The queries are halves of the gallery's texts, not real ones. They are usually easier: expect a lower recall from "
    "real queries. Probabilities and guarantees hold for such halves only, and can be too high or too low for real "
    "queries."
)
_LOW = 0.05  # probabilities below it are left out of the calibration error: most items are clearly wrong
_ROUNDED = 0.99  # thresholds below it are shown with three digits
_MAX_ID = 40  # characters of an id in the code

_PROMISE = (
    "What the thresholds promise: with a confidence of {confidence}, new queries of the same kind get at least the "
    "precision or the recall that you asked for. Precision is the share of matches among all results of all queries, "
    "with at most {limit} results per query. Recall is the share of a query's matches that is returned, averaged over "
    "queries, if you retrieve everything above the threshold. Each row of the table is a separate promise.",
    "What they do not promise: anything about a single query, about queries of another kind (new subjects, another "
    "language, other users), or about vectors of another encoder. F1 has no guarantee.",
    "Matches that nobody labelled count as wrong. If there are many, true precision is higher than the one shown.",
    "Call calibrator.append for new items. If your queries or the subject of the gallery change, calibrate again.",
)
_SEARCH = (
    "search(vector, k) is your function: it returns the cosines and the ids of the k nearest items in your database, "
    "without a filter. If the database returns cosine distances, use 1 - distance. vector is a query, encoded in the "
    "same way as the queries of this calibrator."
)


@dataclass(frozen=True)
class Aim:
    """A threshold that was asked for, and its quality; None if the held-out queries do not support any."""

    kind: str  # precision, recall or f1
    share: float | None
    threshold: float | None
    quality: MatchQuality | None

    @property
    def label(self) -> str:
        """What was asked for, such as "precision 50 %"."""
        return "best F1" if self.share is None else f"{self.kind} {100 * self.share:g} %"


def threshold_aims(
    calibrator: MatchCalibrator,
    precisions: Sequence[float] = PRECISIONS,
    recalls: Sequence[float] = RECALLS,
) -> list[Aim]:
    """The thresholds for several precisions and recalls, and for the best F1, with their quality."""
    asked: list[tuple[str, float | None]] = [("precision", share) for share in precisions]
    asked += [*(("recall", share) for share in recalls), ("f1", None)]
    aims = []
    for kind, share in asked:
        with warnings.catch_warnings(record=True) as caught:  # the table shows it instead
            warnings.simplefilter("always", AureoleWarning)
            threshold = calibrator.threshold(**{kind: True if share is None else share})  # pyright: ignore[reportArgumentType]
        if any(issubclass(warning.category, AureoleWarning) for warning in caught):
            aims.append(Aim(kind, share, None, None))
        else:
            threshold = _rounded(threshold, down=kind != "precision")
            aims.append(Aim(kind, share, threshold, calibrator.quality(threshold)))
    return aims


def _rounded(threshold: float, *, down: bool) -> float:
    """The threshold with three digits, rounded to the side on which its guarantee holds, between 0 and 1.

    One above 0.99 keeps all digits: matches that no other item comes close to have probabilities that differ from 1
    in the last digits only.
    """
    threshold = min(max(threshold, math.ulp(0.0)), math.nextafter(1.0, 0.0))
    if not 1e-300 < threshold < _ROUNDED:
        return threshold
    step = 10.0 ** (math.floor(math.log10(threshold)) - 2)
    whole = math.floor(threshold / step) if down else math.ceil(threshold / step)
    return float(f"{whole * step:.3g}")


def format_threshold(threshold: float) -> str:
    """The threshold with three digits, or with all of them if three are not exact."""
    short = f"{threshold:.3g}"
    return short if float(short) == threshold else repr(threshold)


def write_match_report(
    calibrator: MatchCalibrator,
    out: Path | str,
    *,
    source: str,
    folder: str = "calibrator",
    aims: Sequence[Aim] | None = None,
    note: str = "",
) -> Path:
    """Write the page on a match calibrator atomically, and return its path.

    Thresholds with their precision, recall and number of results, the precision-recall curve, the reliability of the
    probabilities, what the guarantee covers, and the code to use the calibrator in your own database.

    Parameters
    ----------
    calibrator
        A fitted calibrator.
    out
        The HTML file.
    source
        What it was fitted on, such as the name of a file.
    folder
        Where the calibrator is saved, for the code on the page (default "calibrator").
    aims
        The thresholds to show, from ``threshold_aims`` (default: several).
    note
        A sentence for the top of the page, such as a warning about the labels (default: none).
    """
    aims = threshold_aims(calibrator) if aims is None else aims
    page = match_page(calibrator, source, folder=folder, aims=aims, note=note)
    return atomic_write(Path(out), page)


def match_page(
    calibrator: MatchCalibrator,
    source: str,
    *,
    folder: str,
    aims: Sequence[Aim],
    note: str,
) -> str:
    """The page on a calibrator as HTML."""
    held = len(calibrator.held_out_.levels)
    sections = [
        _thresholds(calibrator, aims),
        _code(calibrator, folder, aims),
        _curve(calibrator, aims),
        _reliability(calibrator),
    ]
    text = "\n\n".join(_PROMISE).format(
        confidence=format_share(calibrator.confidence), limit=calibrator.limit
    )
    sections.append(Section("guarantee", "What is guaranteed", text, (), ()))
    return render(
        "Which results are good enough?",
        sections,
        about=f"{source}: {len(calibrator.hubness_):,} items. All numbers are from {held:,} held-out queries.",
        results=[*([note] if note else []), *_results(aims)],
        footer=[versions()],
        footer_title="How this page was made",
    )


def percent_range(value: float, interval: tuple[float, float]) -> str:
    """A share with its interval, in percent without the sign, such as "53 (50-57)"."""
    low, high = (round(100 * end) for end in interval)
    return f"{100 * value:.0f} ({low}-{high})"


def _count(results: float) -> str:
    return f"{results:,.1f}" if results < 100 else f"{results:,.0f}"


def _results(aims: Sequence[Aim]) -> list[str]:
    """The main results, one sentence each: the easiest aim of each kind, and the aims that are not supported."""
    results, seen = [], set()
    for aim in aims:
        if aim.quality is None or aim.threshold is None or aim.kind in seen or aim.share is None:
            continue
        seen.add(aim.kind)
        results.append(
            f"For a {aim.label.replace(' ', ' of ', 1)}, return results with a probability of at least "
            f"{format_threshold(aim.threshold)}: {format_share(aim.quality.precision)} of them match, and they contain "
            f"{format_share(aim.quality.recall)} of a query's matches on average."
        )
    held = next((aim.quality.queries for aim in aims if aim.quality is not None), 0)
    missing = [aim.label.replace(" ", " of ", 1) for aim in aims if aim.threshold is None]
    if missing:
        results.append(
            f"{held:,} held-out queries do not show a {' or a '.join(missing)} at any threshold. Label more queries, "
            "or ask for less."
        )
    return results


def _thresholds(calibrator: MatchCalibrator, aims: Sequence[Aim]) -> Section:
    rows = []
    for aim in aims:
        if aim.quality is None or aim.threshold is None:
            rows.append((aim.label, "none", "", "", ""))
            continue
        quality = aim.quality
        rows.append(
            (
                aim.label,
                format_threshold(aim.threshold),
                percent_range(quality.precision, quality.precision_interval),
                percent_range(quality.recall, quality.recall_interval),
                _count(quality.results),
            )
        )
    table = Table(
        "Thresholds",
        f"Return the results whose match probability is at least the threshold. Results: per query, among its "
        f"{calibrator.held_out_.candidates.shape[1]} nearest items. In brackets: 90 % bootstrap intervals.",
        ("asked for", "threshold", "precision, %", "recall, %", "results"),
        tuple(rows),
    )
    return Section("thresholds", "Thresholds", "", (table,), ())


def usage_code(calibrator: MatchCalibrator, folder: str, aims: Sequence[Aim]) -> list[str]:
    """The lines of Python that load the calibrator and filter the results of a database."""
    chosen = _chosen(aims)
    ids = range(2) if calibrator.ids_ is None else calibrator.ids_[:2]
    threshold = format_threshold((chosen and chosen.threshold) or 0.5)
    more = ")" if chosen is None else f")  # {chosen.label}"
    if chosen is not None and chosen.kind == "recall":  # every result above the threshold counts
        more = ", k=1000, limit=1000)"
    return [
        f"calibrator = MatchCalibrator.load({folder!r})",
        f"find = MatchFilter(calibrator, search, threshold={threshold}{more}",
        f"find(vector).ids  # such as [{', '.join(map(_shown_id, ids))}]",
    ]


def _chosen(aims: Sequence[Aim]) -> Aim | None:
    """The aim that the code uses: the first precision, or recall if no precision was asked for, or the best F1."""
    first = "precision" if any(aim.kind == "precision" for aim in aims) else "recall"
    usable = [aim for kind in (first, "f1") for aim in aims if aim.kind == kind and aim.threshold]
    return usable[0] if usable else None


def _code(calibrator: MatchCalibrator, folder: str, aims: Sequence[Aim]) -> Section:
    lines = ["from aureole.match import MatchCalibrator, MatchFilter", ""]
    code = "\n".join([*lines, *usage_code(calibrator, folder, aims)])
    return Section("code", "Use it in your database", _SEARCH, (), (), code=code)


def _shown_id(item: Any) -> str:
    text = repr(item)
    return text if len(text) <= _MAX_ID else f"{text[: _MAX_ID - 2]}…{text[0]}"


def _curve(calibrator: MatchCalibrator, aims: Sequence[Aim]) -> Section:
    curve = [calibrator.quality(p, bootstrap=1) for p in np.linspace(0.01, 0.99, 99)]
    drawn = [quality for quality in curve if np.isfinite(quality.precision)]
    with canvas("match-curve", 1, height=4.0) as drawing:
        (axes,) = drawing.axes
        xy = [[100 * q.recall for q in drawn], [100 * q.precision for q in drawn]]
        axes.plot(*xy, color=BLUE, linewidth=2.6, label="match probability")
        dots = [aim.quality for aim in aims if aim.quality is not None]
        xy = [[100 * q.recall for q in dots], [100 * q.precision for q in dots]]
        axes.plot(*xy, "o", color=VERMILION, markersize=6, label="thresholds above", zorder=4)
        axes.set(xlabel="recall, %", ylabel="precision, %", xlim=(0, 101), ylim=(0, 101))
        drawing.legend(columns=2)
    figure = Picture(
        drawing.svg,
        "Each point of the curve is a threshold. Higher and further right is better.",
        "Precision against recall for all thresholds",
    )
    text = "What you give up when you raise or lower the threshold."
    return Section("curve", "Precision and recall", text, (), (figure,))


def calibration_error(bins: Sequence[tuple[float, float, int]]) -> float:
    """The mean difference of predicted and observed shares over candidates with a probability above 5 %."""
    used = [(abs(predicted - seen), count) for predicted, seen, count in bins if predicted > _LOW]
    total = sum(count for _, count in used)
    return sum(gap * count for gap, count in used) / total if total else float("nan")


def _reliability(calibrator: MatchCalibrator) -> Section:
    bins = calibrator.reliability(10)
    with canvas("match-reliability", 1, height=4.0) as drawing:
        (axes,) = drawing.axes
        axes.plot([0, 100], [0, 100], color=INK, linewidth=1, label="observed = predicted")
        xy = [[100 * entry[place] for entry in bins] for place in (0, 1)]
        axes.plot(*xy, "o-", color=BLUE, markersize=7, label="candidates")
        axes.set(xlabel="predicted probability, %", ylabel="observed matches, %")
        axes.set(xlim=(0, 101), ylim=(0, 101))
        drawing.legend(columns=2)
    figure = Picture(
        drawing.svg,
        "Below the diagonal the probabilities are too high, above it too low.",
        "Observed share of matches against predicted probability",
    )
    error = calibration_error(bins)
    text = "Of the items to which the calibrator gives 30 %, do 30 % match? "
    if np.isfinite(error):
        text += f"Above 5 %, the two differ by {100 * error:.1f} points on average. "
    text += "The same queries shaped the probabilities, so new ones agree a little less."
    return Section("reliability", "Are the probabilities right?", text, (), (figure,))
