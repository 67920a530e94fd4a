"""Expected positivity against a 400-digit series and a double integral; its limits."""

import math

import mpmath as mp
import pytest
import torch
from hypothesis import given, settings, strategies as st

from aureole import sphere
from aureole.errors import InvalidInputError
from aureole.sphere import _positivity as positivity, _zonal as zonal
from aureole.sphere._positivity import log_pair_likelihood
from tests.oracles import positivity as oracle

GRID = oracle.load()


def tensor(value):
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("dim", oracle.DIMS)
def test_values_and_gradients_match_the_oracle(dim):
    """log S h to 1e-8 everywhere, and its derivatives in c, kappa1 and kappa_pos to 1e-8 relative."""
    table = tensor(GRID[str(dim)])
    c, k1, k2, kpos = (table[:, i].clone().requires_grad_() for i in range(4))
    value = sphere.log_positivity(c, k1, k2, kpos, dim)
    assert (value - table[:, 4]).abs().max() <= 1e-8
    swapped = sphere.log_positivity(c, k2, k1, kpos, dim)
    assert torch.equal(value, swapped)
    grads = torch.autograd.grad(value.sum(), (c, k1, kpos))
    for grad, truth in zip(grads, table[:, 5:].T, strict=True):
        assert ((grad - truth).abs() / (1 + truth.abs())).max() <= 1e-8
    single = sphere.log_positivity(
        *(x.detach().float() for x in (c, k1, k2)), kpos.detach(), dim
    )  # float32 in and out: the cosine's own rounding, times the slope
    slack = 1e-6 + 1e-6 * table[:, 4].abs() + 1e-7 * table[:, 5].abs()
    assert ((single.double() - table[:, 4]).abs() <= slack).all()


@pytest.mark.parametrize("dim", [3, 10, 16, 64])
@pytest.mark.parametrize("kappas", [(1.0, 16.0, 20.0), (16.0, 16.0, 20.0), (100.0, 16.0, 1.0)])
def test_the_oracle_is_the_double_integral(dim, kappas):
    """The stored series against the definition, and the function against the definition off the grid."""
    k1, k2, kpos = kappas
    for c in (-0.99, -0.5, 0.3, 0.9):
        truth = oracle.by_quadrature(dim, c, k1, k2, kpos)
        stored = [r[4] for r in GRID[str(dim)] if r[:4] == [c, min(k1, k2), max(k1, k2), kpos]]
        assert stored
        assert stored[0] == pytest.approx(truth, abs=1e-8)
    truth = oracle.by_quadrature(dim, -0.77, k1 * 1.1, k2, kpos)
    found = sphere.log_positivity(tensor(-0.77), tensor(k1 * 1.1), tensor(k2), kpos, dim)
    assert found.item() == pytest.approx(truth, abs=1e-8)


@pytest.mark.long
def test_the_stored_oracle_is_what_mpmath_says():
    assert oracle.entries(3) == GRID["3"]


kappas = st.floats(0, 1e5)
cosines = st.floats(-1, 1)
dims = st.integers(2, 600)


@settings(max_examples=60)
@given(c=cosines, k1=kappas, k2=kappas, kpos=st.floats(1e-3, 300), dim=dims)
def test_symmetric_finite_and_growing_in_the_cosine(c, k1, k2, kpos, dim):
    value = sphere.log_positivity(tensor(c), tensor(k1), tensor(k2), kpos, dim)
    assert torch.isfinite(value)
    for other in (
        sphere.log_positivity(tensor(c), tensor(k2), tensor(k1), kpos, dim),
        sphere.log_positivity(tensor(c), tensor(kpos), tensor(k1), k2, dim),
    ):
        assert torch.allclose(value, other, rtol=1e-9, atol=1e-9)
    higher = sphere.log_positivity(tensor(min(1.0, c + 0.1)), tensor(k1), tensor(k2), kpos, dim)
    assert higher >= value - 1e-8


@given(c=cosines, k1=st.floats(1e-3, 1e4), k2=st.floats(1e-3, 1e4), dim=st.integers(2, 300))
@pytest.mark.long
def test_limits(c, k1, k2, dim):
    """kappa_pos -> inf: expected likelihood; kappas -> inf: vMF(mu2; mu1, kappa_pos); kappa -> 0: chance."""
    c, k1, k2 = tensor(c), tensor(k1), tensor(k2)
    inf = tensor(math.inf)
    likelihood = sphere.log_positivity(c, k1, k2, math.inf, dim)
    square = k1**2 + k2**2 + 2 * k1 * k2 * c
    length = torch.sqrt(square.clamp(min=0))
    truth = (
        sphere.log_normalizer(k1, dim)
        + sphere.log_normalizer(k2, dim)
        - sphere.log_normalizer(length, dim)
        + sphere.log_sphere_area(dim)
    )
    assert torch.allclose(likelihood, truth, rtol=1e-8, atol=1e-7)
    points = sphere.log_positivity(c, inf, inf, k1, dim)
    density = sphere.log_normalizer(k1, dim) + k1 * c + sphere.log_sphere_area(dim)
    assert torch.allclose(points, density, rtol=1e-9, atol=1e-8)
    assert sphere.log_positivity(c, tensor(0.0), k2, 20.0, dim) == 0
    assert sphere.log_positivity(c, inf, inf, math.inf, dim).item() == (
        math.inf if c >= 1 else -math.inf
    )


@pytest.mark.parametrize("dim", [2, 3, 10, 64])
def test_mean_over_the_sphere_is_chance(dim):
    """S h is a density ratio: its mean over uniform partners is 1."""
    u = tensor([(i + 0.5) / 2000 for i in range(2000)])
    c = sphere.cosine_quantile(u, tensor(0.0), dim)
    value = sphere.log_positivity(c, tensor(24.0), tensor(30.0), 20.0, dim).exp()
    assert value.mean().item() == pytest.approx(1, abs=2e-2)


def test_zonal_basis_is_differentiable_twice():
    c = tensor([-0.9, 0.1, 1.0]).requires_grad_()
    for dim in (2, 3, 9):
        assert torch.autograd.gradcheck(lambda c, d=dim: zonal.zonal_basis(c, d, 7), (c,))
        assert torch.autograd.gradgradcheck(lambda c, d=dim: zonal.zonal_basis(c, d, 7), (c,))


def test_elementwise_gradcheck_in_every_region():
    c = tensor([0.9, -0.99, 0.2, 0.4, -0.5]).requires_grad_()
    k1 = tensor([5.0, 60.0, 0.5, 30.0, 16.0]).requires_grad_()
    k2 = tensor([9.0, 60.0, math.inf, math.inf, 16.0])
    kpos = tensor([20.0, 20.0, 20.0, math.inf, 20.0])
    assert torch.autograd.gradcheck(
        lambda c, k1: sphere.log_positivity(c, k1, k2, kpos, 10), (c, k1), rtol=1e-4
    )


def test_huge_scales_stay_in_logs():
    value = sphere.log_positivity(tensor(1.0), tensor(math.inf), tensor(math.inf), 200.0, 512)
    assert 160 < value.item() < 170  # 1e71
    with pytest.raises(InvalidInputError, match="finite kappa_pos"):
        positivity.n_terms([math.inf] * 3, 10, tolerance=1e-9)


@given(k1=st.floats(0, 1e6), k2=st.floats(0, 1e6), kpos=st.floats(0.01, 500), dim=dims)
@settings(max_examples=40)
def test_enough_terms_are_counted(k1, k2, kpos, dim):
    count = positivity.n_terms([k1, k2, kpos], dim, tolerance=1e-12)
    more = positivity.positive_terms(dim, count + 40, tensor(k1), tensor(k2), tensor(kpos))
    assert more[count:].sum() <= 1e-12 * more.sum()


@pytest.mark.parametrize("bad", [math.nan, -1e-9, -math.inf])
@pytest.mark.parametrize("other", [0.0, 5.0, math.inf])
@pytest.mark.parametrize("place", range(3))
def test_concentrations_that_are_none_are_refused_and_named(bad, other, place):
    """0 would be the answer of "exactly chance", beside any other concentrations."""
    kappas = [torch.full((2, 3), other, dtype=torch.float64) for _ in range(3)]
    kappas[place][1, 2] = bad
    name = ("kappa1", "kappa2", "kappa_pos")[place]
    with pytest.raises(InvalidInputError, match=rf"{name}\[1, 2\] is (nan|-).*1 of 6 are off"):
        sphere.log_positivity(torch.zeros(2, 3), *kappas, 10)
    plain = [5.0] * 3
    plain[place] = bad
    with pytest.raises(InvalidInputError, match=rf"kappas\[{place}\] .* is (nan|-)"):
        positivity.n_terms(plain, 10, tolerance=1e-9)


@pytest.mark.parametrize("kappa", [0.0, 5.0, math.inf])
@pytest.mark.parametrize("kappa_pos", [0.0, 20.0, math.inf])
def test_a_nan_cosine_gives_nan(kappa, kappa_pos):
    value = sphere.log_positivity(tensor([math.nan]), tensor(kappa), tensor(kappa), kappa_pos, 10)
    assert value.isnan().all()


@pytest.mark.parametrize(
    ("dim", "cosine", "kappas", "truth"),
    [
        (10, -0.5, (1e8, 1e8, 1e8), "-70186590.67813772207739906"),
        (10, -0.5, (1e10, 1e10, 1e10), "-7018666609.321224368872572"),
        (2, -1.0, (1e10, 1e10, 1e10), "-14999999986.73114778501010"),
        (512, 0.9, (1e8, 1e10, 1e8), "-5036037.197995662397558829"),
        (4096, -0.5, (1e10, 1e10, 1e10), "-7018635153.773517268997810"),
        (4096, 1.0, (1e8, 1e8, 1e8), "20484.69970095097898262704"),
        (4096, 0.3, (1e4, 1e6, 1e4), "-679.7979426718588953988569"),
        (4096, 1.0, (1e4, 1e4, math.inf), "2769.603006117979579636545"),
        (4096, -1.0, (1e4, 1e2, math.inf), "-82.73681634442612449557951"),
        (4096, 0.3, (4096.0, 4096.0, math.inf), "171.2289871784628684319382"),
        (4096, -0.5, (1e6, 1e6, math.inf), "-986692.9267213348539919214"),
    ],
)
def test_the_error_grows_with_the_size_of_the_log_alone(dim, cosine, kappas, truth):
    """What the module states, at high kappa and D, against ball arithmetic (192 bits; ``tests.oracles.losses``)."""
    arguments = [tensor(x) for x in (cosine, *kappas)]
    found = sphere.log_positivity(*arguments, dim).item()
    with mp.workdps(50):
        error = abs(mp.mpf(found) - mp.mpf(truth))
    size = abs(float(truth))
    assert error <= (1e-11 if math.isinf(kappas[2]) else 1e-10) + 1e-15 * size
    if math.isinf(kappas[2]):
        assert log_pair_likelihood(*arguments[:3], dim).item() == found
