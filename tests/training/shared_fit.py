"""Run under torchrun, or alone: fits and gradients of a few losses, which must not depend on the number of ranks."""

import json
import sys

import torch
import torch.distributed as dist
from torch import nn

import aureole as au
from aureole.data import PairBatch, Triplets
from aureole.losses._negatives import n_ranks
from aureole.models import IndependentEncoder, ResidualMLP
from aureole.synthetic import ControlledProcess, draw_generator
from aureole.training import FitOptions, Phase, fit
from aureole.training._distributed import joined, objective, seeded, shared_objective
from aureole_paper.paper_encoders import three_phases

DIM, ITEMS = 4, 37  # a number that neither two nor three ranks divide
PROCESS = ControlledProcess(draw_generator(DIM, (8.0, 32.0), kind="whitened", seed=4))
CPU = torch.device("cpu")


class Wide(nn.Module):
    """Posteriors in float64: the library's own encoders round to float32."""

    def __init__(self, components):
        super().__init__()
        torch.manual_seed(0)
        self.components = components
        self.network = nn.Sequential(
            nn.Linear(DIM, 8), nn.Tanh(), nn.Linear(8, components * (DIM + 2))
        )
        self.double()

    def forward(self, x):
        out = self.network(x.double()).unflatten(-1, (self.components, DIM + 2))
        mu, kappa = au.sphere.normalize(out[..., :DIM]), 10 * out[..., -2].exp()
        if self.components == 1:
            return au.VonMisesFisher(mu[:, 0], kappa[:, 0])
        return au.MixtureVMF(out[..., -1].softmax(-1), mu, kappa)


def new_encoder():
    torch.manual_seed(0)
    encoder = IndependentEncoder(*(ResidualMLP(DIM, n, width=16) for n in (DIM, 1)), n_in=DIM)
    encoder.initialise(PROCESS.inputs(512))
    return encoder


def among(step, rng):
    return PROCESS.batch(ITEMS, 90.0, generator=rng)


def votes(step, rng):
    batch = among(step, rng)
    itself = torch.arange(0, ITEMS, 3).unsqueeze(1).expand(-1, 2)
    pairs = torch.cat([batch.pairs, itself])
    weights = torch.rand(len(pairs), generator=rng)
    agreement = torch.rand(ITEMS, generator=rng)
    agreement[::4] = torch.nan
    return PairBatch(batch.inputs, pairs, 60.0, weights, self_weight=8.0, agreement=agreement)


def triplets(negatives):
    def draw(step, rng):
        anchor, positive = PROCESS.pairs(13, rng, pool=256)
        shape = {"shared": (5,), "own": (13, 3), "none": None}[negatives]
        if shape is None:
            return Triplets(anchor, positive)
        fresh = PROCESS.inputs(torch.Size(shape).numel(), rng)
        return Triplets(anchor, positive, fresh.view(*shape, DIM))

    return draw


def gradients():
    """{name: [loss, *gradient]} in float64, of one batch."""
    cases = {
        "closed form": (au.ClosedFormInfoNCE(20.0, centring=0.1), among),
        "votes": (au.ClosedFormInfoNCE(20.0), votes),
        "drawn": (au.MCInfoNCE(20.0, 4), among),
        "mixture": (au.ClosedFormInfoNCE(20.0), among),
        "shared negatives": (au.ClosedFormInfoNCE(20.0), triplets("shared")),
        "own negatives": (au.InfoNCE(temperature=0.05), triplets("own")),
        "next": (au.ELK(temperature=1.0, in_batch="next"), triplets("none")),
        "both": (au.ClosedFormInfoNCE(20.0), triplets("none")),
        "all": (au.ClosedFormInfoNCE(20.0, in_batch="all"), triplets("none")),
    }
    found = {}
    for name, (loss, draw) in cases.items():
        encoder = Wide(2 if name == "mixture" else 1)
        batch = draw(0, torch.Generator().manual_seed(1))
        if n_ranks() == 1:
            with seeded(5, CPU):
                value, _ = objective(encoder, loss, batch, CPU)
        else:
            value, _ = shared_objective(encoder, loss, batch, CPU, seed=5)
        value.backward()
        grads = [p.grad.flatten() for p in encoder.parameters() if p.grad is not None]
        packed = torch.cat([value.detach().reshape(1), *grads])
        if n_ranks() > 1:
            dist.all_reduce(packed)
            packed /= n_ranks()
        found[name] = packed.tolist()
    return found


def fits():
    """{name: parameters} after some steps of the loop, in float32, with the loss of the last."""
    found = {}
    for name, loss, phases in (
        ("phases", au.ClosedFormInfoNCE(20.0, centring=0.02), three_phases(30)),
        ("point estimates", au.InfoNCE(temperature=0.05), [Phase("joint", 10, 1e-3)]),
        ("learned", au.ClosedFormInfoNCE(5.0, learn_kappa_pos=True), [Phase("joint", 10, 1e-3)]),
    ):
        result = fit(
            new_encoder(), loss, among, phases=phases,
            options=FitOptions(
                seed=3, precision="32-true", evaluate_every=5,
                select="rank" if name == "learned" else None,
            ),
            evaluate=lambda model: {"rank": model(PROCESS.inputs(8)).kappa.max().item()},
        )  # fmt: skip
        parameters = [
            p.flatten() for p in (*result.encoder.parameters(), *loss.state_dict().values())
        ]
        found[name] = torch.cat([p.detach().double() for p in parameters]).tolist()
        found[f"{name}, losses"] = [point["loss"] for point in result.curve]
    return found


def main():
    import warnings

    warnings.simplefilter("ignore")
    with joined() as rank:
        found = {**gradients(), **fits()}
        if rank == 0:
            with open(sys.argv[1], "w") as handle:
                json.dump(found, handle)


if __name__ == "__main__":
    main()
