"""``aureole reproduce``: the experiments, resumable, on one core or many."""

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Column, Table

from aureole.cli import sweep_bar, training_bar
from aureole.errors import AureoleError, InvalidInputError, MissingInputError
from aureole.losses import rank
from aureole.records import Record
from aureole.scale import Failure, launch, sweep
from aureole.training import check_fabric, is_first, joined, launched
from aureole_paper.catalogue import CATALOGUE, AnySetting, Experiment, find_experiment
from aureole_paper.cifar10h import BackboneName, LabelName
from aureole_paper.objectives import LossName
from aureole_paper.runs import run

_COLUMNS = (
    "mu_rank",
    "mu_mae",
    "kappa_rank",
    "kappa_mae",
    "spread_rank",
    "divergence",
    "entropy_rank",
    "crop_rank",
    "recall_at_1",
)
_PATHS = ("--out", "--data-dir", "--cache", "--address")  # what a record does not keep of a command
HELP = rf"""Run experiments and write one record per setting and seed.

A run that was interrupted goes on where it was when the same command is given again; a finished one is not repeated.

Experiments: {", ".join(CATALOGUE)}; or "all".

Examples:

    aureole reproduce ambiguous --seeds 1 --out results
    aureole reproduce families --workers 4 --out results
    aureole reproduce ambiguous --ranks 2 --out results/ranks
    aureole reproduce ambiguous --preset paper --max-batches 20
    aureole reproduce frozen-text --data-dir data --out paper/results/frozen
    aureole reproduce cifar10h --loss closed-form --labels soft --folds 5 \
      --data-dir data --out paper/results/cifar10h
"""


def reproduce(
    names: Annotated[list[str], typer.Argument(help="Which experiments.")],
    preset: Annotated[
        Literal["fast", "paper"],
        typer.Option(
            help="Ours, sized for two cores; or the paper's own configuration (a GPU's work)."
        ),
    ] = "fast",
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            "--folds",
            min=1,
            help="How many seeds, or folds of CIFAR-10H; default: as the experiment asks.",
        ),
    ] = None,
    first_seed: Annotated[
        int | None, typer.Option(min=0, help="The first seed; default: as the experiment asks.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Runs at a time; more than one go over Ray.")
    ] = 1,
    ranks: Annotated[
        int, typer.Option(min=1, help="Processes that train each run together, on this machine.")
    ] = 1,
    out: Annotated[Path, typer.Option(help="Where records go.")] = Path("paper/results/controlled"),
    max_batches: Annotated[
        int | None, typer.Option(min=1, help="Shorten every run to this many batches.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="A Ray cluster, e.g. ray://head:10001; out must be a shared folder."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only the setting of this name; may be repeated.")
    ] = None,
    loss: Annotated[LossName | None, typer.Option(help="CIFAR-10H: runs with this loss.")] = None,
    labels: Annotated[
        LabelName | None,
        typer.Option(
            help="CIFAR-10H: runs with these labels: all votes, their majority, or CIFAR-10's."
        ),
    ] = None,
    backbone: Annotated[
        BackboneName | None, typer.Option(help="CIFAR-10H: runs with this backbone.")
    ] = None,
    pretrained: Annotated[
        bool | None,
        typer.Option("--pretrained/--from-scratch", help="CIFAR-10H: runs that start so."),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where the images are; default: $AUREOLE_DATA.")
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(help="Where features of frozen encoders are kept; default: $AUREOLE_CACHE."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
) -> None:
    """Run experiments and write one record per setting and seed; ``HELP`` is what users read."""
    wanted = {
        "name": only or None,
        "loss": loss,
        "labels": labels,
        "backbone": backbone,
        "pretrained": pretrained,
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    if (ranks > 1 or launched() > 1) and (workers > 1 or address is not None):
        raise typer.BadParameter(
            "give either --ranks, processes for each run, or --workers and --address, runs at a time."
        )
    experiments = _experiments(names, given, preset)
    jobs = _jobs(experiments, preset, seeds, first_seed, max_batches)
    if ranks > 1:
        check_fabric()
    command = _command(sys.argv[1:])
    quiet = as_json or not sys.stderr.isatty()
    results: list[tuple[AnySetting, int, Record]] = []
    failures, missing = [], []
    console = Console(stderr=True)
    if workers == 1 and address is None:
        watched = partial(
            _watched, out=out, command=command, data_dir=data_dir, cache=cache, quiet=quiet
        )
        together = partial(launch, watched, ranks=ranks)
        if launched() > 1:  # a rank that fails must end, and not go on alone to the next run
            outcomes = ((job, watched(job)) for job in jobs)
        else:
            outcomes = sweep(together if ranks > 1 else watched, jobs)
    else:
        outcomes = sweep(
            partial(
                _unwatched,
                out=out.resolve(),
                command=command,
                data_dir=data_dir and data_dir.resolve(),
                cache=cache and cache.resolve(),
            ),
            jobs,
            workers=workers,
            address=address,
        )
    with joined(), sweep_bar("runs", len(jobs), shown=not quiet and workers > 1) as counter:
        for (setting, seed), outcome in outcomes:
            if isinstance(outcome, Failure) and outcome.missing:
                missing.append(outcome.error)
            elif isinstance(outcome, Failure):
                failures.append(f"{setting.name}, seed {seed}: {outcome.error}")
                console.print(outcome.details, highlight=False, markup=False)
            else:
                results.append((setting, seed, outcome))
            if not quiet and workers > 1:
                counter.advance(f"{setting.name}, seed {seed}: done")
    if is_first() and (results or as_json):
        _show(results, as_json=as_json)
    lacking = list(dict.fromkeys(missing))  # many runs lack the same
    if failures:
        raise AureoleError("; ".join(failures + lacking))
    if lacking:
        raise MissingInputError(" ".join(lacking))


def _experiments(names: list[str], wanted: Mapping[str, Any], preset: str) -> list[Experiment]:
    """The wanted settings of experiments: of "all" those that have some; one that is named must have them."""
    found = []
    for name in CATALOGUE if "all" in names else names:
        try:
            experiment = find_experiment(name).narrowed(wanted)
            experiment.of_preset(preset)
        except InvalidInputError as error:
            if "all" in names:
                continue
            raise typer.BadParameter(str(error)) from error
        found.append(experiment)
    if not found:
        text = ", ".join(f"{name} {value}" for name, value in wanted.items())
        raise typer.BadParameter(f"no experiment has a setting with {text}.")
    return found


def _jobs(
    experiments: list[Experiment],
    preset: str,
    seeds: int | None,
    first_seed: int | None,
    max_batches: int | None,
) -> list[tuple[AnySetting, int]]:
    """Every (setting, seed) once, seeds first, so that all settings have a first result early."""
    jobs: dict[tuple[str, int], tuple[AnySetting, int]] = {}
    for experiment in experiments:
        count = experiment.seeds if seeds is None else seeds
        first = experiment.first_seed if first_seed is None else first_seed
        for seed in range(first, first + count):
            for setting in experiment.of_preset(preset):
                job = setting.shortened(max_batches)
                jobs.setdefault((job.name, seed), (job, seed))
    return list(jobs.values())


def _command(arguments: list[str]) -> str:
    """The command as a record keeps it: without places on this machine."""
    kept, skip = ["aureole"], False
    for argument in arguments:
        if not skip and argument.split("=")[0] not in _PATHS:
            kept.append(argument)
        skip = argument in _PATHS
    return " ".join(kept)


def _watched(
    job: tuple[AnySetting, int],
    *,
    out: Path,
    command: str,
    data_dir: Path | None,
    cache: Path | None,
    quiet: bool,
) -> Record:
    setting, seed = job
    with training_bar(f"{setting.name}/{seed}", shown=not quiet and rank() == 0) as bar:
        return run(
            setting, seed, out, command=command, data_dir=data_dir, cache=cache, observer=bar,
            progress=bar.part,
        )  # fmt: skip


def _unwatched(
    job: tuple[AnySetting, int],
    *,
    out: Path,
    command: str,
    data_dir: Path | None,
    cache: Path | None,
) -> Record:
    return run(*job, out, command=command, data_dir=data_dir, cache=cache)


def _show(results: list[tuple[AnySetting, int, Record]], *, as_json: bool) -> None:
    if as_json:
        rows = [
            {"setting": setting.name, "seed": seed, "metrics": record.metrics}
            for setting, seed, record in results
        ]
        typer.echo(json.dumps(rows))
        return
    columns = [c for c in _COLUMNS if any(c in record.metrics for _, _, record in results)]
    table = Table(Column("setting", no_wrap=True), "seed", *(_heading(c) for c in columns), "s")
    for setting, seed, record in results:
        values = [record.metrics.get(column) for column in columns]
        shown = ["-" if value is None else f"{value:.3f}" for value in values]
        table.add_row(setting.name, str(seed), *shown, f"{record.metrics['seconds_training']:.0f}")
    Console().print(table)


def _heading(column: str) -> str:
    """A metric's name, broken before its last word, so that a table fits 80 columns."""
    return "\n".join(column.rsplit("_", 1))


command = typer.Typer(add_completion=False)
command.command("reproduce", help=HELP)(reproduce)
