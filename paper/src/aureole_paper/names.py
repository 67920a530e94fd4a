"""The names of experiments, losses, labels and backbones; ``aureole reproduce --help`` imports nothing else."""

from typing import Literal

EXPERIMENTS = (
    "ambiguous",
    "paper-preset",
    "clear",
    "injective",
    "two-dim",
    "families",
    "mc-samples",
    "mc-batches",
    "encoder-dim",
    "losses",
    "high-dim",
    "self-pairs",
    "ladder",
    "shared-backbone",
    "sources",
    "tilt",
    "bimodal",
    "tuning",
    "cifar10h",
    "credible-retrieval",
    "adaptive-retrieval",
    "frozen-text",
    "frozen-images",
)
LossName = Literal["closed-form", "mcinfonce", "elk", "hib", "infonce"]
BackboneName = Literal["resnet20", "resnet56", "resnet18"]
LabelName = Literal["soft", "hard", "cifar10"]
