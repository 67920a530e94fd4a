"""Conformal calibration: predictive caps that hold partners as often as promised, even if the model is wrong."""

import json
import math
import warnings
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from aureole.caps._caps import check_mass
from aureole.distributions import VonMisesFisher
from aureole.engines._integrity import parse_note
from aureole.engines._schema import exact_cosines, stored_direction
from aureole.errors import AureoleWarning, DamagedGalleryError, InvalidInputError
from aureole.sphere import predictive_mass

_FORMAT = "aureole-conformal-1"
_BLOCK = 32


@dataclass(frozen=True)
class ConformalMass:
    r"""The mass with which predictive caps hold the partner of a new query with a given probability.

    For n held-out pairs, u is the predictive mass of the cap that just holds the partner. If the model were right, u
    would be uniform. Whether or not it is, the :math:`\lceil (n+1) p \rceil`-th smallest u is a mass whose caps hold
    the partner of a new pair, exchangeable with those held out, with probability at least p, and at most
    p + 1/(n+1) without ties. The guarantee is marginal: over pairs, not for each query. Since the mass is
    calibrated and not a cosine, a vague query keeps its wide cap.

    ``kappa_pos`` and ``kappa_other`` (one concentration for all partners, so that a query has one cap) are part of the
    calibration. For the guarantee to be exact they must not be fitted on the held-out pairs.

    Examples
    --------
    >>> scores = [i / 100 for i in range(1, 100)]
    >>> ConformalMass(scores, kappa_pos=20.0, kappa_other=24.0).level(0.9)
    0.9
    """

    scores: list[float]
    kappa_pos: float
    kappa_other: float

    def __post_init__(self) -> None:
        if not all(0 <= u <= 1 for u in self.scores) or list(self.scores) != sorted(self.scores):
            raise InvalidInputError("scores must be masses between 0 and 1 in ascending order.")
        if not (self.kappa_pos >= 0 and 0 <= self.kappa_other < math.inf):
            raise InvalidInputError(
                "kappa_pos must be at least 0 and kappa_other finite and at least 0, but they are "
                f"{self.kappa_pos} and {self.kappa_other}."
            )

    @classmethod
    def fit(
        cls,
        posterior: VonMisesFisher,
        partner: VonMisesFisher,
        kappa_pos: float,
        *,
        kappa_other: float | None = None,
        groups: Sequence[object] | None = None,
    ) -> "ConformalMass":
        """Calibrate on held-out pairs, one pair per group, with batch shape (n,).

        Two pairs of the same group (one product, one person) are not exchangeable with those of a new group, so
        ``groups``, if given, must be distinct. ``kappa_other`` defaults to the median of the partners' kappa. Cost:
        one series per pair.
        """
        if len(posterior.batch_shape) != 1 or partner.batch_shape != posterior.batch_shape:
            raise InvalidInputError(
                "fit needs one partner for each posterior, batch shapes (n,), but got "
                f"{tuple(posterior.batch_shape)} and {tuple(partner.batch_shape)}."
            )
        n = len(posterior.kappa)
        if groups is not None and (len(groups) != n or len(set(groups)) != n):
            raise InvalidInputError(
                f"the {n} pairs must come from {n} distinct groups, but there are {len(set(groups))} among "
                f"{len(groups)}. Keep one pair per group."
            )
        if kappa_other is None:
            kappa_other = float(partner.kappa.median()) if n else 1.0
        own, others = stored_direction(posterior.mu), stored_direction(partner.mu)
        cosine = [exact_cosines(a, b[None])[0] for a, b in zip(own, others, strict=True)]
        angle = torch.acos(torch.tensor(cosine, dtype=torch.float64))
        other = torch.tensor(kappa_other, dtype=torch.float64)
        with torch.no_grad():
            parts = zip(angle.split(_BLOCK), posterior.kappa.double().split(_BLOCK), strict=True)
            masses = [predictive_mass(a, k, other, kappa_pos, posterior.dim) for a, k in parts]
        scores = torch.cat(masses).clamp(0, 1).sort().values.tolist() if n else []
        return cls(scores, float(kappa_pos), float(kappa_other))

    def level(self, mass: float, *, quiet: bool = False) -> float:
        """The mass to search with; 1 (the whole sphere), with a warning, if there are too few pairs to guarantee it."""
        rank = math.ceil(round((len(self.scores) + 1) * check_mass(mass), 9))
        if rank <= len(self.scores):
            return self.scores[rank - 1] if rank else 0.0
        if not quiet:
            needed = math.ceil(round(mass / (1 - mass), 9)) if mass < 1 else None
            remedy = "No number of pairs is enough." if needed is None else f"Use {needed} or more."
            warnings.warn(
                f"{len(self.scores)} held-out pairs cannot guarantee mass {mass:g}: every item is returned. {remedy}",
                AureoleWarning,
                stacklevel=2,
            )
        return 1.0

    def coverage(self, mass: float) -> float:
        """The share of held-out pairs whose partner lay in the cap of ``mass`` before calibration.

        Examples
        --------
        >>> ConformalMass([0.2, 0.5, 0.95, 0.99], kappa_pos=20.0, kappa_other=24.0).coverage(0.9)
        0.5
        """
        if not self.scores:
            return math.nan
        return bisect_right(self.scores, check_mass(mass)) / len(self.scores)

    def to_json(self) -> str:
        """As JSON text, saved with the index."""
        return json.dumps({"format": _FORMAT, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> "ConformalMass":
        """From untrusted JSON text."""
        try:
            values = parse_note(text, "the note of the calibration")
            if values["format"] != _FORMAT:
                raise ValueError("another format")
            scores = [float(u) for u in values["scores"]]
            return cls(scores, float(values["kappa_pos"]), float(values["kappa_other"]))
        except DamagedGalleryError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DamagedGalleryError(f"not a saved calibration: {repr(error)[:200]}.") from error


def coverage_curve(calibration: ConformalMass | None) -> dict[str, Any]:
    """The claimed mass, the measured share of partners, and the calibrated mass, for masses from 5 to 99 %, as JSON.

    Examples
    --------
    >>> coverage_curve(None)
    {'available': False, 'pairs': 0, 'curve': []}
    """
    if calibration is None or not calibration.scores:
        return {"available": False, "pairs": 0, "curve": []}
    curve = [
        {
            "claimed": percent / 100,
            "measured": calibration.coverage(percent / 100),
            "level": calibration.level(percent / 100, quiet=True),
        }
        for percent in (*range(5, 100, 5), 99)
    ]
    return {"available": True, "pairs": len(calibration.scores), "curve": curve}
