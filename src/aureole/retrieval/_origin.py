"""Origin: what made the posteriors of a gallery, so that queries are made by the same."""

import json
import math
from dataclasses import asdict, dataclass
from numbers import Real

from aureole.errors import InvalidInputError

_FORMAT = "aureole-origin-1"


@dataclass(frozen=True)
class Origin:
    """The ``kappa_pos`` of the model that made a gallery's posteriors, and the SHA-256 of its weights, where known.

    Directions of two heads have nothing to do with each other: a query made by other weights finds nonsense.

    Examples
    --------
    >>> Origin.from_json(Origin(64.0).to_json())
    Origin(kappa_pos=64.0, weights=None)
    """

    kappa_pos: float | int | None = None  # kept as a float
    weights: str | None = None

    def __post_init__(self) -> None:
        if self.kappa_pos is not None:
            number = isinstance(self.kappa_pos, Real) and not isinstance(self.kappa_pos, bool)
            if not number or not 0 <= self.kappa_pos < math.inf:
                raise InvalidInputError(
                    f"kappa_pos must be finite and at least 0, or None, but is {self.kappa_pos!r}."
                )
            object.__setattr__(self, "kappa_pos", float(self.kappa_pos))
        if not isinstance(self.weights, str | None):
            raise InvalidInputError(f"weights must be a text or None, but is {self.weights!r}.")

    def check_same(self, weights: str, who: str) -> None:
        """Refuse a model whose weights are known to be others than the gallery's; ``who`` names it in the error."""
        if self.weights is not None and weights != self.weights:
            raise InvalidInputError(
                f"{who} is not what made this gallery (its weights differ), so its directions mean something else. "
                "Give the one that the gallery was built with, or build the gallery anew."
            )

    def to_json(self) -> str:
        """As text, for an index to keep."""
        return json.dumps({"format": _FORMAT, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> "Origin":
        """From text that may come from anywhere."""
        try:
            values = json.loads(text)
            if values["format"] != _FORMAT:
                raise ValueError("another format")
            return cls(values["kappa_pos"], values["weights"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(f"this is no saved origin: {error!r}.") from error
