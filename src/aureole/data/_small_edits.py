"""Small edits of texts and pictures: examples of near duplicates, made from a gallery itself."""

import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from aureole.data._image_files import read_rgb
from aureole.errors import InvalidInputError

MAX_CHANGED_WORDS = 3
_MAX_CHARACTERS = 20_000  # of a text that is compared word by word; the rest is ignored
_MAX_VOCABULARY = 50_000
# a character of a script that is written without spaces is a word
_SINGLE = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_WORD = re.compile(rf"[{_SINGLE}]|[^\W{_SINGLE}]+(?:['\u2019-][^\W{_SINGLE}]+)*")
_CROP = 0.08  # largest share of a side that is cut off
_QUALITY = (40, 90)  # of JPEG
_BRIGHTNESS = 0.15  # largest relative change


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation; at most the first 20,000 characters are read.

    Each character counts as a word in Chinese, Japanese and Thai, and in texts without letters and digits.

    Examples
    --------
    >>> words_of("A dog's  ball, RED."), words_of("犬が走る"), words_of(":-)")
    (['a', "dog's", 'ball', 'red'], ['犬', 'が', '走', 'る'], [':', '-', ')'])
    """
    text = text[:_MAX_CHARACTERS].casefold()
    return _WORD.findall(text) or [character for character in text if not character.isspace()]


class TextEditor:
    """Makes edited copies of texts: words replaced, dropped, added or swapped, or only case and punctuation changed.

    New words are drawn from the texts, as often as they occur there.

    Parameters
    ----------
    texts
        The texts to draw words from.
    rng
        Source of randomness.

    Examples
    --------
    >>> editor = TextEditor(["a red ball", "the blue house"], np.random.default_rng(1))
    >>> editor.edit("a man throws a ball to a dog", 1)
    'a man throws ball a to a dog'
    """

    def __init__(self, texts: Iterable[str], rng: np.random.Generator) -> None:
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(_words_as_written(text))
            if len(counts) > 2 * _MAX_VOCABULARY:  # bounds the memory
                counts = Counter(dict(counts.most_common(_MAX_VOCABULARY)))
        if not counts:
            raise InvalidInputError("the texts have no words, so edited copies cannot be made.")
        chosen = counts.most_common(_MAX_VOCABULARY)
        self.rng = rng
        self._words = [word for word, _ in chosen]
        shares = np.array([count for _, count in chosen], dtype=np.float64)
        self._cumulative = np.cumsum(shares / shares.sum())

    def edit(self, text: str, words: int) -> str:
        """A copy with so many word edits; with 0, only case and punctuation change.

        A text keeps at least half of its words, so a short one gets fewer edits.
        """
        parts = text.split()
        for _ in range(min(words, max(1, len(parts) // 2)) if words else 0):
            parts = self._edit_one(parts)
        edited = self._restyle(" ".join(parts)) if not words else " ".join(parts)
        return edited if edited.strip() else text

    def edit_all(self, texts: Sequence[str]) -> list[str]:
        """A copy of each text with none to three word edits, equally often."""
        words = self.rng.integers(MAX_CHANGED_WORDS + 1, size=len(texts)).tolist()
        return [self.edit(text, count) for text, count in zip(texts, words, strict=True)]

    def _edit_one(self, parts: list[str]) -> list[str]:
        at = int(self.rng.integers(max(1, len(parts))))
        kind = self.rng.choice(["replace", "drop", "add", "swap"], p=[0.5, 0.2, 0.2, 0.1])
        if kind == "add" or not parts:
            return [*parts[:at], self._draw(), *parts[at:]]
        if kind == "drop" and len(parts) > 2:
            return [*parts[:at], *parts[at + 1 :]]
        if kind == "swap" and at + 1 < len(parts) and parts[at] != parts[at + 1]:
            return [*parts[:at], parts[at + 1], parts[at], *parts[at + 2 :]]
        old = _WORD.search(parts[at])
        new = self._draw(old[0] if old else "")
        changed = parts[at][: old.start()] + new + parts[at][old.end() :] if old else new
        return [*parts[:at], changed, *parts[at + 1 :]]

    def _draw(self, other_than: str = "") -> str:
        """A word of the texts; another one than this if they have more than one."""
        for _ in range(20):
            at = int(np.searchsorted(self._cumulative, self.rng.random()))
            word = self._words[min(at, len(self._words) - 1)]
            if word.casefold() != other_than.casefold():
                return word
        return self._words[0]

    def _restyle(self, text: str) -> str:
        style = int(self.rng.integers(3))
        if style == 0:
            return text.upper() if self.rng.random() < 0.5 else text.lower()
        if style == 1:
            return re.sub(r"[^\w\s]", "", text)
        return text.rstrip(" .!?") + str(self.rng.choice(["", ".", "!", " .", "..."]))


def edit_picture(source: Any, rng: np.random.Generator) -> Any:
    """A copy of a picture as a Pillow image: cropped by at most 8 % per side, brighter or darker, and recompressed.

    Each of crop and brightness is applied with probability 2/3; the copy always passes through JPEG.
    """
    picture = read_rgb(source)
    if rng.random() < 2 / 3:
        width, height = picture.size
        left, top, right, bottom = rng.random(4) * _CROP * np.array([width, height, width, height])
        box = (int(left), int(top), max(int(left) + 1, width - int(right)), 0)
        picture = picture.crop((*box[:3], max(int(top) + 1, height - int(bottom))))
    if rng.random() < 2 / 3:
        factor = 1 + rng.uniform(-_BRIGHTNESS, _BRIGHTNESS)
        picture = picture.point([min(255, round(value * factor)) for value in range(256)] * 3)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=int(rng.integers(*_QUALITY)))
    return read_rgb(file.getvalue())


def _words_as_written(text: str) -> Sequence[str]:
    return _WORD.findall(text[:_MAX_CHARACTERS])
