"""Phases of training and their learning rates, as functions of the step: nothing to save, nothing to restore."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from aureole.errors import InvalidInputError
from aureole.models.encoders import Part

__all__ = ["Phase", "locate", "paper_phases", "three_phases"]


@dataclass(frozen=True)
class Phase:
    """A number of steps that train one part of the encoder.

    ``shape`` "one-cycle" warms up over the first twentieth and then falls to zero along a cosine; "steps" starts at the
    full rate and divides it by ten after each quarter of the phase, as in the paper.
    """

    part: Part
    steps: int
    lr: float
    shape: Literal["one-cycle", "steps"] = "one-cycle"

    def rate(self, step: int) -> float:
        """The learning rate of a step, 0 <= step < steps, as a fraction of ``lr``.

        Examples
        --------
        >>> phase = Phase("joint", 100, 1e-3)
        >>> [round(phase.rate(step), 3) for step in (0, 5, 50, 99)]
        [0.04, 1.0, 0.541, 0.0]
        """
        if self.shape == "steps":
            return 0.1 ** (4 * step // self.steps)
        warm = max(1, self.steps // 20)
        if step < warm:
            return 0.04 + 0.96 * (1 - math.cos(math.pi * step / warm)) / 2
        return (1 + math.cos(math.pi * (step - warm) / max(1, self.steps - warm))) / 2


def three_phases(steps: int, lr: float = 1e-3) -> list[Phase]:
    """First mu with one kappa for all (35 % of the steps), then kappa alone (20 %), then both at a third of the rate."""
    first, second = round(0.35 * steps), round(0.2 * steps)
    return [
        Phase("mu", first, lr),
        Phase("kappa", second, lr),
        Phase("joint", steps - first - second, lr / 3),
    ]


def paper_phases(steps: int, lr: float = 1e-4) -> list[Phase]:
    """The paper's: mu for the first half, kappa for the second; the rate falls by ten after each quarter of both."""
    first = steps // 2
    return [Phase("mu", first, lr, "steps"), Phase("kappa", steps - first, lr, "steps")]


def locate(phases: Sequence[Phase], step: int) -> tuple[int, int]:
    """(Index of the phase, step within it) of a step counted from the start.

    Examples
    --------
    >>> locate(three_phases(100), 40)
    (1, 5)
    """
    for index, phase in enumerate(phases):
        if step < phase.steps:
            return index, step
        step -= phase.steps
    raise InvalidInputError("the step lies beyond the last phase.")
