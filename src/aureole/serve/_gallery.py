"""Items of the gallery ordered by kappa, and thumbnails of their pictures."""

import hashlib
import json
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from aureole.data import find_picture, read_thumbnail
from aureole.errors import MissingInputError
from aureole.retrieval import CredibleIndex, pack_strings

Order = Literal["ambiguous", "certain"]
_MAX_CLASSES = 100


@dataclass(frozen=True)
class _PackedStrings:
    """Strings in one block of UTF-8 and the offsets of their ends: a fifth of the memory of a list of str."""

    text: np.ndarray
    ends: np.ndarray

    def __getitem__(self, place: int) -> str:
        start = int(self.ends[place - 1]) if place else 0
        return self.text[start : int(self.ends[place])].tobytes().decode()


class KappaOrder:
    """The items of a gallery ordered by kappa: pages of the most or least certain, and ranks of any kappa.

    A snapshot in memory, about 30 bytes per item; ``Service.follow`` replaces it when the items have changed.
    Cost: O(n log n) once; a page is a slice, and with a label one comparison of n integers.

    Examples
    --------
    >>> order = KappaOrder(["ant", "bee", "cat"], np.array([5.0, 1.0, 3.0], np.float32), ["a", "b", "a"])
    >>> order.page("ambiguous", 0, 2), order.page("certain", 0, 9, label="a")
    ((['bee', 'cat'], 3), (['ant', 'cat'], 2))
    >>> order.rank(3.0), order.rank(100.0)
    (0.3333333333333333, 1.0)
    """

    def __init__(
        self, ids: Iterable[str], kappa: np.ndarray, labels: Iterable[Any] | None = None
    ) -> None:
        self._names = _PackedStrings(*pack_strings(list(ids)))
        kappa = np.asarray(kappa, np.float32)
        order = np.argsort(kappa, kind="stable")
        self._order = order.astype(np.uint32 if len(order) < 2**32 else np.int64)
        self._sorted = kappa[order]
        self._codes: np.ndarray | None = None
        self.classes: list[tuple[Any, int]] = []
        self._code_by_label: dict[str | float, int] = {}
        if labels is not None:
            self._read_labels(labels)

    @classmethod
    def read(cls, index: CredibleIndex, label_column: str | None) -> "KappaOrder":
        """The order of all items of an index, from one pass over ids, kappas and labels."""
        ids: list[str] = []
        kappas: list[np.ndarray] = [np.zeros(0, np.float32)]
        labels: list[Any] = []
        for names, kappa, payload in index.scan(columns=[label_column] if label_column else []):
            ids += names
            kappas.append(kappa)
            if label_column is not None:
                labels += payload[label_column]
        return cls(ids, np.concatenate(kappas), None if label_column is None else labels)

    def __len__(self) -> int:
        return len(self._order)

    def page(
        self, order: Order, offset: int, limit: int, *, label: str | None = None
    ) -> tuple[list[str], int]:
        """(The ids of a page, the total number of items); the label is text, as JSON or Python writes it."""
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
        """The fraction of items with a smaller kappa."""
        if not len(self._sorted):
            return 0.0
        return float(np.searchsorted(self._sorted, np.float32(kappa))) / len(self._sorted)

    def quantiles(self) -> list[tuple[float, float]]:
        """(Fraction, kappa) at 0, 0.01, ... 1; empty for an empty gallery."""
        if not len(self._sorted):
            return []
        last = len(self._sorted) - 1
        return [(i / 100, float(self._sorted[round(i / 100 * last)])) for i in range(101)]

    def sample(self, count: int) -> list[str]:
        """The ids of at most ``count`` items, evenly spaced by rank of kappa."""
        places = np.unique(np.linspace(0, max(0, len(self) - 1), min(count, len(self))).astype(int))
        return [self._names[int(self._order[place])] for place in places]

    def _code_of(self, label: str) -> int | None:
        """The class with this label. Numbers match in any notation: a browser writes 3 for 3.0 and 1e-7 for 1e-07."""
        code = self._code_by_label.get(label)
        if code is None:
            with suppress(ValueError):
                code = self._code_by_label.get(float(label))
        return code

    def _read_labels(self, labels: Iterable[Any]) -> None:
        code_of: dict[Any, int] = {}
        codes = [code_of.setdefault(label, len(code_of)) for label in labels]
        self._codes = np.array(codes, np.int32)
        values = list(code_of)
        for value, code in code_of.items():
            self._code_by_label[str(value)] = code
            if not isinstance(value, str):
                self._code_by_label[json.dumps(value)] = code  # true for Python's True
            if type(value) in (int, float):
                self._code_by_label.setdefault(float(value), code)
        counts = Counter(codes).most_common(_MAX_CLASSES)
        self.classes = [(values[code], count) for code, count in counts]


class Pictures:
    """A folder of pictures named after item ids, with a cache of thumbnails. Thread-safe.

    Thumbnails are decoded and re-encoded, so a file that is not a picture is never sent, whatever its name.
    """

    def __init__(self, folder: Path, *, cache_bytes: int = 64 * 2**20) -> None:
        if not folder.is_dir():
            raise MissingInputError(
                f"the folder of pictures {folder} does not exist. Check the path."
            )
        self._folder = folder.resolve()
        self._cache_bytes, self._used = cache_bytes, 0
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._exists = lru_cache(100_000)(lambda name: find_picture(self._folder, name) is not None)

    def has(self, name: str) -> bool:
        """Whether an item has a picture; cached."""
        return self._exists(name)

    def find(self, name: str, side: int) -> tuple[Path, str] | None:
        """(The file, an ETag of its thumbnail), or None if the item has no picture."""
        path = find_picture(self._folder, name)
        if path is None:
            return None
        status = path.stat()
        text = f"{path}\0{status.st_mtime_ns}\0{status.st_size}\0{side}"
        return path, hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]

    def thumbnail(self, path: Path, tag: str, side: int) -> bytes:
        """A JPEG of at most ``side`` pixels in width and height."""
        with self._lock:
            if tag in self._cache:
                self._cache.move_to_end(tag)
                return self._cache[tag]
        jpeg = read_thumbnail(path, side)
        with self._lock:
            self._used += len(jpeg) - len(self._cache.pop(tag, b""))
            self._cache[tag] = jpeg
            while self._used > self._cache_bytes and len(self._cache) > 1:
                self._used -= len(self._cache.popitem(last=False)[1])
        return jpeg
