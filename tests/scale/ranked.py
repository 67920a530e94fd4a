"""Functions that ``launch`` runs on ranks; they must be importable."""

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist

import aureole as au
from aureole.errors import MissingInputError, MissingPackageError
from aureole.models import IndependentEncoder, ResidualMLP
from aureole.synthetic import ControlledProcess, draw_generator
from aureole.training import FitOptions, Phase, fit

DIM, STEPS, FATAL = 4, 20, 12


def fitted(folder, fatal):
    """(Parameters, ranks, whether the group was started again); one rank is killed by SIGKILL the first time."""
    process = ControlledProcess(draw_generator(DIM, (8.0, 32.0), kind="whitened", seed=4))
    torch.manual_seed(0)
    encoder = IndependentEncoder(*(ResidualMLP(DIM, n, width=16) for n in (DIM, 1)), n_in=DIM)
    encoder.initialise(process.inputs(512))
    mark = Path(folder) / "killed"
    again = fatal and mark.exists()

    def draw(step, rng):
        if fatal and not again and step == FATAL and dist.get_rank() == 1:
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if again and step < FATAL - 1:
            raise AssertionError("it began afresh instead of from the checkpoint")
        return process.batch(32, 80.0, generator=rng)

    result = fit(
        encoder, au.ClosedFormInfoNCE(20.0), draw, phases=[Phase("joint", STEPS, 1e-3)],
        options=FitOptions(precision="32-true", checkpoint_seconds=0.0),
        checkpoint=Path(folder) / "run.safetensors" if fatal else None,
    )  # fmt: skip
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    return torch.cat([p.flatten() for p in result.encoder.parameters()]).tolist(), ranks, again


def both(folder):
    """An undisturbed fit, and one in which a rank is killed."""
    return fitted(folder, fatal=False), fitted(folder, fatal=True)


def wrong(folder):
    """An error of ours on one rank, while the other waits for it."""
    (Path(folder) / f"{os.environ['RANK']}-{os.environ['TORCHELASTIC_RESTART_COUNT']}").touch()
    if dist.get_rank() == 1:
        raise MissingInputError("the config of this run is wrong; give another.")
    dist.barrier()


def lacks(folder):
    """A package is missing."""
    raise MissingPackageError("this needs more: pip install 'aureole[more]'.")


def dies(folder):
    """Ends at once, every time."""
    (Path(folder) / f"{os.environ['RANK']}-{os.environ['TORCHELASTIC_RESTART_COUNT']}").touch()
    os._exit(7)
