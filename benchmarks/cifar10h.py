"""Cost of training on CIFAR-10H compared with the bare backbone: images per second, measured alternately in one run.

``python -m benchmarks.cifar10h --data-dir DIR [--backbone resnet20] [--repeats N]``

A training step draws the batch, augments it, encodes it, computes the closed form, and takes a step of Adam with the
average of the weights. The bare backbone only runs forward and backward on images that are already in memory.
"""

import argparse
from pathlib import Path

import torch

from aureole.models import bfloat16_in_hardware
from aureole.records import Record, write_record
from aureole.training import FitOptions, Phase
from aureole.training._fit import _Run
from aureole_paper.cifar10h import Cifar10HSetting, Split, _Batches, new_encoder
from aureole_paper.data_folder import data_folder
from aureole_paper.settings import objective
from benchmarks.timing import median_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--backbone", default="resnet20", choices=["resnet20", "resnet56"])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/cifar10h.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = data_folder(arguments.data_dir)
    split = Split.load(folder, 0)
    setting = Cifar10HSetting("benchmark", backbone=arguments.backbone)
    encoder = new_encoder(setting, split, folder)
    batches = _Batches(split, setting, folder)
    loss = objective(setting.loss, setting.kappa_pos)
    phases = [Phase("joint", 10_000, setting.lr)]
    options = FitOptions(seed=0, betas=(0.9, 0.99), average=0.99, precision="auto")
    run = _Run(encoder, loss, phases, options)
    images = batches(0, torch.Generator()).inputs

    def bare() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16_in_hardware()):
            features = encoder.backbone(images)
        features.float().sum().backward()

    times = median_seconds(
        {"bare": bare, "training": lambda: run.advance(batches)}, arguments.repeats
    )
    metrics = {
        "bare images per second": setting.items / times["bare"],
        "training images per second": setting.items / times["training"],
        "training / bare": times["bare"] / times["training"],
    }
    for name, value in metrics.items():
        print(f"{name:30s} {value:10.3f}")
    command = f"python -m benchmarks.cifar10h --backbone {arguments.backbone}"
    write_record(
        Record("benchmark-cifar10h", metrics, command, 0, setting.as_json()), arguments.out
    )


if __name__ == "__main__":
    main()
