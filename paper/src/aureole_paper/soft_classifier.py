"""A classifier fine-tuned on the votes themselves: what the same images say when they are told the classes."""

from pathlib import Path

import torch
from torch import Tensor, nn

from aureole.data import augment
from aureole.models import bfloat16_in_hardware, hold_statistics
from aureole.training import Phase
from aureole_paper.cifar10h import BackboneName, Split, load_backbone

_SEED = 60_000_011


def fine_tune(
    name: BackboneName, split: Split, folder: Path, *, steps: int = 200, lr: float = 5e-4
) -> nn.Module:
    """The pretrained classifier after as many batches of cross-entropy with the votes as encoders are trained for."""
    backbone, last = load_backbone(name, folder)
    network = nn.Sequential(hold_statistics(backbone), last).train()
    images, votes = split.data.images[split.fold.train], split.soft_labels("soft")
    optimiser = torch.optim.Adam(network.parameters(), lr=lr, betas=(0.9, 0.99), fused=True)
    phase, rng = Phase("joint", steps, lr), torch.Generator().manual_seed(_SEED)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = lr * phase.rate(step)
        chosen = torch.randperm(len(images), generator=rng)[:128]
        batch = augment(images[chosen], 0.0, rng)
        with torch.autocast(batch.device.type, torch.bfloat16, enabled=bfloat16_in_hardware()):
            logits: Tensor = network(batch)
        loss = nn.functional.cross_entropy(logits.float(), votes[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network.eval()
