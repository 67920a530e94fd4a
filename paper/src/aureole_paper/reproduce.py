"""``aureole reproduce``: the experiments, on one core or many; resumes after an interruption."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from aureole.cli import expanded, progress, training_bar
from aureole.errors import AureoleError, InvalidInputError, MissingInputError, MissingPackageError
from aureole.records import Record
from aureole_paper.names import EXPERIMENTS, BackboneName, LabelName, LossName

if TYPE_CHECKING:
    from aureole_paper.catalogue import AnySetting, Experiment

_COLUMNS = (
    *("mu_rank", "mu_mae", "kappa_rank", "kappa_mae", "spread_rank", "divergence"),
    *("entropy_rank", "crop_rank", "recall_at_1"),
)
_PATHS = ("--out", "--data-dir", "--cache")  # options that a record does not store
HELP = rf"""Run experiments and write one record per setting and seed.

If the command is interrupted, run it again to resume; finished runs are not repeated.

Experiments: {", ".join(EXPERIMENTS)}; or "all" except paper-preset.

Examples:

    aureole reproduce ambiguous --seeds 1 --out results
    aureole reproduce families --workers 4 --out results
    torchrun --nproc-per-node 2 -m aureole reproduce ambiguous \
      --out results/ranks
    aureole reproduce ambiguous --preset paper --max-batches 20
    aureole reproduce frozen-text --data-dir data --out paper/results/frozen
    aureole reproduce cifar10h --loss closed-form --labels soft --folds 5 \
      --data-dir data --out paper/results/cifar10h
"""


@dataclass(frozen=True)
class SeedOptions:
    """Which seeds to run, and how long."""

    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            "--folds",
            min=1,
            help="Number of seeds, or folds of CIFAR-10H (default: depends on the experiment).",
        ),
    ] = None
    first_seed: Annotated[
        int | None, typer.Option(min=0, help="First seed (default: depends on the experiment).")
    ] = None
    max_batches: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of batches of each run.")
    ] = None


@dataclass(frozen=True)
class ParallelOptions:
    """How to run in parallel; under torchrun several processes train each run together."""

    workers: Annotated[int, typer.Option(min=1, help="Runs at a time, one process each.")] = 1


@dataclass(frozen=True)
class Failure:
    """A run that ended with an error, its traceback, and whether only a file or a package was missing."""

    error: str
    details: str
    missing: bool = False


@dataclass(frozen=True)
class SettingOptions:
    """Which settings of the experiments to run."""

    only: Annotated[
        list[str] | None, typer.Option(help="Only the setting of this name; repeatable.")
    ] = None
    loss: Annotated[LossName | None, typer.Option(help="CIFAR-10H: runs with this loss.")] = None
    labels: Annotated[
        LabelName | None,
        typer.Option(
            help="CIFAR-10H: runs with these labels: all votes, their majority, or CIFAR-10's."
        ),
    ] = None
    backbone: Annotated[
        BackboneName | None, typer.Option(help="CIFAR-10H: runs with this backbone.")
    ] = None
    pretrained: Annotated[
        bool | None,
        typer.Option("--pretrained/--from-scratch", help="CIFAR-10H: runs with this start."),
    ] = None

    def given(self) -> dict[str, Any]:
        """The conditions on settings that were given, by the name of the field."""
        wanted = {**vars(self), "name": self.only or None}
        del wanted["only"]
        return {name: value for name, value in wanted.items() if value is not None}


@dataclass(frozen=True)
class Places:
    """Where records go, and where data come from."""

    out: Annotated[Path, typer.Option(help="Folder for the records.")] = Path(
        "paper/results/controlled"
    )
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the data sets (default: $AUREOLE_DATA).")
    ] = None
    cache: Annotated[
        Path | None, typer.Option(help="Folder of cached features (default: $AUREOLE_CACHE).")
    ] = None

    def resolved(self) -> Places:
        """The same places by absolute paths, for workers in another working directory."""
        data_dir, cache = self.data_dir, self.cache
        return Places(
            self.out.resolve(), data_dir and data_dir.resolve(), cache and cache.resolve()
        )


@expanded
def reproduce(
    *,
    names: Annotated[list[str], typer.Argument(help="Experiments to run.")],
    preset: Annotated[
        Literal["fast", "paper"],
        typer.Option(
            help="Our configuration for two cores, or the paper's own, which needs a GPU."
        ),
    ] = "fast",
    seeds: SeedOptions,
    parallel: ParallelOptions,
    settings: SettingOptions,
    places: Places,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
) -> None:
    """Run experiments and write one record per setting and seed; ``HELP`` is the text users see."""
    from aureole.training._distributed import is_first, joined, launched

    workers = parallel.workers
    if launched() > 1 and workers > 1:
        raise typer.BadParameter(
            "use either torchrun (processes per run) or --workers (runs at a time)."
        )
    jobs = _jobs(_experiments(names, settings.given(), preset), preset, seeds)
    quiet = as_json or not sys.stderr.isatty()
    outcomes = _outcomes(jobs, workers, places, quiet=quiet)
    results: list[tuple[AnySetting, int, Record]] = []
    failures, missing = [], []
    shown = not quiet and workers > 1
    with joined(), progress("runs", len(jobs), shown=shown) as show:
        for done, ((setting, seed), outcome) in enumerate(outcomes, 1):
            if isinstance(outcome, Failure) and outcome.missing:
                missing.append(outcome.error)
            elif isinstance(outcome, Failure):
                failures.append(f"{setting.name}, seed {seed}: {outcome.error}")
                typer.echo(outcome.details, err=True)
            else:
                results.append((setting, seed, outcome))
            show(done, len(jobs), f"{setting.name}, seed {seed}: done")
    if is_first() and (results or as_json):
        _show(results, as_json=as_json)
    missing = list(dict.fromkeys(missing))  # many runs may lack the same file
    if failures:
        raise AureoleError("; ".join(failures + missing))
    if missing:
        raise MissingInputError(" ".join(missing))


def _outcomes(
    jobs: list[tuple[AnySetting, int]], workers: int, places: Places, *, quiet: bool
) -> Iterator[tuple[tuple[AnySetting, int], Record | Failure]]:
    """Run the jobs one after the other, or several at a time in processes of their own."""
    from aureole.training._distributed import launched

    command = _command(sys.argv[1:])
    if workers > 1:
        import torch

        run = partial(_run, places=places.resolved(), command=command, quiet=True)
        start = {"initializer": torch.set_num_threads, "initargs": (1,)}
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), **start) as pool:
            futures = {pool.submit(_attempt, run, job): job for job in jobs}
            for future in as_completed(futures):
                yield futures[future], future.result()
        return
    run = partial(_run, places=places, command=command, quiet=quiet)
    for job in jobs:  # a rank that fails must end instead of starting the next run alone
        yield job, run(job) if launched() > 1 else _attempt(run, job)


def _attempt(run: Callable[[Any], Record], job: Any) -> Record | Failure:
    """Return the record of a run, or why there is none."""
    try:
        return run(job)
    except (MissingInputError, MissingPackageError) as error:
        return Failure(str(error), "", missing=True)
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}", traceback.format_exc())


def _experiments(names: list[str], wanted: Mapping[str, Any], preset: str) -> list[Experiment]:
    """The selected settings of experiments; an experiment without any is an error unless it comes from "all"."""
    from aureole_paper.catalogue import find_experiment

    selected = []
    shorter = [name for name in EXPERIMENTS if name != "paper-preset"]  # which takes days
    for name in shorter if "all" in names else names:
        try:
            experiment = find_experiment(name).narrowed(wanted)
            experiment.of_preset(preset)
        except InvalidInputError as error:
            if "all" in names:
                continue
            raise typer.BadParameter(str(error)) from error
        selected.append(experiment)
    if not selected:
        text = ", ".join(f"{name} {value}" for name, value in wanted.items())
        raise typer.BadParameter(f"no experiment has a setting with {text}.")
    return selected


def _jobs(
    experiments: list[Experiment], preset: str, options: SeedOptions
) -> list[tuple[AnySetting, int]]:
    """Every (setting, seed) once, ordered by seed, so that all settings have a first result early."""
    jobs: dict[tuple[str, int], tuple[AnySetting, int]] = {}
    for experiment in experiments:
        count = experiment.seeds if options.seeds is None else options.seeds
        first = experiment.first_seed if options.first_seed is None else options.first_seed
        for seed in range(first, first + count):
            for setting in experiment.of_preset(preset):
                job = setting.shortened(options.max_batches)
                jobs.setdefault((job.name, seed), (job, seed))
    return list(jobs.values())


def _command(arguments: list[str]) -> str:
    """The command as a record stores it: without paths of this machine."""
    kept, skip = ["aureole"], False
    for argument in arguments:
        if not skip and argument.split("=")[0] not in _PATHS:
            kept.append(argument)
        skip = argument in _PATHS
    return " ".join(kept)


def _run(job: tuple[AnySetting, int], *, places: Places, command: str, quiet: bool) -> Record:
    """Run one setting with one seed, with a progress bar unless ``quiet``."""
    from aureole.losses._negatives import rank
    from aureole_paper.runs import run

    (setting, seed), (data_dir, cache) = job, (places.data_dir, places.cache)
    work = partial(run, setting, seed, places.out, command=command, data_dir=data_dir, cache=cache)
    if quiet:
        return work()
    with training_bar(f"{setting.name}/{seed}", shown=rank() == 0) as bar:
        return work(observer=bar, progress=bar.part)


def _show(results: list[tuple[AnySetting, int, Record]], *, as_json: bool) -> None:
    if as_json:
        rows = [
            {"setting": setting.name, "seed": seed, "metrics": record.metrics}
            for setting, seed, record in results
        ]
        typer.echo(json.dumps(rows))
        return
    from rich.console import Console
    from rich.table import Column, Table

    columns = [c for c in _COLUMNS if any(c in record.metrics for _, _, record in results)]
    # wrapped before the last word, so that the table fits 80 columns
    headings = ("\n".join(column.rsplit("_", 1)) for column in columns)
    table = Table(Column("setting", no_wrap=True), "seed", *headings, "s")
    for setting, seed, record in results:
        values = [record.metrics.get(column) for column in columns]
        shown = ["-" if value is None else f"{value:.3f}" for value in values]
        table.add_row(setting.name, str(seed), *shown, f"{record.metrics['seconds_training']:.0f}")
    Console().print(table)


command = typer.Typer(add_completion=False)
command.command("reproduce", help=HELP)(reproduce)
