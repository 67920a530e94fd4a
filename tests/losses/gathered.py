"""Run under torchrun: every loss on this rank's part of a batch, negatives gathered; rank 0 writes the results."""

import json
import sys

import torch
import torch.distributed as dist

import aureole as au
from aureole import sphere
from aureole.losses import _hedged as hedged, _mcinfonce as mcinfonce

N, M, DIM, FEATURES = 6, 4, 5, 3


def same_draws(posteriors, n_samples, *, quasi=False):
    """Draws that do not depend on which process asks: one set of points for every posterior."""
    cube = torch.quasirandom.SobolEngine(DIM, scramble=True, seed=1).draw(n_samples)
    return [
        q.transport(cube.reshape(n_samples, *(1 for _ in q.batch_shape), DIM)) for q in posteriors
    ]


def make_losses(gather):
    """(name, loss, whether it takes fresh negatives)."""
    kinds = {
        "closed": lambda **o: au.ClosedFormInfoNCE(20.0, centring=0.1, **o),
        "infonce": lambda **o: au.InfoNCE(temperature=0.1, **o),
        "elk": lambda **o: au.ELK(temperature=1.0, **o),
        "mc": lambda **o: au.MCInfoNCE(20.0, 8, **o),
        "hib": lambda **o: au.losses.HedgedInstance(a=2.0, b=0.0, n_samples=8, **o),
    }
    for name, make in kinds.items():
        for mode in ("shared", "next", "all", "both"):
            in_batch = "next" if mode == "shared" else mode
            yield f"{name} {mode}", make(gather=gather, in_batch=in_batch), mode == "shared"


def run(rank, world, gather):
    """{name: [mean loss, *gradient of the encoder]}, averaged over ranks. Only for processes of their own."""
    mcinfonce.draw = hedged.draw = same_draws
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(2 * N + M, FEATURES, generator=generator)
    anchors, positives, negatives = data.split([N, N, M])
    weight = torch.randn(DIM + 1, FEATURES, generator=generator).requires_grad_()

    def encode(x):
        part = x.shape[0] // world
        out = x[rank * part : (rank + 1) * part] @ weight.T
        return au.VonMisesFisher(sphere.normalize(out[:, :-1]), out[:, -1].exp())

    found = {}
    for name, loss, fresh in make_losses(gather):
        weight.grad = None
        value = loss(encode(anchors), encode(positives), encode(negatives) if fresh else None)
        value.backward()
        packed = torch.cat([value.detach().reshape(1), weight.grad.flatten()])
        if world > 1:
            dist.all_reduce(packed)
        found[name] = (packed / world).tolist()
    return found


def main():
    dist.init_process_group("gloo")
    found = run(dist.get_rank(), dist.get_world_size(), gather=True)
    if dist.get_rank() == 0:
        with open(sys.argv[1], "w") as handle:
            json.dump(found, handle)
    dist.barrier()  # a rank that leaves while another still talks to it may abort
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
