"""``aureole train``: train an encoder from a config, on one rank or several; resumes after an interruption."""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

import aureole as au
from aureole.cli._options import AsJson, check_out, expanded, run_digest
from aureole.cli._output import about_kappa, print_json, print_text, training_bar
from aureole.records import Record, write_record

if TYPE_CHECKING:
    from aureole.training._config import Config

HELP = r"""Train a posterior encoder from a config, and save it with a record of its metrics.

The config is a TOML file that describes a table of vectors with groups or pairs, or the controlled process; --example
prints one to start from, with all keys. Under torchrun several processes share each batch; the result is the same. If
the command is interrupted, even killed, run it again to resume, with any number of ranks.

Examples:

    aureole train --example vectors > config.toml
    aureole train config.toml --out encoder
    aureole train config.toml --out encoder --set training.steps=2000
    torchrun --nproc-per-node 8 -m aureole train config.toml --out encoder
"""


@expanded
def train(
    *,
    config: Annotated[Path | None, Argument(help="Config, a TOML file.")] = None,
    out: Annotated[Path | None, Option(help="Folder to save the encoder in.")] = None,
    changes: Annotated[
        list[str] | None,
        Option("--set", help="Override a config value: section.key=value; repeatable."),
    ] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an existing encoder.")] = False,
    example: Annotated[
        Literal["vectors", "process"] | None,
        Option(help="Print an example config for this kind of data, with all keys."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train and save an encoder; ``HELP`` is the text users see."""
    if example is not None:
        typer.echo(_example(example))
        return
    if config is None or out is None:
        raise typer.BadParameter("a config and --out are required (or --example for a config).")
    from aureole.training._config import paths_of, read_config, settings_of
    from aureole.training._distributed import is_first, joined, launched
    from aureole.training._fit import check_fabric

    started = time.monotonic()
    settings = read_config(config, changes or ())
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    check_out(out, "encoder", overwrite=overwrite or restarted)
    check_fabric()
    out = out.resolve()
    files = [
        file
        for path in paths_of(settings)
        for file in ([path] if path.is_file() else au.data._tables.table_files(path))
    ]
    digest = run_digest([settings.kind, settings_of(settings)], files)
    work = out.with_name(f"{out.name}.partial-{digest}")
    with joined() if launched() > 1 else nullcontext():
        metrics = _train(settings, out, work, quiet=as_json)
    if not is_first():
        return
    shutil.rmtree(work, ignore_errors=True)
    write_record(_record(settings, metrics, f"aureole train {config.name}"), out / "record.json")
    if as_json:
        shown = {k: v for k, v in metrics.items() if k not in ("curve", "data")}
        seconds = time.monotonic() - started
        print_json({"encoder": str(out), "kind": settings.kind, **shown, "seconds": seconds})
    else:
        _show(settings, metrics, out)


def _train(config: Config, out: Path, work: Path, *, quiet: bool) -> dict[str, Any]:
    """Return the metrics on the first rank; nothing on the others."""
    from aureole.losses._negatives import n_ranks, rank
    from aureole.training._distributed import from_first
    from aureole.training._recipes import train

    work = Path(from_first(str(work)))
    work.mkdir(parents=True, exist_ok=True)
    name = config.kind if n_ranks() == 1 else f"{config.kind}, {n_ranks()} ranks"
    with training_bar(name, shown=not quiet and rank() == 0) as observer:
        return train(config, out, work=work, observer=observer)


def _record(config: Config, metrics: dict[str, Any], command: str) -> Record:
    """Return the record of a training run; of paths it keeps the names alone."""
    from aureole.training._config import settings_of

    settings = {
        name: value.name if isinstance(value, Path) else value
        for name, value in settings_of(config).items()
    }
    return Record(
        f"train/{config.kind}",
        {name: value for name, value in metrics.items() if name not in ("data", "ranks")},
        command=command,
        seed=config.seed,
        settings={"data.kind": config.kind, **settings, "ranks": metrics["ranks"]},
        data=metrics.get("data", {}),
    )


def _example(kind: str) -> str:
    """Return a config of this kind, and a comment for each key."""
    from aureole.training._config import EXAMPLES, KINDS, keys_of

    lines = ["[data]", f'kind = "{kind}"', EXAMPLES[kind], "", "# all keys, with their defaults:"]
    for name, (_, key, default) in keys_of(KINDS[kind]).items():
        shown = f" = {json.dumps(default)}" if isinstance(default, int | float | str) else ""
        lines.append(f"# {name}{shown}: {key.help}")
    return "\n".join(lines)


def _show(config: Config, metrics: dict[str, Any], out: Path) -> None:
    ranks = "" if metrics["ranks"] == 1 else f" on {metrics['ranks']} ranks"
    kappa = about_kappa(*(metrics[f"kappa_{name}"] for name in ("low", "median", "high")))
    print_text(f"{config.steps:,} batches{ranks} in {metrics['seconds_training']:.0f} s; {kappa}")
    if "information" in metrics:
        shares = metrics["coverage"].items()
        covered = ", ".join(f"{100 * float(m):g} %: {100 * share:.1f} %" for m, share in shares)
        information = f"{metrics['information']:.3f} nats"
        print_text(f"held-out information {information}; coverage of caps {covered}")
    else:
        print_text(
            f"rank correlation with the truth: μ {metrics['mu_rank']:.3f}, κ {metrics['kappa_rank']:.3f}; mean "
            f"absolute error: μ {metrics['mu_mae']:.3f}, κ {metrics['kappa_mae']:.3f}"
        )
    print_text(f"saved in {out}")
