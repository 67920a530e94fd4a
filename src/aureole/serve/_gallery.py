"""The gallery in the order of its certainty: all kappas, labels and ids in memory, some 30 bytes a row."""

import json
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from aureole.retrieval import CredibleIndex, pack_strings

Order = Literal["ambiguous", "certain"]
_CLASSES = 100


@dataclass(frozen=True)
class _Names:
    """Texts in one block of UTF-8: its bytes, and where each ends. A list of str would take five times as much."""

    text: np.ndarray
    ends: np.ndarray

    def __getitem__(self, place: int) -> str:
        start = int(self.ends[place - 1]) if place else 0
        return self.text[start : int(self.ends[place])].tobytes().decode()


class Certainty:
    """Which items are how certain: pages from the least or the most certain on, and ranks of any kappa.

    A snapshot, read once: what is written to the index later is found by searches, but not paged. Cost: n log n for
    the order when it is made; a page is a slice, and with a label one comparison of n numbers.

    Examples
    --------
    >>> found = Certainty(["ant", "bee", "cat"], np.array([5.0, 1.0, 3.0], np.float32), ["a", "b", "a"])
    >>> found.page("ambiguous", 0, 2), found.page("certain", 0, 9, label="a")
    ((['bee', 'cat'], 3), (['ant', 'cat'], 2))
    >>> found.rank(3.0), found.rank(100.0)
    (0.3333333333333333, 1.0)
    """

    def __init__(
        self, ids: Iterable[str], kappa: np.ndarray, labels: Iterable[Any] | None = None
    ) -> None:
        self._names = _Names(*pack_strings(list(ids)))
        kappa = np.asarray(kappa, np.float32)
        order = np.argsort(kappa, kind="stable")
        self._order = order.astype(np.uint32 if len(order) < 2**32 else np.int64)
        self._sorted = kappa[order]
        self._codes: np.ndarray | None = None
        self.classes: list[tuple[Any, int]] = []
        self._code: dict[str, int] = {}
        self._number: dict[float, int] = {}
        if labels is not None:
            self._read_labels(labels)

    def __len__(self) -> int:
        return len(self._order)

    def page(
        self, order: Order, offset: int, limit: int, *, label: str | None = None
    ) -> tuple[list[str], int]:
        """(The ids of a page, how many items there are in all); a label is given as text: JSON's or Python's."""
        rows = self._order
        if label is not None:
            code = self._code_of(label)
            if code is None or self._codes is None:
                return [], 0
            rows = rows[self._codes[rows] == code]
        total = len(rows)
        stop = min(offset + limit, total)
        chosen = (rows if order == "ambiguous" else rows[::-1])[offset:stop]
        return [self._names[int(row)] for row in chosen], total

    def rank(self, kappa: float) -> float:
        """The share of items that are less certain."""
        if not len(self._sorted):
            return 0.0
        return float(np.searchsorted(self._sorted, np.float32(kappa))) / len(self._sorted)

    def quantiles(self) -> list[tuple[float, float]]:
        """(Share, kappa) at 0, 0.01, ... 1; nothing for an empty gallery."""
        if not len(self._sorted):
            return []
        last = len(self._sorted) - 1
        return [(i / 100, float(self._sorted[round(i / 100 * last)])) for i in range(101)]

    def sample(self, count: int) -> list[str]:
        """The ids of ``count`` items at most, spread evenly over the order of certainty."""
        places = np.unique(np.linspace(0, max(0, len(self) - 1), min(count, len(self))).astype(int))
        return [self._names[int(self._order[place])] for place in places]

    def _code_of(self, label: str) -> int | None:
        """The class of this label; of numbers any spelling will do, as a browser says 3 of 3.0 and 1e-7 of 1e-07."""
        code = self._code.get(label)
        if code is None and self._number:
            with suppress(ValueError):
                return self._number.get(float(label))
        return code

    def _read_labels(self, labels: Iterable[Any]) -> None:
        seen: dict[Any, int] = {}
        codes = [seen.setdefault(label, len(seen)) for label in labels]
        self._codes = np.array(codes, np.int32)
        counts = Counter(codes)
        values = list(seen)
        for value, code in seen.items():
            self._code[str(value)] = code
            if not isinstance(value, str):
                self._code[json.dumps(value)] = code  # true, where Python says True
            if type(value) in (int, float):
                self._number.setdefault(float(value), code)
        self.classes = [(values[code], count) for code, count in counts.most_common(_CLASSES)]


def read_certainty(index: CredibleIndex, label_column: str | None) -> Certainty:
    """The certainty of all items of an index, by one pass over ids, kappas and one column."""
    ids: list[str] = []
    kappas: list[np.ndarray] = []
    labels: list[Any] | None = None if label_column is None else []
    for names, kappa, payload in index.scan(columns=[label_column] if label_column else []):
        ids += names
        kappas.append(kappa)
        if labels is not None and label_column is not None:
            labels += payload[label_column]
    kappa = np.concatenate(kappas) if kappas else np.zeros(0, np.float32)
    return Certainty(ids, kappa, labels)
