"""Model cards: the README.md of a saved model, with its data, its measured coverage and its limits."""

import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aureole.errors import InvalidInputError

_LONGEST = 2000  # characters of a text
_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")

_TEMPLATE = """\
---
library_name: aureole
{licence_entry}tags: [uncertainty, von-mises-fisher, embeddings]
---

# {name}

Returns von Mises-Fisher posteriors (mu, kappa) on the sphere in R^{dim}.

```python
{usage}
```

- Data: {data}
- kappa_pos: {kappa_pos}
- dim: {dim}
- Licence of the weights: {licence}
- Files: safetensors and JSON, format `{format}`; loading them runs no code

## Coverage

{coverage}

## Limits

- kappa is relative to kappa_pos, the concentration that was assumed for partners: pairs hardly distinguish the two. The
  kappas of two models are comparable only if their kappa_pos are the same.
- kappa is aleatoric: it measures how ambiguous an input of the training distribution is. It does not detect
  out-of-distribution inputs, for which it may be large.
- Coverage was measured on the data named above. Measure it on your data before you rely on it.
{notes}"""


@dataclass(frozen=True)
class Card:
    """What the authors of a model state about it; every field is optional and may hold any text.

    Parameters
    ----------
    name
        Name of the model.
    data
        The data it was trained on and its coverage was measured on.
    kappa_pos
        The kappa_pos it was trained with.
    coverage
        Share of partners inside the predictive cap of each mass, such as {0.5: 0.48, 0.95: 0.94}.
    licence
        Licence of the weights, an SPDX name such as "apache-2.0".
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
        coverage = [[float(mass), float(share)] for mass, share in self.coverage.items()]
        return vars(self) | {"coverage": coverage}

    @classmethod
    def from_json(cls, values: Any) -> "Card":
        """The card from the output of ``as_json``; raises for anything else."""
        if not isinstance(values, dict) or values.keys() != cls().as_json().keys():
            raise InvalidInputError(f"a card must have the entries {', '.join(cls().as_json())}.")
        try:
            shares = dict(values["coverage"])
        except (TypeError, ValueError) as error:
            raise InvalidInputError("coverage of a card must be pairs (mass, share).") from error
        _check(values | {"coverage": shares})
        coverage = {float(mass): float(share) for mass, share in shares.items()}
        fields: dict[str, Any] = values | {"coverage": coverage}
        return cls(**fields)


def model_card(card: Card, *, format: str, dim: int, usage: Sequence[str]) -> str:
    """The card as markdown with YAML front matter: the README.md of a model repository.

    Texts of the card are escaped, and line breaks and invisible characters become spaces, so that they cannot inject
    markdown or YAML.

    Parameters
    ----------
    card
        What the authors state.
    format
        Format of the files, with its version.
    dim
        Ambient dimension D of the posteriors' sphere.
    usage
        Lines of Python that load and use the model. They are not escaped, so they must be trusted.

    Examples
    --------
    >>> usage = ["import aureole as au", 'encoder = au.PosteriorEncoder.load("folder")']
    >>> text = model_card(Card(name="Birds", kappa_pos=20.0), format="f-1", dim=16, usage=usage)
    >>> print(text.splitlines()[5])
    # Birds
    """
    # a JSON string without control characters is a YAML string
    licence, notes = json.dumps(_plain(card.licence), ensure_ascii=False), _escaped(card.notes)
    return _TEMPLATE.format(
        licence_entry=f"license: {licence}\n" if _plain(card.licence) else "",
        name=_escaped(card.name) or "A posterior encoder",
        dim=dim,
        usage="\n".join(usage),
        data=_escaped(card.data) or "not stated",
        kappa_pos="not stated" if card.kappa_pos is None else f"{card.kappa_pos:g}",
        licence=_escaped(card.licence) or "not stated",
        format=format,
        coverage=_coverage_table(card.coverage),
        notes=f"\n## Notes\n\n{notes}\n" if notes else "",
    )


def _check(values: Mapping[str, Any]) -> None:
    """Raise an error that names the first invalid entry."""
    for key in ("name", "data", "licence", "notes"):
        value = values[key]
        if not isinstance(value, str) or len(value) > _LONGEST:
            raise InvalidInputError(
                f"{key} of a card must be a text of at most {_LONGEST} characters, but is {str(value)[:50]!r}."
            )
    kappa_pos = values["kappa_pos"]
    if kappa_pos is not None and not _between(kappa_pos, 0.0, math.inf):
        got = str(kappa_pos)[:50]
        raise InvalidInputError(f"kappa_pos of a card must be positive and finite, but is {got}.")
    for mass, share in values["coverage"].items():
        if not _between(mass, 0.0, 1.0) or not (share in (0, 1) or _between(share, 0.0, 1.0)):
            raise InvalidInputError(
                "coverage of a card maps masses between 0 and 1 to measured shares, but has "
                f"{str(mass)[:50]}: {str(share)[:50]}."
            )


def _coverage_table(coverage: Mapping[float, float]) -> str:
    if not coverage:
        return "Not measured."
    head = ["| mass of the predictive cap | share of partners inside |", "|---|---|"]
    rows = [f"| {mass:g} | {share:.3f} |" for mass, share in sorted(coverage.items())]
    return "\n".join(head + rows)


def _plain(text: str) -> str:
    """The text on one line, without invisible characters."""
    shown = (" " if unicodedata.category(c)[0] == "C" or c in "\u2028\u2029" else c for c in text)
    return " ".join("".join(shown).split())


def _escaped(text: str) -> str:
    """The text as markdown that renders as exactly this text."""
    return _PUNCTUATION.sub(r"\\\1", _plain(text))


def _between(value: Any, low: float, high: float) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and low < value < high
