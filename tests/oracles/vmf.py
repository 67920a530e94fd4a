"""Reference values of the vMF from mpmath at 50 digits, stored in vmf.json.

``python -m tests.oracles.vmf`` computes them anew (ten minutes on two cores); a test computes a sample of them live.
The formulas are the textbook's, by mpmath's own Bessel functions and quadrature: nothing here imports aureole.
"""

import json
import math
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import mpmath as mp

DIMS = (2, 3, 4, 8, 10, 16, 64, 128, 512, 768, 2048, 4096)
KAPPAS = (0.0, 1e-6, 1e-3, 1.0, 10.0, 50.0, 100.0, 1e3, 1e4, 1e6)
MASSES = ("0.000001", "0.05", "0.5", "0.95", "0.999999")
PATH = Path(__file__).with_name("vmf.json")
DIGITS = 50


def log_area(dim):
    return mp.log(2) + mp.mpf(dim) / 2 * mp.log(mp.pi) - mp.loggamma(mp.mpf(dim) / 2)


def log_normalizer(dim, kappa):
    """log C_D(kappa) by the definition with I_(D/2-1)."""
    if kappa == 0:
        return -log_area(dim)
    order = mp.mpf(dim) / 2 - 1
    kappa = mp.mpf(kappa)
    return (
        order * mp.log(kappa)
        - mp.mpf(dim) / 2 * mp.log(2 * mp.pi)
        - mp.log(mp.besseli(order, kappa))
    )


def mean_resultant_length(dim, kappa):
    if kappa == 0:
        return mp.mpf(0)
    order, kappa = mp.mpf(dim) / 2 - 1, mp.mpf(kappa)
    return mp.besseli(order + 1, kappa) / mp.besseli(order, kappa)


def variance(dim, kappa):
    """Var[mu.z] = 1 - A^2 - (D-1) A / kappa."""
    if kappa == 0:
        return 1 / mp.mpf(dim)
    length = mean_resultant_length(dim, kappa)
    return 1 - length**2 - (dim - 1) * length / mp.mpf(kappa)


def entropy(dim, kappa):
    return -log_normalizer(dim, kappa) - mp.mpf(kappa) * mean_resultant_length(dim, kappa)


class AngleLaw:
    """Density of the angle and integrals of it, by mpmath's quadrature over its bulk."""

    def __init__(self, dim, kappa):
        self.dim, self.kappa = dim, mp.mpf(kappa)
        self.log_c = log_normalizer(dim, kappa) + log_area(dim - 1) + self.kappa
        self.length = mean_resultant_length(dim, kappa)
        self.low, self.high = self._bulk()

    def density(self, theta):
        height = 2 * mp.sin(theta / 2) ** 2
        return mp.sin(theta) ** (self.dim - 2) * mp.exp(self.log_c - self.kappa * height)

    def _bulk(self):
        """Angles between which the density is above e^-140 of its mode, by bisection in plain floats."""
        kappa, power = float(self.kappa), self.dim - 2

        def log_density(x):
            logs = power * math.log(math.sin(x)) if power else 0.0
            return logs - 2 * kappa * math.sin(x / 2) ** 2

        cosine = 2 * kappa / (power + math.hypot(power, 2 * kappa)) if kappa else 0.0
        mode = math.acos(min(cosine, 1 - 1e-15)) if power else 1e-30
        ends = []
        for end in (1e-30, math.pi - 1e-15):
            inner, outer = mode, end
            if log_density(mode) - log_density(end) > 140:
                for _ in range(60):
                    middle = (inner + outer) / 2
                    if log_density(mode) - log_density(middle) > 140:
                        outer = middle
                    else:
                        inner = middle
                ends.append(mp.mpf(outer))
            else:
                ends.append(mp.pi if end > 1 else mp.mpf(0))
        return ends

    def _points(self, theta):
        top = min(max(theta, self.low), self.high)
        n = max(1, math.ceil(12 * float((top - self.low) / (self.high - self.low))))
        return [self.low + (top - self.low) * j / n for j in range(n + 1)]

    def mass(self, theta):
        return mp.quad(self.density, self._points(theta), method="gauss-legendre")

    def mass_slope(self, theta):
        """d mass / d kappa: integral of (cos - A) times the density."""
        gap = 1 - self.length
        return mp.quad(
            lambda x: (gap - 2 * mp.sin(x / 2) ** 2) * self.density(x),
            self._points(theta),
            method="gauss-legendre",
        )

    def angle(self, mass):
        """The angle that encloses the mass: bisection to 1e-4 of the bulk in 20 digits, then Newton in full."""
        low, high = self.low, self.high
        with mp.workdps(20):
            for _ in range(14):
                middle = (low + high) / 2
                low, high = (middle, high) if self.mass(middle) < mass else (low, middle)
        theta = (low + high) / 2
        for _ in range(8):
            step = (self.mass(theta) - mass) / self.density(theta)
            theta -= step
            if abs(step) < theta * mp.mpf(10) ** -28:
                break
        return theta


def entry(dim, kappa):
    """All reference values for one (dim, kappa), as strings of 30 digits."""
    with mp.workdps(DIGITS):
        law = AngleLaw(dim, kappa)
        values = {
            "dim": dim,
            "kappa": kappa,
            "log_normalizer": log_normalizer(dim, kappa),
            "mean_resultant_length": mean_resultant_length(dim, kappa),
            "mean_resultant_complement": 1 - mean_resultant_length(dim, kappa),
            "variance": variance(dim, kappa),
            "entropy": entropy(dim, kappa),
        }
        caps = []
        for mass in MASSES:
            theta = law.angle(mp.mpf(mass))
            height = 2 * mp.sin(theta / 2) ** 2
            caps.append(
                {
                    "mass": mass,
                    "height": height,
                    "pdf": law.density(theta) / mp.sin(theta),
                    "slope": law.mass_slope(theta),
                }
            )

        def text(value):
            return mp.nstr(value, 30) if isinstance(value, mp.mpf) else value

        values = {name: text(value) for name, value in values.items()}
        values["caps"] = [{name: text(value) for name, value in cap.items()} for cap in caps]
        return values


def load():
    return json.loads(PATH.read_text())


def main():
    grid = [(dim, kappa) for dim in DIMS for kappa in KAPPAS]
    with ProcessPoolExecutor(2) as pool:
        futures = [pool.submit(entry, *point) for point in grid]
        entries = []
        for point, future in zip(grid, futures, strict=True):
            entries.append(future.result())
            print(*point, flush=True)
    PATH.write_text(json.dumps(entries, indent=0) + "\n")


if __name__ == "__main__":
    main()
