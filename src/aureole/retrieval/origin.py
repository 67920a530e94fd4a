"""Origin: what made the posteriors of a gallery, so that queries are made by the same."""

import json
import math
from dataclasses import asdict, dataclass

from aureole.errors import InvalidInputError

__all__ = ["Origin"]

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

    kappa_pos: float | None = None
    weights: str | None = None

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
            kappa_pos, weights = values["kappa_pos"], values["weights"]
            good = kappa_pos is None or (type(kappa_pos) is float and 0 <= kappa_pos < math.inf)
            if values["format"] != _FORMAT or not good or not isinstance(weights, str | None):
                raise ValueError("a format, kappa_pos or weights of another kind")
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(f"this is no saved origin: {error!r}.") from error
        return cls(kappa_pos, weights)
