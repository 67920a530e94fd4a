"""Run under torchrun: the loss of sentence pairs on this rank's part of a batch, candidates gathered."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import aureole as au
from aureole.training import SentencePairLoss, SentencePosterior

N = 6


def run(rank, world, *, gather):
    """[Mean loss, *gradient of the head], averaged over ranks."""
    torch.manual_seed(0)
    module = SentencePosterior(au.models.KappaFromNorm(4, 3))
    part = slice(rank * N // world, (rank + 1) * N // world)
    batch = [{"sentence_embedding": torch.randn(N, 4)[part]} for _ in range(3)]
    value = SentencePairLoss(module, au.ClosedFormInfoNCE(20.0, gather=gather))(batch)
    value.backward()
    gradients = [parameter.grad.flatten() for parameter in module.parameters()]
    packed = torch.cat([value.detach().reshape(1), *gradients])
    if world > 1:
        dist.all_reduce(packed)
    return (packed / world).tolist()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    found = run(dist.get_rank(), dist.get_world_size(), gather=True)
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))
    dist.destroy_process_group()
