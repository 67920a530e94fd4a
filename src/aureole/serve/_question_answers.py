"""Answers to questions about the gallery, computed in the background."""

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel

from aureole.errors import InvalidInputError
from aureole.explorer import Questions, inspect_gallery
from aureole.retrieval import CredibleIndex
from aureole.serve._background import Background
from aureole.serve._errors import LOG, ApiError
from aureole.serve._response_models import Item

INSPECTED = 20_000  # rows of a gallery that is inspected when the service starts
_RUN = "no answers yet: run aureole inspect on this gallery, then restart the service."

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
    settings: dict[str, Any]


class AnswerEntry(BaseModel):
    """An item with its score.

    ``beyond`` is true for an outlier that is farther from all others than the gallery itself explains.
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


class QuestionAnswer(BaseModel):
    """A page of the items that a question found, the strongest first."""

    name: str
    total: int
    offset: int
    entries: list[AnswerEntry]


class QuestionAnswers:
    """The answers about one gallery."""

    def __init__(self, background: Background, questions: Questions | None = None) -> None:
        self._background = background
        self.questions = questions
        self._reason = _RUN
        self._progress: float | None = None

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
        known = {item["id"]: item for item in await fetch([entry["id"] for entry in entries])}
        shown = [entry | {"item": known[entry["id"]]} for entry in entries if entry["id"] in known]
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
