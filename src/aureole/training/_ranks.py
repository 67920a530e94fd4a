"""Ranks: the processes that train one encoder together, joined by torch.distributed."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from aureole.errors import InvalidInputError
from aureole.losses import n_ranks, rank

STORE = "AUREOLE_RANKS_STORE"  # names a folder by whose files ranks of one machine meet


def launched() -> int:
    """The number of ranks that a launcher such as torchrun has started this process as one of; 1 without one."""
    return (
        int(os.environ["WORLD_SIZE"]) if "RANK" in os.environ and "WORLD_SIZE" in os.environ else 1
    )


def is_first() -> bool:
    """Whether this process is the first of those that its launcher has started, joined or not; it alone prints."""
    return launched() == 1 or os.environ["RANK"] == "0"


@contextmanager
def joined() -> Iterator[int]:
    """A context in which this process has joined the ranks of its launcher; gives its rank.

    Gloo joins processors, NCCL GPUs. Without a launcher, or where they have joined already, nothing is done.
    """
    if launched() == 1 or dist.is_initialized():
        yield rank()
        return
    options: dict[str, Any] = {}
    if STORE in os.environ:  # a group that is started again meets in another file
        file = Path(os.environ[STORE]) / os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        numbers = {"rank": int(os.environ["RANK"]), "world_size": launched()}
        options = {"init_method": file.resolve().as_uri(), **numbers}
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, **options)
    try:
        yield rank()
    finally:
        dist.destroy_process_group()


def from_first(value: Any) -> Any:
    """The value that the first rank gave, on all ranks; it is sent as JSON, never pickled.

    Examples
    --------
    >>> from_first({"step": 3})
    {'step': 3}
    """
    if n_ranks() == 1:
        return value
    text = json.dumps(value).encode() if rank() == 0 else b""
    size = torch.tensor([len(text)])
    dist.broadcast(size, 0)
    buffer = torch.zeros(int(size), dtype=torch.uint8)
    if rank() == 0:
        buffer.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    dist.broadcast(buffer, 0)
    return json.loads(bytes(buffer.tolist()))


def check_alike(step: int, where: str) -> None:
    """Refuse to go on if ranks stand at different steps: they read different files."""
    if n_ranks() == 1:
        return
    steps = [torch.zeros(1, dtype=torch.int64) for _ in range(n_ranks())]
    dist.all_gather(steps, torch.tensor([step]))
    found = [int(value) for value in steps]
    if len(set(found)) > 1:
        raise InvalidInputError(
            f"the ranks read different checkpoints from {where} (steps {found}). It must lie in a folder that all of "
            "them share."
        )


def average(values: list[Tensor]) -> None:
    """Replace tensors by their means over ranks, in place."""
    for value in values:
        dist.all_reduce(value)
        value /= n_ranks()


def refuse_batch_norms(encoder: nn.Module) -> None:
    """Refuse layers that would see a rank's part of the batch alone, and make the result depend on how many there are.

    Batch norms that hold their statistics (``models.backbones.hold_statistics``) are fine.
    """
    for name, module in encoder.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise InvalidInputError(
                f"{name} is a batch norm, which on {n_ranks()} ranks would see its rank's part of a batch alone. "
                "Start from pretrained weights and hold their statistics (models.backbones.hold_statistics), use a "
                "network with layer or group norms, or train on one rank."
            )
