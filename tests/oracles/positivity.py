"""Reference values of the expected positivity, stored in positivity.json.

``python -m tests.oracles.positivity`` sums the series in mpmath with 400 digits, where its cancellation does not
matter. A test compares a part of the grid with ``by_quadrature``, the definition as a plain double integral.
Nothing here imports aureole.
"""

import itertools
import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import mpmath as mp
import numpy as np
from scipy import special

DIMS = (2, 3, 10, 16, 64, 512)
KAPPAS = (0.0, 1.0, 16.0, 100.0, 1e4, mp.inf)
KAPPA_POS = (1.0, 20.0, 200.0)
COSINES = (-1.0, -0.99, -0.5, 0.0, 0.3, 0.9, 0.999, 1.0)
PATH = Path(__file__).with_name("positivity.json")
DIGITS = 400


def ratio_table(dim, kappa, count):
    """(A_l, A_l') for l < count, by the downward recurrence from far above."""
    order = mp.mpf(dim) / 2 - 1
    if kappa == mp.inf:
        return [mp.mpf(1)] * count, [mp.mpf(0)] * count
    if kappa == 0:
        slopes = [mp.mpf(0)] * count
        slopes[1] = 1 / mp.mpf(dim)
        return [mp.mpf(1)] + [mp.mpf(0)] * (count - 1), slopes
    kappa = mp.mpf(kappa)
    start = count + 1
    r = mp.besseli(order + start + 1, kappa) / mp.besseli(order + start, kappa)
    steps = []
    for j in range(start - 1, -1, -1):
        r = 1 / (2 * (order + j + 1) / kappa + r)
        steps.append(r)
    steps = steps[::-1]
    values = [mp.mpf(1)]
    for step in steps[: count - 1]:
        values.append(values[-1] * step)
    slopes = [a * (j / kappa + steps[j] - steps[0]) for j, a in enumerate(values)]
    return values, slopes


def weights(dim, count):
    if dim == 2:
        return [mp.mpf(1)] + [mp.mpf(2)] * (count - 1)
    lam = mp.mpf(dim) / 2 - 1
    found, c = [], mp.mpf(1)
    for j in range(count):
        found.append((j + lam) / lam * c)
        c *= (j + 2 * lam) / (j + 1)
    return found


def gegenbauer(dim, c, count):
    """(G_l(c), G_l'(c)) by the recurrence and its derivative."""
    c = mp.mpf(c)
    g, d = [mp.mpf(1), c], [mp.mpf(0), mp.mpf(1)]
    for n in range(1, count - 1):
        a, b = mp.mpf(2 * n + dim - 2) / (n + dim - 2), mp.mpf(n) / (n + dim - 2)
        g.append(a * c * g[n] - b * g[n - 1])
        d.append(a * (g[n] + c * d[n]) - b * d[n - 1])
    return g, d


def entries(dim):
    """[c, k1, k2, kpos, log S h, and its derivatives in c, k1 and kpos] for one dimension."""
    with mp.workdps(DIGITS):
        count = 900
        w = weights(dim, count)
        tables = {k: ratio_table(dim, k, count) for k in (*KAPPAS, *KAPPA_POS)}
        basis = {c: gegenbauer(dim, c, count) for c in COSINES}
        found = []
        pairs = itertools.combinations_with_replacement(KAPPAS, 2)
        for (k1, k2), kpos in itertools.product(pairs, KAPPA_POS):
            (a1, d1), (a2, _), (ap, dp) = tables[k1], tables[k2], tables[kpos]
            base = [x * y for x, y in zip(w, a2, strict=True)]
            series = {
                "value": [b * x * y for b, x, y in zip(base, a1, ap, strict=True)],
                "k1": [b * x * y for b, x, y in zip(base, d1, ap, strict=True)],
                "kpos": [b * x * y for b, x, y in zip(base, a1, dp, strict=True)],
            }
            for c in COSINES:
                g, d = basis[c]
                h = mp.fdot(series["value"], g)
                slopes = [
                    mp.fdot(series["value"], d),
                    *(mp.fdot(series[n], g) for n in ("k1", "kpos")),
                ]
                row = [mp.log(h), *(s / h for s in slopes)]
                found.append([c, float(k1), float(k2), kpos, *(float(x) for x in row)])
        return found


def by_quadrature(dim, c, k1, k2, kpos, n=400):
    """log S h by the definition: z at angle theta from mu1 and psi around it, z+ integrated in closed form."""
    nodes, weight = np.polynomial.legendre.leggauss(n)
    theta, log_w = (nodes + 1) * np.pi / 2, np.log(weight * np.pi / 2)
    psi, log_v = theta, log_w
    order = dim / 2 - 1

    def log_f(x):  # log of Gamma(v+1) (2/x)^v I_v(x)
        return (
            np.log(special.ive(order, x)) + x + special.gammaln(order + 1) - order * np.log(x / 2)
        )

    t, w = np.cos(theta)[:, None], np.cos(psi)[None]
    s = c * t + np.sqrt(1 - c * c) * np.sin(theta)[:, None] * w
    length = np.sqrt(np.maximum(k2**2 + kpos**2 + 2 * k2 * kpos * s, 1e-300))
    around = (dim - 3) * np.log(np.sin(psi))[None] + log_v[None]
    along = (dim - 2) * np.log(np.sin(theta))[:, None] + log_w[:, None] + k1 * t
    total = special.logsumexp(along + around + log_f(length))
    norm = special.logsumexp(around) + special.logsumexp(along)
    return total - norm - log_f(k2) - log_f(kpos)


def load():
    return json.loads(PATH.read_text())


def main():
    with ProcessPoolExecutor(2) as pool:
        PATH.write_text(
            json.dumps(dict(zip(map(str, DIMS), pool.map(entries, DIMS), strict=True))) + "\n"
        )


if __name__ == "__main__":
    main()
