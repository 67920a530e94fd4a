"""The recipe for a process with known posteriors: an encoder, and how near it came to the truth."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from aureole.data import ControlledProcess, draw_generator
from aureole.evaluation import recovery
from aureole.losses import rank
from aureole.models import Card, IndependentEncoder, ResidualMLP
from aureole.training._config import Config
from aureole.training._fit import Observer, fit
from aureole.training._recipe import figures, make_loss
from aureole.training._schedule import Phase


def train_process(
    config: Config, out: Path, work: Path, observer: Observer | None
) -> dict[str, Any]:
    """The encoder of a process whose posteriors are known, and how near it came to them."""
    seed, dim, width = config["training.seed"], config["data.dim"], config["encoder.width"]
    kappas = (config["data.kappa_low"], config["data.kappa_high"])
    generator = draw_generator(dim, kappas, kind=config["data.generator"], seed=seed)
    process = ControlledProcess(generator, kappa_pos=config["loss.kappa_pos"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = [ResidualMLP(dim, n, width=width) for n in (dim, 1)]
        encoder = IndependentEncoder(*networks, n_in=dim)
        encoder.initialise(process.inputs(4096))
    items, pairs = config["training.items"], config["training.pairs"]

    def scores(model: nn.Module) -> dict[str, float]:
        x = process.inputs(2000, torch.Generator().manual_seed(~seed % 2**63))
        with torch.no_grad():
            return recovery(model(x), *process.generator(x), max_items=1000)

    fitted = fit(
        encoder,
        make_loss(config),
        lambda _, rng: process.batch(items, pairs, generator=rng),
        phases=[Phase("joint", config["training.steps"], config["training.lr"])],
        seed=seed,
        checkpoint=work / "checkpoint.safetensors",
        evaluate=scores,
        evaluate_every=max(1, config["training.steps"] // 10),
        observer=observer,
    )
    model = fitted.encoder
    assert isinstance(model, IndependentEncoder)
    if rank() > 0:
        return {}
    card = Card(
        name="A process with known posteriors", kappa_pos=config["loss.kappa_pos"], data="drawn"
    )
    model.save(out, card=card)
    last = fitted.curve[-1]
    named = {name: last[name] for name in last if name.startswith(("mu_", "kappa_r", "kappa_m"))}
    return {"dim": dim, "kappa_pos": config["loss.kappa_pos"], **named, **figures(fitted)}
