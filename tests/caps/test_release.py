"""check_release: failures that would lose results, and warnings that a better encoder may cause."""

import pytest
import torch

from aureole.caps import ConformalMass, CredibleIndex, check_release
from aureole.distributions import VonMisesFisher
from aureole.sphere import normalize

N = 200


def gallery(rows=N, kappa=None, columns=("price",), seed=0):
    own = torch.Generator().manual_seed(seed)
    mu = normalize(torch.randn(N, 8, generator=own))
    kappa = torch.rand(N, generator=own) * 90 + 10 if kappa is None else kappa
    posterior = VonMisesFisher(mu[:rows], kappa[:rows])
    payload = {name: list(range(rows)) for name in columns}
    return CredibleIndex.create("faiss://", posterior, [f"i{n}" for n in range(rows)], payload)


def outcomes(new, old):
    return {check.name: check.outcome for check in check_release(new, old)}


def test_an_equal_gallery_passes():
    checks = check_release(gallery(), gallery())
    assert {check.outcome for check in checks} == {"passed"}
    assert [check.name for check in checks] == ["rows valid", "columns", "ids", "kappa"]


@pytest.mark.parametrize(
    ("changes", "name", "outcome"),
    [
        ({"rows": N - 1}, "ids", "warning"),
        ({"rows": N - 3}, "ids", "failed"),
        ({"columns": ("cost",)}, "columns", "failed"),
        ({"kappa": torch.full((N,), 30.0)}, "kappa", "failed"),
        ({"seed": 1}, "kappa", "warning"),
    ],
)
def test_what_got_worse_is_named(changes, name, outcome):
    found = outcomes(gallery(**changes), gallery())
    assert found.pop(name) == outcome
    assert set(found.values()) == {"passed"}


def test_a_calibration_must_not_be_lost_or_get_worse():
    new, old = gallery(), gallery()
    old.conformal = ConformalMass(torch.linspace(0.01, 0.99, 99).tolist(), 20.0, 50.0)
    assert outcomes(new, old)["calibration"] == "failed"
    new.conformal = old.conformal
    assert outcomes(new, old)["calibration"] == "passed"
    new.conformal = ConformalMass(torch.linspace(0.5, 0.99, 99).tolist(), 20.0, 50.0)
    assert outcomes(new, old)["calibration"] == "warning"


def test_the_recall_of_an_approximate_index():
    new, old = gallery(), gallery()
    old.build("ivf", lists=8, probes=8)
    assert outcomes(new, old)["recall"] == "warning"
    new.build("ivf", lists=8, probes=8)
    assert outcomes(new, old)["recall"] == "passed"
    new.build("ivf", lists=16, probes=1)
    assert outcomes(new, old)["recall"] == "failed"
