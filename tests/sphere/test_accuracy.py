"""Values against mpmath at 50 digits over D = 2 ... 4096 and kappa = 0 ... 1e6, in float64 and float32."""

import mpmath as mp
import pytest
import torch

from aureole import sphere
from aureole.sphere import _normalizer
from aureole.sphere._cosine import cap_height, cap_mass_slope
from aureole.sphere._normalizer import mean_resultant_complement
from tests.oracles import vmf

ENTRIES = vmf.load()
IDS = [f"D{e['dim']}-k{e['kappa']:g}" for e in ENTRIES]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-7}  # what normalizer.py claims
MASS_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
FUNCTIONS = (
    "log_normalizer",
    "mean_resultant_length",
    "mean_resultant_complement",
    "entropy",
)


def exact(text):
    return mp.mpf(text)


def relative_error(value, text):
    """Relative error; absolute where the true value is exactly 0."""
    truth = exact(text)
    return float(abs(mp.mpf(float(value)) - truth) / (abs(truth) if truth != 0 else 1))


def ulp(x):
    return float(torch.nextafter(x.abs(), torch.tensor(torch.inf, dtype=x.dtype)) - x.abs())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_functions_of_kappa(entry, dtype, accuracy):
    with mp.workdps(50):
        kappa = torch.tensor(entry["kappa"], dtype=dtype)
        # float32 rounds 1e-6 and 1e-3: the oracle is for the exact kappa, whose effect is below the tolerance
        for name in FUNCTIONS:
            value = getattr(_normalizer, name)(kappa, entry["dim"])
            assert value.dtype == dtype
            error = relative_error(value, entry[name])
            if name in ("log_normalizer", "entropy"):  # these pass through zero: absolute below 1
                error *= min(1.0, float(abs(exact(entry[name]))))
            accuracy(name, entry, dtype, error)
            assert error <= TOLERANCE[dtype], (name, error)
        slope = sphere.mean_resultant_slope(kappa, entry["dim"])
        error = relative_error(slope, entry["variance"])
        accuracy("mean_resultant_slope", entry, dtype, error)
        assert error <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_mass_of_caps(entry, dtype, accuracy):
    """cdf and quantile. First order in the rounding of the arguments: mass(h + d) = mass + pdf d."""
    dim = entry["dim"]
    kappa = torch.tensor(entry["kappa"], dtype=dtype)
    with mp.workdps(50):
        rounding = mp.mpf(float(kappa)) - mp.mpf(entry["kappa"])
        for cap in entry["caps"]:
            mass, height, pdf, slope = (exact(cap[k]) for k in ("mass", "height", "pdf", "slope"))
            h = torch.tensor(float(height), dtype=dtype)
            at_h = mass + pdf * (mp.mpf(float(h)) - height) + slope * rounding
            error = float(abs(mp.mpf(float(sphere.cap_mass(h, kappa, dim))) - at_h))
            accuracy("cap_mass", entry, dtype, error)
            assert error <= MASS_TOLERANCE[dtype], ("mass", cap["mass"], error)

            t = 1 - torch.tensor(float(height), dtype=dtype)
            shift = 1 - mp.mpf(float(t)) - height
            if abs(shift) < 1e-7 * height:
                at_t = 1 - mass - pdf * shift - slope * rounding
            else:  # t crowds at 1: ask the oracle at the height that t stands for
                theta = 2 * mp.asin(mp.sqrt((height + shift) / 2))
                at_t = 1 - vmf.AngleLaw(dim, float(kappa)).mass(theta)
            error = float(abs(mp.mpf(float(sphere.cosine_cdf(t, kappa, dim))) - at_t))
            accuracy("cosine_cdf", entry, dtype, error)
            assert error <= MASS_TOLERANCE[dtype], ("cdf", cap["mass"], error)

            p = torch.tensor(float(mass), dtype=dtype)
            found = cap_height(p, kappa, dim)
            wanted = mp.mpf(float(p)) - mass - slope * rounding
            enclosed = pdf * (mp.mpf(float(found)) - height)
            error = float(abs(enclosed - wanted))
            accuracy("cap_height", entry, dtype, error)
            assert error <= MASS_TOLERANCE[dtype] or abs(float(found) - float(height)) <= 2 * ulp(
                found
            ), ("height", cap["mass"], error)

            t = sphere.cosine_quantile(1 - p, kappa, dim)
            enclosed = pdf * (1 - mp.mpf(float(t)) - height)
            error = float(abs(enclosed - (1 - mp.mpf(float(1 - p)) - mass - slope * rounding)))
            close = abs(float(t) - float(1 - height)) <= ulp(t)
            assert error <= MASS_TOLERANCE[dtype] or close, ("quantile", cap["mass"], error)

            value = cap_mass_slope(h, kappa, dim)
            scale = max(abs(slope), abs(pdf) * abs(height))
            error = float(abs(mp.mpf(float(value)) - slope))
            tolerance = 1e-9 if dtype == torch.float64 else 1e-4
            assert error <= tolerance * max(float(scale), 1e-3), ("slope", cap["mass"], error)


@pytest.mark.parametrize("dim", vmf.DIMS)
def test_the_limits_at_infinity(dim):
    inf = torch.tensor(torch.inf, dtype=torch.float64)
    assert sphere.log_normalizer(inf, dim) == -torch.inf
    assert sphere.log_scaled_normalizer(inf, dim) == torch.inf
    assert sphere.mean_resultant_length(inf, dim) == 1
    assert mean_resultant_complement(inf, dim) == 0
    assert sphere.entropy(inf, dim) == -torch.inf
    assert sphere.information(inf, dim) == torch.inf
    heights = torch.tensor([0.0, 1e-300, 2.0], dtype=torch.float64)
    assert (sphere.cap_mass(heights, inf, dim) == 1).all()
    assert (cap_height(torch.tensor([0.0, 0.5, 0.99]), inf.float(), dim) == 0).all()


@pytest.mark.long
def test_the_stored_oracle_is_what_mpmath_says():
    """A sample of vmf.json is computed anew, so that a stale or edited file cannot pass."""
    for index in (3, 27, 64, 118):
        stored = ENTRIES[index]
        assert vmf.entry(stored["dim"], stored["kappa"]) == stored
