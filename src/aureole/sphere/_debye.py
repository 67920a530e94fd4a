r"""Debye's uniform expansion of the modified Bessel function, for orders of at least 24 and every argument.

.. math:: \log I_v(vz) = v\eta - \tfrac12\log(2\pi v) - \tfrac14\log(1 + z^2) + \sum_j d_j(p)\,v^{-j},
          \qquad p = 1/\sqrt{1 + z^2},

with twelve polynomials :math:`d_j` (NIST Digital Library of Mathematical Functions, section 10.41), which is exact to
rounding from order 24 on. Everything is written for :math:`F_v` and :math:`r_v` of :mod:`aureole.sphere._bessel`, so
that nothing is singular at k = 0, with the polynomials collected for one order.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

LOWEST_ORDER = 24
_TERMS = 12


def log_f_debye(order: float, k: Tensor, scaled: bool) -> Tensor:
    """The log of F_v(k), less k when scaled."""
    z = k / order
    s = torch.hypot(torch.ones_like(z), z)
    p = 1 / s
    s_minus_1 = z * (z / (1 + s))
    leading = -(z + s_minus_1) / (s + z) if scaled else s_minus_1  # s - 1 - z, or s - 1
    correction = (s_minus_1 * p) * _horner(_debye_polynomials(order)[0], p)
    return (
        order * (leading - torch.log1p(s_minus_1 / 2)) - 0.5 * torch.log1p(s_minus_1) + correction
    )


def rho_debye(order: float, k: Tensor) -> Tensor:
    """The ratio r_v(k) / k."""
    p = _debye_p(order, k)
    return p * (1 / (1 + p) - _horner(_debye_polynomials(order)[1], p)) / order


def complement_debye(order: float, k: Tensor) -> Tensor:
    """The complement 1 - r_v(k)."""
    p = _debye_p(order, k)
    y = (k / order) * p
    return (p + p * p / (1 + y)) / (1 + p) + y * _horner(_debye_polynomials(order)[1], p)


def slope_debye(order: float, k: Tensor) -> Tensor:
    """The derivative r_v'(k)."""
    p = _debye_p(order, k)
    return p * (p / (1 + p) - _horner(_debye_polynomials(order)[2], p)) / order


def _debye_p(order: float, k: Tensor) -> Tensor:
    z = k / order
    return 1 / torch.hypot(torch.ones_like(z), z)


def _horner(coefficients: Sequence[float], x: Tensor) -> Tensor:
    last, *others = reversed(coefficients)
    value = torch.full_like(x, last)
    for coefficient in others:
        value = (value * x).add_(coefficient)
    return value


def _debye_polynomials(order: float) -> tuple[tuple[float, ...], ...]:
    """The coefficients for one order, which torch.compile is to take as constants and not to trace."""
    return _collect_debye(order)


# what torch.compiler.assume_constant_result sets, without importing the compiler's second of modules
_debye_polynomials._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


@lru_cache(maxsize=512)
def _collect_debye(order: float) -> tuple[tuple[float, ...], ...]:
    r"""Coefficients in p of three polynomials, given d_j of ``_log_debye`` and one order v.

    With :math:`d(p) = \sum_j d_j(p) v^{-j}` and :math:`P(p) = (p^2/2 + p^3 d'(p))/v`:
    :math:`(d(p) - d(1))/(1 - p)`, :math:`P(p)/p` and :math:`(P - (1 - p^2) p P')/p`.
    """
    v = Fraction(order)
    d = [Fraction(0)] * (3 * _TERMS + 1)
    for j, polynomial in enumerate(_log_debye(), start=1):
        for power, coefficient in polynomial.items():
            d[power] += coefficient / v**j
    quotient = [-sum(d[power + 1 :], Fraction(0)) for power in range(len(d) - 1)]
    big_p = [Fraction(0)] * (len(d) + 2)
    big_p[2] = Fraction(1, 2)
    for power in range(1, len(d)):
        big_p[power + 2] += power * d[power]
    big_p = [c / v for c in big_p]
    slope = [Fraction(0)] * (len(big_p) + 2)
    for power, c in enumerate(big_p):
        slope[power] += (1 - power) * c
        slope[power + 2] += power * c
    return tuple(_trimmed([float(c) for c in p]) for p in (quotient, big_p[1:], slope[1:]))


def _trimmed(coefficients: list[float]) -> tuple[float, ...]:
    """The coefficients without the last ones that no rounding shows: at high orders most of them."""
    last = max((i for i, c in enumerate(coefficients) if abs(c) > 1e-20), default=0)
    return tuple(coefficients[: last + 1])


@lru_cache(maxsize=1)
def _log_debye() -> list[dict[int, Fraction]]:
    """Polynomials d_1, d_2, ... (power: coefficient) with log sum_j u_j(p) v^-j = sum_j d_j(p) v^-j."""
    u: list[dict[int, Fraction]] = [{0: Fraction(1)}]
    d: list[dict[int, Fraction]] = [{}]
    for j in range(1, _TERMS + 1):
        # u_(j+1) = (p^2 - p^4) u_j' / 2 + (1/8) integral of (1 - 5 p^2) u_j
        new: dict[int, Fraction] = {}
        for n, c in u[-1].items():
            new[n + 1] = new.get(n + 1, Fraction(0)) + c * (
                Fraction(n, 2) + Fraction(1, 8 * (n + 1))
            )
            new[n + 3] = new.get(n + 3, Fraction(0)) - c * (
                Fraction(n, 2) + Fraction(5, 8 * (n + 3))
            )
        u.append(new)
        # j d_j = j u_j - sum_i i d_i u_(j-i)
        log_term = dict(new)
        for i in range(1, j):
            for n, c in d[i].items():
                for m, e in u[j - i].items():
                    log_term[n + m] = log_term.get(n + m, Fraction(0)) - Fraction(i, j) * c * e
        d.append({n: c for n, c in log_term.items() if c})
    return d[1:]
