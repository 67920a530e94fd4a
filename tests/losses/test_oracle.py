"""The closed-form loss and its gradients against ball arithmetic, over random settings."""

import torch

from tests.losses import settings
from tests.oracles import losses as oracle

ENTRIES = oracle.load()
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}


def errors(entry):
    """Relative errors of the loss, of the gradients in mu and of those in kappa; the latter of the largest one."""
    setting = settings.make(entry["index"], oracle.SIZES)
    value, grads = setting.loss_and_gradients()
    # as the dtype holds it: a loss of 1e-161 is 0 in float32
    truth = torch.tensor(float(entry["loss"]), dtype=setting.dtype).double()
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


def test_values_and_gradients_match_the_oracle():
    off = []
    for entry in ENTRIES:
        setting, found = errors(entry)
        off += [(n, e, str(setting)) for n, e in found.items() if not e <= TOLERANCE[setting.dtype]]
    assert not off


def test_the_oracle_leaves_out_no_setting():
    assert [entry["index"] for entry in ENTRIES] == list(range(len(ENTRIES)))
