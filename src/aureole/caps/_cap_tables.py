r"""Tables of caps: the angle of a cap as a polynomial in log kappa, so that a query costs microseconds.

Per mass, :math:`\log\theta(\kappa)` is a polynomial in :math:`\log(\kappa + D/2)`, in which it is nearly linear at both
ends, through Chebyshev points: one polynomial for kappa from 0 to 1e8 for credible caps, one per cell of that axis for
predictive caps. The first call computes a table; later calls evaluate it. A tabulated angle is widened by a margin
larger than its error, so it is never smaller than the solution.
Where a polynomial would be less accurate than that, the caps are solved for one by one.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from aureole.sphere import cap_angle, predictive_angle

_DEGREES = (192, 768)  # of the polynomials; the second is for credible caps at D < 6
_TABULATED_MASSES = (1e-3, 1 - 1e-4)
_MAX_KAPPA = 1e8  # caps of larger kappas are solved for
_TAIL = 1e-11  # largest of the last coefficients of a table that is used
_MARGIN = 1e-9  # relative widening of tabulated angles, more than their error
_CELL, _CELL_DEGREE = (
    0.5,
    14,
)  # of log(kappa + D/2), and of the polynomials of predictive caps in it
_CELL_TAIL, _PREDICTIVE_MARGIN = 1e-9, 1e-8  # predictive angles are solved less accurately
_LARGEST_LAW = (
    128  # kappa_pos / D above which predictive caps are solved for, since they are expensive
)
_ROUNDING = 1e-13  # coefficients at the end of a table that are smaller are left out


class PartnerLaw(NamedTuple):
    """The law of a partner's direction: its own concentration, ``kappa_pos`` and the dimension."""

    kappa_other: float
    kappa_pos: float
    dim: int


def credible_cosines(
    kappa: Float[np.ndarray, " n"], masses: tuple[float, ...], dim: int
) -> Float[np.ndarray, "n m"]:
    r"""The smallest cosine inside the credible caps of some masses, a row per kappa, from a cached table.

    The first call for some masses computes the table, at about twice the cost of solving for one kappa with
    ``sphere.cap_angle``. A tabulated angle is larger than the solution by at most 2e-9 of it. Masses below 0.001 or
    above 0.9999 (except 1), kappas above 1e8 and masses whose polynomial would be less accurate are solved for.

    Examples
    --------
    >>> credible_cosines(np.array([24.0, 200.0]), (0.5, 0.9), dim=10).round(4)
    array([[0.8391, 0.7176],
           [0.9793, 0.9636]])
    """
    cosines = np.empty((len(kappa), len(masses)))
    inside = (kappa >= 0) & (kappa <= _MAX_KAPPA)
    if not inside.all():
        cosines[inside] = credible_cosines(kappa[inside], masses, dim)
        cosines[~inside] = _solved_cosines(kappa[~inside], masses, dim)
        return cosines
    tables = _credible_tables(masses, dim)
    x = _position(kappa, dim)
    unsolved = []
    for column, table in enumerate(tables):
        if table:
            cosines[:, column] = _tabulated_cosines(x, table)
        else:
            unsolved.append(column)
    if unsolved:
        cosines[:, unsolved] = _solved_cosines(kappa, tuple(masses[i] for i in unsolved), dim)
    return cosines


def predictive_cosines(
    kappa: Float[np.ndarray, " n"], mass: float, law: PartnerLaw
) -> Float[np.ndarray, " n"]:
    """The smallest cosine inside the predictive cap of a mass, for each kappa, from cached tables.

    A table holds the kappas of one cell of the axis, whose ends are a factor of 1.6 apart at most, since these caps are
    more expensive: the first kappa of a cell costs 15 solutions, 20 ms to a second in all, and the others microseconds.
    A tabulated angle is larger than the solution by at most 2e-8 of it. Masses below 0.001 or above 0.9999, kappas
    above 1e8, kappa_pos above 128 D and cells in which a polynomial would be less accurate are solved for, each kappa
    once. Mass 1 is the whole sphere.

    Examples
    --------
    >>> predictive_cosines(np.array([24.0, 200.0]), 0.9, PartnerLaw(24.0, 20.0, 10)).round(4)
    array([0.2817, 0.4312])
    """
    if mass == 1:  # not where the density underflows
        return np.full(len(kappa), -1.0)
    first, last = _TABULATED_MASSES
    cells, place = np.full(len(kappa), -1), np.zeros(len(kappa))
    if first <= mass <= last and law.kappa_pos <= _LARGEST_LAW * law.dim:
        inside = (kappa >= 0) & (kappa <= _MAX_KAPPA)
        place = np.log1p(np.where(inside, kappa, 0.0) * 2 / law.dim) / _CELL
        cells = np.where(inside, place.astype(np.int64), -1)
    cosines = np.empty(len(kappa))
    for cell in np.unique(cells).tolist():
        rows = np.flatnonzero(cells == cell)
        table = _predictive_table(mass, law, cell) if cell >= 0 else []
        if table:
            x = 2 * (place[rows] - cell) - 1
            cosines[rows] = _tabulated_cosines(x, table)
        else:
            cosines[rows] = [_solved_predictive(mass, k, law) for k in kappa[rows].tolist()]
    return cosines


def _position(kappa: np.ndarray, dim: int) -> Any:
    """Kappa on the axis of a table, [-1, 1]; one kappa as a float, which is faster."""
    low, half = _span(dim)
    x = (np.log(kappa + dim / 2) - low) / half - 1
    return x.item() if len(x) == 1 else x


def _span(dim: int) -> tuple[float, float]:
    """(Lower end, half the length) of the range of log(kappa + D/2) of a table."""
    low = math.log(dim / 2)
    return low, (math.log(_MAX_KAPPA + dim / 2) - low) / 2


def _tabulated_cosines(x: Any, table: list[float]) -> Any:
    return np.cos(np.minimum(np.exp(_chebyshev_sum(x, table)), math.pi))


def _chebyshev_sum(x: Any, coefficients: list[float]) -> Any:
    """Clenshaw's recurrence; the same bits for a float, which is faster, as for an entry of an array."""
    first = second = 0.0 * x
    twice = 2.0 * x
    for c in reversed(coefficients):
        first, second = c + (twice * first - second), first
    return first - x * second


def _coefficients(
    log_angles: Callable[[Tensor], np.ndarray],
    degree: int,
    *,
    span: tuple[float, float],
    dim: int,
    margin: float,
) -> np.ndarray:
    """The Chebyshev coefficients [m, degree + 1] of log angles [m] plus the margin, over a span of log(kappa + D/2)."""
    low, half = span
    orders = np.arange(degree + 1)
    nodes = (orders + 0.5) * np.pi / (degree + 1)
    kappa = torch.from_numpy(np.exp(low + half * (np.cos(nodes) + 1)) - dim / 2).clamp_min(0)
    with torch.no_grad():
        values = log_angles(kappa)
    tables = 2 / (degree + 1) * values @ np.cos(np.outer(nodes, orders))
    tables[:, 0] = tables[:, 0] / 2 + margin
    return tables


def _cut(table: np.ndarray) -> list[float]:
    """A table without the coefficients at its end that are rounding errors."""
    return table[: np.flatnonzero(np.abs(table) > _ROUNDING)[-1] + 1].tolist()


def _solved_cosines(kappa: np.ndarray, masses: tuple[float, ...], dim: int) -> np.ndarray:
    """Credible caps without a table."""
    with torch.no_grad():
        levels = torch.tensor(masses, dtype=torch.float64)
        return torch.cos(cap_angle(levels[:, None], torch.from_numpy(kappa), dim)).T.numpy()


@lru_cache(maxsize=2**8)
def _credible_tables(masses: tuple[float, ...], dim: int) -> list[list[float]]:
    """For each mass, the coefficients of the log angle; none if they would not be accurate enough."""
    levels = torch.tensor(masses, dtype=torch.float64)
    first, last = _TABULATED_MASSES
    tabulated = ((levels >= first) & (levels <= last) | (levels == 1)).numpy()
    found: list[list[float]] = [[] for _ in masses]

    def log_angles(kappa: Tensor) -> np.ndarray:
        values = torch.log(cap_angle(levels[:, None], kappa, dim)).numpy()
        values[~tabulated] = 0.0  # of mass 0 it is -inf
        return values

    for degree in _DEGREES if tabulated.any() else ():
        tables = _coefficients(log_angles, degree, span=_span(dim), dim=dim, margin=_MARGIN)
        accurate = tabulated & (np.abs(tables[:, -8:]).max(-1) <= _TAIL)
        for row in np.flatnonzero(accurate).tolist():
            found[row] = found[row] or _cut(tables[row])
        if (accurate | ~tabulated).all():
            break
    return found


@lru_cache(maxsize=2**12)
def _predictive_table(mass: float, law: PartnerLaw, cell: int) -> list[float]:
    """The coefficients of the log angle in a cell; none if they would not be accurate enough."""

    def log_angles(kappa: Tensor) -> np.ndarray:
        other = torch.tensor(law.kappa_other, dtype=torch.float64)
        return torch.log(predictive_angle(mass, kappa, other, law.kappa_pos, law.dim)).numpy()[None]

    span = math.log(law.dim / 2) + cell * _CELL, _CELL / 2
    (table,) = _coefficients(
        log_angles, _CELL_DEGREE, span=span, dim=law.dim, margin=_PREDICTIVE_MARGIN
    )
    return table.tolist() if np.abs(table[-2:]).max() <= _CELL_TAIL else []


@lru_cache(maxsize=2**16)
def _solved_predictive(mass: float, kappa: float, law: PartnerLaw) -> float:
    """A predictive cap without a table; cached, since it is expensive and queries repeat."""
    own, other = (torch.tensor([k], dtype=torch.float64) for k in (kappa, law.kappa_other))
    with torch.no_grad():
        return math.cos(predictive_angle(mass, own, other, law.kappa_pos, law.dim).item())
