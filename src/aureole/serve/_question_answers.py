"""Answers to questions about the gallery, and its comparison with another one, computed in the background."""

import base64
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from pydantic import BaseModel

from aureole.errors import DamagedGalleryError, InvalidInputError
from aureole.explorer import Comparison, Questions, compare_galleries, inspect_gallery, read_map
from aureole.retrieval import CredibleIndex, shown_address
from aureole.serve._background import Background
from aureole.serve._errors import LOG, ApiError
from aureole.serve._response_models import Item

INSPECTED = 20_000  # rows of a gallery that is inspected when the service starts
_POINTS = 20_000  # of the scatter plot
_RUN = "no answers yet: run aureole inspect on this gallery, then restart the service."
_NO_OTHER = "the service was started without --compare-with."

Fetch = Callable[[list[str]], Awaitable[list[dict[str, Any]]]]


class QuestionSummary(BaseModel):
    """Whether a question has an answer, and how many items (or pairs) it found."""

    name: str
    available: bool
    reason: str | None
    count: int | None


class ConfusedClasses(BaseModel):
    """Two classes, the mean share of each in the caps of the other, and how many items are ambiguous between them."""

    classes: list[Any]
    codes: list[int]
    shares: list[float]
    count: int


class QuestionsAnswer(BaseModel):
    """Which questions have answers; ``stale`` means that the gallery has changed since they were computed."""

    available: bool
    reason: str | None
    progress: float | None
    stale: bool
    questions: list[QuestionSummary]
    confusions: list[ConfusedClasses]
    comparison: bool
    settings: dict[str, Any]


class AnswerEntry(BaseModel):
    """An item with its score.

    ``partner`` is the other item of a pair of near duplicates; ``beyond`` says whether an outlier is farther from all
    others than the gallery itself explains.
    """

    row: int
    id: str
    score: float | None
    item: Item
    label: Any = None
    other: Any = None
    own_share: float | None = None
    other_share: float | None = None
    angle: float | None = None
    p_value: float | None = None
    beyond: bool | None = None
    partner: Item | None = None


class QuestionAnswer(BaseModel):
    """A page of the items that a question found, the strongest first."""

    name: str
    total: int
    offset: int
    entries: list[AnswerEntry]


class ComparisonAnswer(BaseModel):
    """Two galleries: ``summary`` as ``aureole compare --json`` prints it, and points for a scatter plot.

    The points are base64 of little-endian float32 pairs (kappa in the first and in the second gallery), evenly spaced
    by rank if there are more than 20,000; ``ids`` are theirs. ``maps`` are the coordinates of these items on the map of
    each gallery in the same form: NaN for an item that is not on it, null for a gallery without a map.
    """

    available: bool
    reason: str | None
    summary: dict[str, Any] | None
    ids: list[str]
    points: str
    maps: list[str | None]


class Mover(BaseModel):
    """An item with both kappas, the change of its rank, and the share of its 10 nearest neighbours that stayed."""

    id: str
    item: Item
    kappa: list[float | None]
    rank_change: float
    overlap: float


class MoversAnswer(BaseModel):
    """A page of the items that moved most."""

    by: str
    total: int
    offset: int
    entries: list[Mover]


class QuestionAnswers:
    """The answers about one gallery, and its comparison with another one."""

    def __init__(self, background: Background, questions: Questions | None = None) -> None:
        self._background = background
        self.questions = questions
        self.comparison: Comparison | None = None
        self._reason, self._other = _RUN, _NO_OTHER
        self._progress: float | None = None
        self._scatter: dict[str, Any] = {}

    def inspect(
        self, where: str, label_column: str | None, done: Callable[[], None] | None = None
    ) -> None:
        """Inspect a small gallery in a thread with its own handle, so that searches do not wait, then call ``done``."""
        self._reason, self._progress = "the gallery is being inspected.", 0.0

        def watch(_: str, done: int, total: int) -> None:
            self._progress = done / max(1, total)
            self._background.check()

        def run() -> None:
            try:
                with CredibleIndex.open(where) as index:
                    self.questions = inspect_gallery(
                        index, label_column=label_column, observer=watch
                    )
                if done is not None:
                    done()
            except Exception as error:
                LOG.error("inspecting the gallery failed", exc_info=error)
                self._reason = "inspecting the gallery failed; see the service's log."
            self._progress = None

        self._background.start("inspect", run)

    def compare(self, where: str, other: str, label_column: str | None) -> None:
        """Start a thread that compares the gallery with another one."""
        self._other = "the galleries are being compared."
        names = (_short_name(where), _short_name(other))

        def run() -> None:
            try:
                with (
                    CredibleIndex.open(where) as one,
                    CredibleIndex.open(other) as two,
                ):
                    self._background.check()
                    found = compare_galleries(
                        one, two, label_column=label_column, names=names,
                        observer=self._background.check,
                    )  # fmt: skip
                    self._scatter = _scatter(found, (one, two))
                self.comparison = found
            except InvalidInputError as error:
                self._other = str(error)
            except Exception as error:
                LOG.error("comparing the galleries failed", exc_info=error)
                self._other = "comparing the galleries failed; see the service's log."

        self._background.start("compare", run)

    def describe(self, version: str) -> dict[str, Any]:
        """``GET /v1/questions``; the version is that of the rows that the service lists."""
        found = self.questions
        return {
            "available": found is not None,
            "reason": None if found is not None else self._reason,
            "progress": self._progress,
            "stale": found is not None and found.version != version,
            "questions": [] if found is None else found.summary(),
            "confusions": [] if found is None else found.confusions(),
            "comparison": self._other != _NO_OTHER,
            "settings": {} if found is None else found.settings,
        }

    async def answer(
        self,
        name: str,
        offset: int,
        limit: int,
        classes: tuple[int, int] | None,
        fetch: Fetch,
    ) -> dict[str, Any]:
        """``GET /v1/questions/{name}``; items that have been deleted are left out."""
        if self.questions is None:
            raise ApiError("not_found", self._reason)
        try:
            total, entries = self.questions.answer(name, offset, limit, classes=classes)
        except InvalidInputError as error:
            raise ApiError("not_found", str(error)) from error
        names = [entry["id"] for entry in entries]
        names += [entry["partner_id"] for entry in entries if "partner_id" in entry]
        known = {item["id"]: item for item in await fetch(list(dict.fromkeys(names)))}
        shown = []
        for entry in entries:
            partner = entry.pop("partner_id", None)
            if entry["id"] in known and (partner is None or partner in known):
                own = {} if partner is None else {"partner": known[partner]}
                shown.append(entry | {"item": known[entry["id"]]} | own)
        return {"name": name, "total": total, "offset": offset, "entries": shown}

    def ids(self, name: str, classes: tuple[int, int] | None) -> list[str]:
        """The ids of all items that a question found."""
        if self.questions is None:
            raise ApiError("not_found", self._reason)
        try:
            rows = self.questions.rows(name, classes=classes)
        except InvalidInputError as error:
            raise ApiError("not_found", str(error)) from error
        return [self.questions.ids[row] for row in rows.tolist()]

    def compared(self) -> dict[str, Any]:
        """``GET /v1/comparison``."""
        found = self.comparison
        if found is None:
            empty = {"summary": None, "ids": [], "points": "", "maps": [None, None]}
            return {"available": False, "reason": self._other} | empty
        return {"available": True, "reason": None, "summary": found.summary()} | self._scatter

    async def movers(self, by: str, offset: int, limit: int, fetch: Fetch) -> dict[str, Any]:
        """``GET /v1/comparison/movers``."""
        found = self.comparison
        if found is None:
            raise ApiError("not_found", self._other)
        entries = found.movers(by, limit, offset)
        known = {item["id"]: item for item in await fetch([entry["id"] for entry in entries])}
        shown = [
            {name: entry[name] for name in ("id", "kappa", "rank_change", "overlap")}
            | {"item": known[entry["id"]]}
            for entry in entries
            if entry["id"] in known
        ]
        return {"by": by, "total": len(found), "offset": offset, "entries": shown}


def _short_name(where: str) -> str:
    """The last part of an address, since clients should not see the folders of the machine.

    Examples
    --------
    >>> _short_name("/data/shop/new.lance/"), _short_name("postgresql://ann:secret@db/shop#items")
    ('new.lance', 'shop#items')
    """
    return shown_address(where).rstrip("/").rpartition("/")[2]


def _scatter(found: Comparison, indexes: tuple[CredibleIndex, CredibleIndex]) -> dict[str, Any]:
    """The ids, both kappas and the places on both maps of at most 20,000 items."""
    places = np.unique(np.linspace(0, len(found) - 1, min(_POINTS, len(found))).astype(np.int64))
    kappas = np.stack([side.kappa[places] for side in (found.first, found.second)], 1)
    ids = [found.ids[place] for place in places.tolist()]
    maps = [_on_map(index, ids) for index in indexes]
    return {"ids": ids, "points": _packed(kappas), "maps": maps}


def _on_map(index: CredibleIndex, ids: list[str]) -> str | None:
    """The coordinates of these items on the stored map of a gallery; None if it has none."""
    try:
        found = read_map(index)
    except DamagedGalleryError as error:
        LOG.warning("the comparison has no map: %s", error)
        return None
    if found is None:
        return None
    place = {name: row for row, name in enumerate(found.ids)}
    rows = np.array([place.get(name, -1) for name in ids], np.int64)
    xy = np.full((len(ids), 2), np.nan, np.float32)
    xy[rows >= 0] = found.xy[rows[rows >= 0]]
    return _packed(xy)


def _packed(pairs: np.ndarray) -> str:
    return base64.b64encode(pairs.astype("<f4").tobytes()).decode()
