"""Reference values and gradients of the closed-form loss, stored in losses.json.

``python -m tests.oracles.losses`` computes them in ball arithmetic (python-flint, 192 bits), from the settings of
tests/losses/settings.py taken as exact: the positive integral over the angle between mu_2 and z, with Bessel functions
of flint. A part of the values is computed with two numbers of nodes, which must agree to 1e-27 or to 20 digits. It
resumes after an interruption.
Nothing here imports aureole.

An entry holds the loss, its derivatives in the cosines of the pairs and of the negatives, and those in the
concentrations. The gradient in mu follows from the derivatives in the cosines (``mu_gradients``).
"""

import json
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np

from tests.losses import settings

PATH = Path(__file__).with_name("losses.json")
COUNT = 300
SIZES = (8, 10)
BITS = 192
DEPTH = 70.0  # nats below the peak at which the window ends


def entry(index: int) -> dict:
    """The loss and its derivatives, as strings of 30 digits."""
    from flint import arb, ctx

    ctx.prec = BITS
    setting = settings.make(index, SIZES)
    groups = [
        (exact_matrix(mu), exact(kappa))
        for mu, kappa in zip(setting.leaves[::2], setting.leaves[1::2], strict=True)
    ]
    (anchor, own), (positive, partner) = groups[:2]
    n = len(own)
    rows = negative_rows(setting, groups)
    kappa_pos = arb(setting.kappa_pos)
    loss, pair_slopes, other_slopes = arb(0), [], []
    grads = [[arb(0)] * len(kappa) for _, kappa in groups]
    for i in range(n):
        check = index % 10 == i  # one row of each tenth setting
        rest = (kappa_pos, setting.dim, check)
        plus = log_h(cosine(anchor[i], positive[i]), own[i], partner[i], *rest)
        minus = [
            log_h(cosine(anchor[i], groups[g][0][j]), own[i], groups[g][1][j], *rest)
            for g, j in rows[i]
        ]
        ratios = [(value[0] - plus[0]).exp() for value in minus]
        total = sum(ratios, arb(0))
        loss += total.log1p()
        shares = [ratio / (1 + total) / n for ratio in ratios]
        plus_share = -total / (1 + total) / n
        pair_slopes.append(plus_share * plus[1])
        other_slopes.append([share * value[1] for share, value in zip(shares, minus, strict=True)])
        grads[0][i] += plus_share * plus[2]
        grads[1][i] += plus_share * plus[3]
        for share, value, (g, j) in zip(shares, minus, rows[i], strict=True):
            grads[0][i] += share * value[2]
            grads[g][j] += share * value[3]
    return {
        "index": index,
        "loss": text(loss / n),
        "pairs": [text(x) for x in pair_slopes],
        "others": [[text(x) for x in row] for row in other_slopes],
        "kappa": [[text(x) for x in row] for row in grads],
    }


def negative_rows(setting, groups):
    """(Group, place in it) of each anchor's negatives."""
    n = len(groups[0][1])
    if setting.negatives == "next":
        return [[(1, (i + 1) % n)] for i in range(n)]
    if setting.negatives == "all":
        return [[(1, j) for j in range(n) if j != i] for i in range(n)]
    m = setting.negative[1].shape[-1]
    first = 0 if setting.negatives == "shared" else m
    return [[(2, first * i + j) for j in range(m)] for i in range(n)]


def log_h(c, k1, k2, kappa_pos, dim, check):
    """(log S h, its derivatives in c, k1 and k2); with ``check`` compared with more nodes."""
    found = by_nodes(c, k1, k2, kappa_pos, dim, 0)
    if check:
        for one, other in zip(found, by_nodes(c, k1, k2, kappa_pos, dim, 1), strict=True):
            gap = abs(float((one - other).mid()))
            assert gap <= 1e-20 * abs(float(other.mid())) + 1e-27, (gap, c, k1, k2, kappa_pos, dim)
    return found


def by_nodes(c, k1, k2, kappa_pos, dim, extra):
    from flint import arb

    low, high = window(
        float(c.mid()), float(k1.mid()), float(k2.mid()), float(kappa_pos.mid()), dim
    )
    inner = low > 0 and high < np.pi
    order = arb(dim) / 2 - 1
    sums = [arb(0)] * 4
    norm1, slope1 = log_f(order, k1)
    norm2, slope2 = log_f(order, k2)
    norm3, _ = log_f(order, kappa_pos)
    sine_square = (1 - c) * (1 + c)
    if float(sine_square.mid()) < 1e-50:  # parallel vectors: 0, whose ball holds negative numbers
        sine_square = arb(0)
    peak = None
    for x, weight in nodes(inner, extra):
        phi = low + (arb(high) - low) * x
        sine, cosine_ = phi.sin(), phi.cos()
        across_log, across = log_f(order - arb(1) / 2, k1 * sine * sine_square.sqrt())
        length = (k2 * k2 + kappa_pos * kappa_pos + 2 * k2 * kappa_pos * cosine_).sqrt()
        along_log, along = log_f(order, length)
        value = k1 * c * cosine_ + across_log + along_log + (dim - 2) * sine.log()
        peak = value if peak is None else peak
        density = (value - peak).exp() * weight
        slopes = (
            k1 * cosine_ - c * (k1 * sine) ** 2 * across,
            c * cosine_ + k1 * sine**2 * sine_square * across - k1 * slope1,
            (k2 + kappa_pos * cosine_) * along - k2 * slope2,
        )
        for place, factor in enumerate((arb(1), *slopes)):
            sums[place] += density * factor
    # log(S_(D-1) / S_D) of the angle's density
    front = (arb(dim) / 2).lgamma() - ((arb(dim) - 1) / 2).lgamma() - arb.pi().log() / 2
    value = sums[0].log() + peak + (arb(high) - low).log() + front - norm1 - norm2 - norm3
    return [value, *(s / sums[0] for s in sums[1:])]


def log_f(order, k):
    """(log F_v(k), rho_v(k) = I_(v+1) / (k I_v)) with F_v(k) = Gamma(v+1) (2/k)^v I_v(k)."""
    from flint import ctx

    if abs(float(k.mid())) < 1e-9:  # the first terms of the power series
        square = k * k
        return square / (4 * (order + 1)), (1 - square / (4 * (order + 1) * (order + 2))) / (
            2 * (order + 1)
        )
    k = k.mid()  # its radius, 1e-50 of it, would be amplified where terms cancel
    for bits in (BITS, 2 * BITS, 8 * BITS, 32 * BITS):
        with ctx.workprec(bits):
            one, two = k.bessel_i(order), k.bessel_i(order + 1)
        if min(one.rel_accuracy_bits(), two.rel_accuracy_bits()) > 110:
            break
    else:
        raise ArithmeticError(f"I_{order}({k}) has lost its digits")
    return one.log() + (order + 1).lgamma() - order * (k / 2).log(), two / one / k


@lru_cache
def nodes(inner: bool, extra: int):
    """On [0, 1]: the trapezoidal rule where the integrand has vanished at both ends, else Gauss-Legendre."""
    from flint import arb

    if inner:
        n = (64, 81)[extra]
        return [((arb(i) + arb(1) / 2) / n, arb(1) / n) for i in range(n)]
    n = (160, 200)[extra]
    roots = [arb.legendre_p_root(n, i, weight=True) for i in range(n)]
    return [((1 + x) / 2, w / 2) for x, w in roots]


def window(c, k1, k2, kappa_pos, dim):
    """The angles outside of which the integrand is below exp(-DEPTH) of its peak, to double precision."""
    from scipy.special import ive

    gamma = np.arccos(np.clip(c, -1, 1))

    def log_value(phi):
        x, y = (
            k1 * np.sin(gamma) * np.sin(phi),
            np.sqrt(
                np.maximum((k2 - kappa_pos) ** 2 + 4 * k2 * kappa_pos * np.cos(phi / 2) ** 2, 0)
            ),
        )
        fall = -4 * k2 * kappa_pos * np.sin(phi / 2) ** 2 / (y + k2 + kappa_pos)
        with np.errstate(all="ignore"):
            value = log_scaled(dim / 2 - 1.5, x, ive) + log_scaled(dim / 2 - 1, y, ive)
            value += fall - 2 * k1 * np.sin((phi - gamma) / 2) ** 2
            return value + ((dim - 2) * np.log(np.sin(phi)) if dim > 2 else 0)

    low, high = 0.0, np.pi
    for _ in range(60):
        grid = np.linspace(low, high, 65)[1:-1]
        values = log_value(grid)
        kept = np.flatnonzero(values > np.nanmax(values) - DEPTH)
        step = (high - low) / 64
        new_low = low if kept[0] == 0 else grid[kept[0]] - step
        new_high = high if kept[-1] == 62 else grid[kept[-1]] + step
        if new_high - new_low > 0.9 * (high - low):
            break
        low, high = new_low, new_high
    return float(low), float(high)


def log_scaled(order, k, ive):
    """log F - k by scipy, or by the leading term of Debye's expansion where that under- or overflows."""
    from scipy.special import gammaln

    k = np.maximum(k, 1e-300)
    direct = np.log(ive(order, k)) + gammaln(order + 1) - order * np.log(k / 2)
    v = max(order, 0.5)
    s = np.hypot(1, k / v)
    debye = v * (s - 1 - np.log((1 + s) / 2)) - k - 0.5 * np.log(s)
    return np.where(np.isfinite(direct) & (ive(order, k) > 1e-290), direct, debye)


def exact(tensor):
    from flint import arb

    return [arb(float(x)) for x in tensor.reshape(-1)]


def exact_matrix(mu):
    """(Vector, its norm) per direction."""
    from flint import arb, arb_mat

    flat = mu.reshape(-1, mu.shape[-1])
    rows = [arb_mat(1, mu.shape[-1], [arb(float(x)) for x in row]) for row in flat]
    return [(row, (row * row.transpose())[0, 0].sqrt()) for row in rows]


def cosine(first, second):
    (a, norm_a), (b, norm_b) = first, second
    return (a * b.transpose())[0, 0] / (norm_a * norm_b)


def text(value):
    return value.mid().str(30, radius=False)


def extended(number: str) -> np.longdouble:
    """A stored number in extended precision; one too small for it, such as 1e-5128, is zero."""
    exponent = int(number.partition("e")[2] or 0)
    return np.longdouble(number) if exponent > -4900 else np.longdouble(0)


def mu_gradients(entry, setting):
    """The gradients in mu, [n, D], [n, D] and as the negatives, in extended precision from the stored slopes."""
    groups = [x.double().numpy().astype(np.longdouble) for x in setting.leaves[::2]]
    shapes = [g.shape for g in groups]
    flat = [g.reshape(-1, setting.dim) for g in groups]
    norms = [np.sqrt((g * g).sum(-1, keepdims=True)) for g in flat]
    units = [g / norm for g, norm in zip(flat, norms, strict=True)]
    grads = [np.zeros_like(g) for g in flat]

    def add(slope, one, other):
        a, b = units[one[0]][one[1]], units[other[0]][other[1]]
        c = (a * b).sum()
        for place, own, far in ((one, a, b), (other, b, a)):
            grads[place[0]][place[1]] += (
                extended(slope) * (far - c * own) / norms[place[0]][place[1]]
            )

    groups_of_kappa = [(None, k.reshape(-1)) for k in setting.leaves[1::2]]
    rows = negative_rows(setting, groups_of_kappa)
    for i, slope in enumerate(entry["pairs"]):
        add(slope, (0, i), (1, i))
        for other, value in zip(rows[i], entry["others"][i], strict=True):
            add(value, (0, i), other)
    return [g.reshape(shape) for g, shape in zip(grads, shapes, strict=True)]


def load() -> list[dict]:
    return json.loads(PATH.read_text())


def main() -> None:
    found = load() if PATH.exists() else []
    done = {e["index"] for e in found}
    for index in range(COUNT):
        if index not in done:
            found.append(entry(index))
            PATH.write_text("[\n" + ",\n".join(json.dumps(e) for e in found) + "\n]\n")
            print(
                index, settings.make(index, SIZES), found[-1]["loss"], file=sys.stderr, flush=True
            )


if __name__ == "__main__":
    main()
