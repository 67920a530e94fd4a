"""Model cards: what a saved model is, what was measured of it, and what it cannot do, as markdown for people."""

import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aureole.errors import InvalidInputError

_LONGEST = 2000  # characters of a text
_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")

_LIMITS = """\
- kappa is relative to kappa_pos, the concentration that was assumed for partners: pairs hardly tell the two apart. Two
  models' kappas can be compared only where their kappa_pos are the same.
- kappa is aleatoric: it says how ambiguous an input of the training distribution is. It is not a detector of foreign
  inputs, and may be large for an input unlike any that was trained on.
- Coverage was measured on the data named above. Measure it again on yours before you rely on it."""


@dataclass(frozen=True)
class Card:
    """What its makers say of a model: all of it may be left out, and any text may stand in it.

    Parameters
    ----------
    name
        What the model is called.
    data
        What it was trained on, and what its coverage was measured on.
    kappa_pos
        The concentration of partners that it was trained with.
    coverage
        The share of partners in predictive caps by their mass, as {0.5: 0.48, 0.95: 0.94}.
    licence
        Of the weights, as an SPDX name such as "apache-2.0".
    notes
        Anything else.

    Examples
    --------
    >>> Card(name="Birds", data="CUB-200", kappa_pos=20.0, coverage={0.95: 0.94}).kappa_pos
    20.0
    """

    name: str = "A posterior encoder"
    data: str = ""
    kappa_pos: int | float | None = None
    coverage: Mapping[float, float] = field(default_factory=dict)
    licence: str = ""
    notes: str = ""

    def __post_init__(self) -> None:
        _check(vars(self))

    def as_json(self) -> dict[str, Any]:
        """All fields as plain data."""
        return {
            "name": self.name,
            "data": self.data,
            "kappa_pos": self.kappa_pos,
            "coverage": [[float(mass), float(found)] for mass, found in self.coverage.items()],
            "licence": self.licence,
            "notes": self.notes,
        }

    @classmethod
    def from_json(cls, values: Any) -> "Card":
        """The card of ``as_json``; an error says what is wrong with anything else."""
        if not isinstance(values, dict) or values.keys() != cls().as_json().keys():
            raise InvalidInputError(f"a card has the entries {', '.join(cls().as_json())}.")
        try:
            coverage = dict(values["coverage"])
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                "coverage of a card must be a list of (mass, coverage)."
            ) from error
        _check(values | {"coverage": coverage})
        numbers = {float(mass): float(found) for mass, found in coverage.items()}
        return replace(
            cls(**{k: v for k, v in values.items() if k != "coverage"}), coverage=numbers
        )


def model_card(card: Card, *, format: str, dim: int, usage: Sequence[str]) -> str:
    """The card as markdown with YAML front matter, as README.md of a repository of models.

    No text of the card can leave its place: line breaks and invisible characters become spaces, and all that markdown
    or YAML could read as theirs is escaped.

    Parameters
    ----------
    card
        What the makers say.
    format
        The format of the files, with its version.
    dim
        The D of the posteriors' sphere.
    usage
        Lines of Python that load and use the model: code of the library's own, which is not escaped.

    Examples
    --------
    >>> usage = ["import aureole as au", 'encoder = au.PosteriorEncoder.load("folder")']
    >>> text = model_card(Card(name="Birds", kappa_pos=20.0), format="f-1", dim=16, usage=usage)
    >>> print(text.splitlines()[5])
    # Birds
    """
    return "\n".join(
        [
            *_front_matter(card),
            f"# {_escaped(card.name) or 'A posterior encoder'}",
            "",
            f"Returns von Mises-Fisher posteriors (mu, kappa) on the sphere in R^{dim}.",
            "",
            "```python",
            *usage,
            "```",
            "",
            f"- Data: {_escaped(card.data) or 'not stated'}",
            f"- kappa_pos: {'not stated' if card.kappa_pos is None else f'{card.kappa_pos:g}'}",
            f"- dim: {dim}",
            f"- Licence of the weights: {_escaped(card.licence) or 'not stated'}",
            f"- Files: safetensors and JSON, format `{format}`; loading them runs no code",
            "",
            "## Coverage",
            "",
            *_coverage(card.coverage),
            "",
            "## Limits",
            "",
            _LIMITS,
            *(["", "## Notes", "", _escaped(card.notes)] if _escaped(card.notes) else []),
            "",
        ]
    )


def _check(values: Mapping[str, Any]) -> None:
    """Raise an error that names the first entry that is not what it should be."""
    for key in ("name", "data", "licence", "notes"):
        value = values[key]
        if not isinstance(value, str) or len(value) > _LONGEST:
            raise InvalidInputError(
                f"{key} of a card must be a text of at most {_LONGEST} characters, but is {str(value)[:50]!r}."
            )
    kappa_pos = values["kappa_pos"]
    if kappa_pos is not None and not _between(kappa_pos, 0.0, math.inf):
        raise InvalidInputError(
            f"kappa_pos of a card must be positive and finite, but is {str(kappa_pos)[:50]}."
        )
    for mass, found in values["coverage"].items():
        if not _between(mass, 0.0, 1.0) or not (found in (0, 1) or _between(found, 0.0, 1.0)):
            raise InvalidInputError(
                "coverage of a card holds masses between 0 and 1 and the shares that were measured, not "
                f"{str(mass)[:50]}: {str(found)[:50]}."
            )


def _front_matter(card: Card) -> list[str]:
    # a JSON string without control characters is a YAML string
    licence = json.dumps(_plain(card.licence), ensure_ascii=False)
    return [
        "---",
        "library_name: aureole",
        *([f"license: {licence}"] if _plain(card.licence) else []),
        "tags: [uncertainty, von-mises-fisher, embeddings]",
        "---",
        "",
    ]


def _coverage(coverage: Mapping[float, float]) -> list[str]:
    if not coverage:
        return ["Not measured."]
    rows = [f"| {mass:g} | {found:.3f} |" for mass, found in sorted(coverage.items())]
    return ["| mass of the predictive cap | share of partners inside |", "|---|---|", *rows]


def _plain(text: str) -> str:
    """The text on one line, without characters that show nothing."""
    shown = (" " if unicodedata.category(c)[0] == "C" or c in "\u2028\u2029" else c for c in text)
    return " ".join("".join(shown).split())


def _escaped(text: str) -> str:
    """The text as markdown that means just this text."""
    return _PUNCTUATION.sub(r"\\\1", _plain(text))


def _between(value: Any, low: float, high: float) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and low < value < high
