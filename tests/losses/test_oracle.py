"""The closed-form loss and its gradients against ball arithmetic, over random settings."""

import pytest
import torch

from tests.losses import settings
from tests.losses.test_real_dimensions import loss_and_gradients
from tests.oracles import losses as oracle

ENTRIES = oracle.load()
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
PER_TEST = 20


def errors(entry):
    """Relative errors of the loss, of the gradients in mu and of those in kappa; the latter of the largest one."""
    setting = settings.make(entry["index"], oracle.SIZES)
    value, grads = loss_and_gradients(setting)
    truth = torch.tensor(float(entry["loss"]), dtype=torch.float64)
    found = {"loss": ((value.double() - truth).abs() / truth.clamp(min=1e-300)).item()}
    mus = [torch.from_numpy(g.astype("float64")) for g in oracle.mu_gradients(entry, setting)]
    kappas = [
        torch.tensor([float(x) for x in row], dtype=torch.float64).view(leaf.shape)
        for row, leaf in zip(entry["kappa"], setting.leaves[1::2], strict=True)
    ]
    for name, wanted, given in (("mu", mus, grads[::2]), ("kappa", kappas, grads[1::2])):
        largest = max(max(w.abs().max().item() for w in wanted), torch.finfo(setting.dtype).tiny)
        worst = max((g.double() - w).abs().max().item() for g, w in zip(given, wanted, strict=True))
        found[name] = worst / largest
    return setting, found


@pytest.mark.parametrize("first", range(0, len(ENTRIES), PER_TEST))
def test_value_and_gradients_match_the_oracle(first):
    for entry in ENTRIES[first : first + PER_TEST]:
        setting, found = errors(entry)
        for name, error in found.items():
            assert error <= TOLERANCE[setting.dtype], (name, error, str(setting))


def test_the_oracle_leaves_out_no_setting():
    assert [entry["index"] for entry in ENTRIES] == list(range(len(ENTRIES)))
