"""The table of log positivities against the function that it interpolates."""

import itertools
import math

import pytest
import torch

from aureole import sphere
from aureole.errors import InvalidInputError
from aureole.sphere import _positivity_table as tables
from aureole.sphere._positivity_table import Box, Positivities, PositivityTable

# (D, kappa_pos, lowest cosine, lowest and highest kappa): hard pairs (cosines far below those of partners) included
SETTINGS = [
    (2, 5.0, -1.0, 1.0, 8.0),
    (3, 20.0, 0.2, 5.0, 30.0),
    (10, 20.0, -1.0, 5.0, 40.0),
    (10, 40.0, -0.6, 10.0, 300.0),
    (32, 20.0, -0.8, 0.01, 60.0),
    (128, 256.0, -0.4, 60.0, 300.0),
    (128, 512.0, -0.4, 200.0, 5000.0),
    (512, 2048.0, -0.25, 300.0, 1200.0),
    (768, 20.0, -0.2, 300.0, 1600.0),
    (768, 3072.0, -0.2, 300.0, 1600.0),
]


@pytest.fixture(autouse=True)
def no_tables(monkeypatch):
    """Start without cached tables."""
    monkeypatch.setattr(tables, "_TABLES", type(tables._TABLES)())


def inputs(dtype, low, least, most, n=50):
    rng = torch.Generator().manual_seed(0)
    cosine = low + (1 - low) * torch.rand(n, n, generator=rng, dtype=torch.float64)
    cosine[0, :2] = torch.tensor([low, 1.0])
    share = torch.rand(2, n, generator=rng, dtype=torch.float64)
    kappas = least * (most / least) ** share
    return [x.to(dtype).requires_grad_() for x in (cosine, *kappas)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("dim", "kappa_pos", "low", "least", "most"), SETTINGS)
def test_values_and_gradients_match_the_exact_function(dim, kappa_pos, low, least, most, dtype):
    leaves = inputs(dtype, low, least, most)
    cosine, one, two = leaves
    found = sphere.log_positivity_matrix(cosine, one, two, kappa_pos, dim)
    assert found.dtype == dtype
    exact = [x.detach().double().requires_grad_() for x in leaves]
    wanted = sphere.log_positivity(exact[0], exact[1][:, None], exact[2], kappa_pos, dim)
    weights = torch.randn(50, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    slopes = torch.autograd.grad((wanted * weights).sum(), exact)
    got = torch.autograd.grad((found * weights.to(dtype)).sum(), leaves)
    single = dtype == torch.float32
    rounding = 3e-7 * (wanted.abs().max() + slopes[0].abs().max()).item() if single else 0.0
    assert (found.double() - wanted).abs().max() <= (1e-6 if single else 3e-9) + rounding
    for a, b in zip(got, slopes, strict=True):
        assert (a.double() - b).abs().max() <= (2e-5 if single else 2e-7) * b.abs().max()


def test_listed_pairs_match_the_matrix():
    cosine, one, two = inputs(torch.float64, -0.5, 5.0, 40.0)
    pos = torch.tensor(20.0, dtype=torch.float64)
    h = Positivities.over([cosine], [one, two], pos, 10, 20.0)
    matrix, each = h.matrix(cosine, one, two), h.each(cosine, one[:, None], two)
    assert torch.allclose(matrix, each, rtol=0, atol=3e-9)
    slopes = [torch.autograd.grad(x.sum(), (cosine, one, two)) for x in (matrix, each)]
    for a, b in zip(*slopes, strict=True):
        assert (a - b).abs().max() <= 1e-7 * b.abs().max()
    assert h.each(cosine[:0, 0], one[:0], two[:0]).shape == (0,)


def test_gradcheck_with_a_learned_kappa_pos():
    rng = torch.Generator().manual_seed(0)
    pos = torch.tensor(21.0, dtype=torch.float64, requires_grad=True)
    table = PositivityTable(10, (20.0, 24.0), Box(0.0, 8.0, 20.0), 1e-9)
    cosine = (0.1 + 0.8 * torch.rand(4, 3, generator=rng, dtype=torch.float64)).requires_grad_()
    one, two = (
        (9 + 10 * torch.rand(n, generator=rng, dtype=torch.float64)).requires_grad_()
        for n in (4, 3)
    )
    for name in ("matrix", "each"):
        leaves = (cosine, one, two, pos)
        if name == "each":
            leaves = (*(x.detach().requires_grad_() for x in (cosine[:3, 0], one[:3])), two, pos)

        def function(*leaves, name=name):
            h = Positivities(10, leaves[3], float(leaves[3].detach()), table)
            return getattr(h, name)(*leaves[:3])

        assert torch.autograd.gradcheck(function, leaves)


@pytest.mark.parametrize(("dim", "kappa_pos"), [(10, 20.0), (128, 256.0)])
def test_kappas_of_zero_and_infinity(dim, kappa_pos):
    cosine, one, two = (x.detach() for x in inputs(torch.float64, -0.4, 1e-3, 1e3))
    one[:3] = torch.tensor([0.0, 1e-20, math.inf])
    two[:3] = torch.tensor([0.0, 1e30, math.inf])
    one, two = one.requires_grad_(), two.requires_grad_()
    found = sphere.log_positivity_matrix(cosine, one, two, kappa_pos, dim)
    wanted = sphere.log_positivity(cosine, one[:, None], two, kappa_pos, dim)
    assert torch.allclose(found, wanted, rtol=0, atol=1e-8)
    for grad in torch.autograd.grad(found.sum(), (one, two)):
        assert grad.isfinite().all()


@pytest.mark.parametrize("place", range(3))
def test_values_that_are_none_are_refused(place):
    parts = [torch.zeros(50, 50), torch.ones(50), torch.ones(50)]
    parts[place].view(-1)[3] = math.nan
    with pytest.raises(InvalidInputError, match="not NaN"):
        sphere.log_positivity_matrix(*parts, 20.0, 10)


def test_a_drifting_batch_rebuilds_rarely(monkeypatch):
    """Over 2,000 steps kappa grows from 16 to 400 and the lowest cosine falls from 0.9 to -0.7."""
    boxes = []

    class OnlyTheBox(PositivityTable):
        def __init__(self, dim, kappa_pos, box, tolerance):
            self.box = box
            boxes.append(box)

    monkeypatch.setattr(tables, "PositivityTable", OnlyTheBox)
    pos, steps = torch.tensor(64.0, dtype=torch.float64), 2_000
    rng = torch.Generator().manual_seed(0)
    for share in torch.linspace(0, 1, steps).tolist():
        noise = torch.randn(3, generator=rng).tolist()
        cosine = torch.full((50, 50), min(1.0, 0.9 - 1.6 * share**0.3 + 0.02 * noise[0]))
        spread = 16 * 25**share * torch.linspace(0.3, 3, 50)
        kappas = [spread * math.exp(0.05 * x) for x in noise[1:]]
        Positivities.over([cosine], kappas, pos, 32, 64.0)
    assert 1 < len(boxes) <= 1 + steps / 100
    assert all(later.covers(box) for box, later in itertools.pairwise(boxes))


def test_on_an_accelerator_values_outside_the_box_count_as_those_at_its_border(monkeypatch):
    monkeypatch.setattr(tables, "_READ_FREELY", ())
    pos = torch.tensor(20.0, dtype=torch.float64)
    cosine, kappa = torch.full((50, 50), 0.3), torch.full((50,), 20.0)
    h = Positivities.over([cosine], [kappa], pos, 10, 20.0)
    again = Positivities.over([-cosine], [4 * kappa], pos, 10, 20.0)
    assert again.table is h.table
    found = again.matrix(-2 * cosine, 4 * kappa, 4 * kappa)
    box = h.table.box
    ends = (box.low * torch.ones(1, 1), *[torch.full((1,), box.most)] * 2)
    assert torch.allclose(found, sphere.log_positivity(*ends, 20.0, 10), atol=2e-6)
    for _ in range(98):
        Positivities.over([-cosine], [4 * kappa], pos, 10, 20.0)
    looked = Positivities.over([-cosine], [4 * kappa], pos, 10, 20.0)
    assert looked.table.box.low <= -0.3
    assert looked.table.box.most >= 80
