"""Model cards: the README.md of a saved model, with its data, its measured coverage and its limits.

Written by hand and not with ``huggingface_hub.ModelCard``, because heads are saved without the extra ``hub`` too.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aureole.errors import InvalidInputError

_LONGEST = 2000  # characters of a text

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

{notes}
"""


@dataclass(frozen=True)
class Card:
    """The statements of a model's authors; every field is optional. Texts are written as they are, on one line.

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
        for key in ("name", "data", "licence", "notes"):
            value = getattr(self, key)
            if not isinstance(value, str) or len(value) > _LONGEST:
                raise InvalidInputError(
                    f"{key} of a card must be a text of at most {_LONGEST} characters, but is {str(value)[:50]!r}."
                )
        if self.kappa_pos is not None and not _between(self.kappa_pos, 0.0, math.inf):
            got = str(self.kappa_pos)[:50]
            raise InvalidInputError(
                f"kappa_pos of a card must be positive and finite, but is {got}."
            )
        for mass, share in self.coverage.items():
            if not _between(mass, 0.0, 1.0) or not (share in (0, 1) or _between(share, 0.0, 1.0)):
                raise InvalidInputError(
                    "coverage of a card maps masses between 0 and 1 to measured shares, but has "
                    f"{str(mass)[:50]}: {str(share)[:50]}."
                )

    def as_json(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        return vars(self) | {"coverage": [[float(m), float(s)] for m, s in self.coverage.items()]}

    @classmethod
    def from_json(cls, values: Any) -> "Card":
        """Return the card from the output of ``as_json``; raises for anything else."""
        try:
            coverage = {float(mass): float(share) for mass, share in values["coverage"]}
            return cls(**values | {"coverage": coverage})
        except (TypeError, ValueError, KeyError) as error:
            raise InvalidInputError(f"the card of a saved model is damaged: {error}") from error


def model_card(card: Card, *, format: str, dim: int, usage: Sequence[str]) -> str:
    """Return the card as markdown with YAML front matter: the README.md of a model repository.

    ``usage`` are the lines of Python that load and use the model.

    Examples
    --------
    >>> usage = ["import aureole as au", 'encoder = au.PosteriorEncoder.load("folder")']
    >>> text = model_card(Card(name="Birds", kappa_pos=20.0), format="f-1", dim=16, usage=usage)
    >>> print(text.splitlines()[5])
    # Birds
    """
    name, data, licence, notes = (
        " ".join(text.split()) for text in (card.name, card.data, card.licence, card.notes)
    )
    table = ["| mass of the predictive cap | share of partners inside |", "|---|---|"]
    table += [f"| {mass:g} | {share:.3f} |" for mass, share in sorted(card.coverage.items())]
    return (
        _TEMPLATE.format(
            licence_entry=f"license: {json.dumps(licence)}\n" if licence else "",  # JSON is YAML
            name=name or Card().name,
            dim=dim,
            usage="\n".join(usage),
            data=data or "not stated",
            kappa_pos="not stated" if card.kappa_pos is None else f"{card.kappa_pos:g}",
            licence=licence or "not stated",
            format=format,
            coverage="\n".join(table) if card.coverage else "Not measured.",
            notes=f"## Notes\n\n{notes}" if notes else "",
        ).rstrip()
        + "\n"
    )


def _between(value: Any, low: float, high: float) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and low < value < high
