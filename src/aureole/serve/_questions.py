"""Answers to questions about the gallery, which ``aureole inspect`` has computed."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import Path, Query

from aureole.errors import InvalidInputError
from aureole.explorer._questions import Questions
from aureole.serve._errors import ApiError
from aureole.serve._listing import Count, Listing, Offset

_RUN = "no answers yet: run aureole inspect on this gallery, then restart the service."
Name = Annotated[Literal["labels", "ambiguous", "outliers"], Path(description="The question.")]
Code = Annotated[
    int | None, Query(ge=0, le=2**31, description="Only ambiguous items of the class of this code.")
]


class QuestionAnswers:
    """The answers about one gallery, and their columns in the table of all items."""

    def __init__(self, listing: Listing, questions: Questions | None = None) -> None:
        self._listing, self._questions = listing, questions
        listing.on_change = self.add_columns
        self.add_columns()

    async def describe(self) -> dict[str, Any]:
        """Which questions have answers, and the classes that are confused most."""
        found = self._questions
        return {
            "available": found is not None,
            "reason": None if found is not None else _RUN,
            "stale": found is not None and not self._fits(found),
            "questions": [] if found is None else found.summary(),
            "confusions": [] if found is None else found.confusions(),
            "settings": {} if found is None else found.settings,
        }

    async def answer(
        self, name: Name, one: Code = None, two: Code = None, offset: Offset = 0, limit: Count = 20
    ) -> dict[str, Any]:
        """The items that a question found, the strongest first; ``one`` and ``two`` select a pair of classes."""
        with _not_answered():
            total, entries = self._found().answer(name, offset, limit, classes=_pair(one, two))
        items = await self._listing.fetch([entry["id"] for entry in entries])
        known = {item.id: item for item in items}  # without those that have been deleted
        shown = [entry | {"item": known[entry["id"]]} for entry in entries if entry["id"] in known]
        return {"name": name, "total": total, "offset": offset, "entries": shown}

    async def rows(self, name: Name, one: Code = None, two: Code = None) -> dict[str, Any]:
        """The numbers of all rows that a question found; at most 200,000."""
        found = self._found()
        with _not_answered():
            rows = found.rows(name, classes=_pair(one, two))
        return await self._listing.numbers_of([found.ids[row] for row in rows.tolist()])

    def add_columns(self) -> None:
        """Add the columns of suspicious labels and of outliers to the table, unless its rows have changed since.

        The table gets a new version: answers from a file may differ from those of the last start.
        """
        found = self._questions
        if found is None or not self._fits(found):
            return
        columns = {f"questions.{name}": values for name, values in found.columns().items()}
        digest = hashlib.sha256(b"".join(np.asarray(v, "<f4").tobytes() for v in columns.values()))
        self._listing.table.add_numbers(columns, stamp=digest.hexdigest())

    def _fits(self, found: Questions) -> bool:
        """Whether the answers are those of the current rows; a new map of them changes nothing."""
        return found.version == self._listing.version.rpartition(" ")[0]

    def _found(self) -> Questions:
        if self._questions is None:
            raise ApiError("not_found", _RUN)
        return self._questions


@contextmanager
def _not_answered() -> Iterator[None]:
    """Map the error of a question without an answer to a 404."""
    try:
        yield
    except InvalidInputError as error:
        raise ApiError("not_found", str(error)) from error


def _pair(one: int | None, two: int | None) -> tuple[int, int] | None:
    return None if one is None or two is None else (one, two)
