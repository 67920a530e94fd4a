"""Training phases and their learning rates, which are functions of the step, so checkpoints need not store them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from aureole.errors import InvalidInputError
from aureole.models._encoders import Part


@dataclass(frozen=True)
class Phase:
    """A number of steps that train one part of the encoder ("mu", "kappa" or "joint") at a learning rate.

    The shape "one-cycle" warms up over the first 5 % of the steps (at least 50 steps, at most a quarter) and then
    decays to zero along a cosine; "constant" keeps the rate.
    """

    part: Part
    steps: int
    lr: float
    shape: Literal["one-cycle", "constant"] = "one-cycle"

    def rate(self, step: int) -> float:
        """The learning rate of a step, 0 <= step < steps, as a fraction of ``lr``.

        Examples
        --------
        >>> phase = Phase("joint", 1000, 1e-3)
        >>> [round(phase.rate(step), 3) for step in (0, 50, 500, 999)]
        [0.04, 1.0, 0.541, 0.0]
        """
        if self.shape == "constant":
            return 1.0
        warm = max(self.steps // 20, min(50, self.steps // 4))
        if step < warm:
            return 0.04 + 0.96 * (1 - math.cos(math.pi * step / warm)) / 2
        return (1 + math.cos(math.pi * (step - warm) / max(1, self.steps - warm))) / 2


def locate(phases: Sequence[Phase], step: int) -> tuple[int, int]:
    """The index of the phase and the step within it, for a step counted from the start.

    Examples
    --------
    >>> locate([Phase("mu", 35, 1e-3), Phase("joint", 65, 1e-3)], 40)
    (1, 5)
    """
    for index, phase in enumerate(phases):
        if step < phase.steps:
            return index, step
        step -= phase.steps
    raise InvalidInputError(f"step {step} is beyond the end of the last phase.")
