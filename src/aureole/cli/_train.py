"""``aureole train``: an encoder from a config, on one rank or several, resumable."""

import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from aureole.cli._options import AsJson, check_out
from aureole.cli._progress import training_bar
from aureole.cli._results import print_json
from aureole.data import list_pictures, table_files
from aureole.losses import n_ranks, rank
from aureole.records import Record, write_record
from aureole.scale import launch
from aureole.training import (
    EXAMPLES,
    KEYS,
    Config,
    check_fabric,
    check_ranks,
    from_first,
    is_first,
    joined,
    launched,
    read_config,
    train as train_encoder,
)

HELP = r"""Train an encoder of posteriors as a config says, and save it in a folder with a record of what was measured.

The config is a small TOML file about a table of vectors with groups, a table of captions, a folder of labelled
pictures, or the controlled process. Its keys are in the documentation; --example prints one to start from.
With --ranks several processes share the work of each batch; the result is the same. A command that was stopped, even
killed, goes on where it was when it is given again, with any number of ranks.

Examples:

    aureole train --example vectors > config.toml
    aureole train config.toml --out encoder
    aureole train config.toml --out encoder --set training.steps=2000 --ranks 2
    torchrun --nproc-per-node 8 -m aureole train config.toml --out encoder
    aureole train config.toml --out encoder --ranks 16 \
      --ray-address ray://head:10001
"""
_Kind = Literal["vectors", "captions", "images", "process"]


def train(
    config: Annotated[Path | None, typer.Argument(help="The config, a TOML file.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to save the encoder in.")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="section.key=value instead of the config's; may be repeated."),
    ] = None,
    ranks: Annotated[
        int, typer.Option(min=1, help="Processes that share each batch, on this machine or Ray's.")
    ] = 1,
    restarts: Annotated[
        int, typer.Option(min=0, help="How often to start again when a rank dies.")
    ] = 3,
    ray_address: Annotated[
        str | None,
        typer.Option(
            help='Ranks by Ray Train on the cluster at this address, or "local"; the folder must be shared.'
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an encoder that is there.")
    ] = False,
    example: Annotated[
        _Kind | None, typer.Option(help="Print a config for data of this kind, and all its keys.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train and save an encoder; ``HELP`` is what users read."""
    if example is not None:
        typer.echo(_example(example))
        return
    if config is None or out is None:
        raise typer.BadParameter("give a config and --out, or --example for a config.")
    started = time.monotonic()
    wanted = read_config(config, changes or ())
    check_ranks(wanted, max(ranks, launched()))
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    check_out(out, "encoder", overwrite=overwrite or again)
    check_fabric()
    out = out.resolve()
    work = out.with_name(f"{out.name}.partial-{_digest(wanted)}")
    quiet = as_json or not sys.stderr.isatty()
    arguments = (wanted, out, work, quiet)
    if launched() > 1:  # by torchrun, or another launcher like it
        with joined():
            found = _on_rank(*arguments)
    elif ray_address is not None:
        from aureole.scale import run_ranks

        found = run_ranks(
            _on_rank, arguments, ranks=ranks, address=ray_address, restarts=restarts, work=work
        )
    elif ranks > 1:
        found = launch(_on_rank, *arguments, ranks=ranks, restarts=restarts)
    else:
        found = _on_rank(*arguments)
    if not is_first():
        return
    shutil.rmtree(work, ignore_errors=True)
    record = _record(wanted, found, f"aureole train {config.name}")
    write_record(record, out / "record.json")
    seconds = time.monotonic() - started
    if as_json:
        shown = {k: v for k, v in found.items() if k not in ("curve", "data")}
        print_json({"encoder": str(out), "kind": wanted.kind, **shown, "seconds": seconds})
    else:
        _show(wanted, found, out)


def _on_rank(config: Config, out: Path, work: Path, quiet: bool) -> dict[str, Any]:
    """The figures, on the first rank; what the others return is empty."""
    work = Path(from_first(str(work)))
    work.mkdir(parents=True, exist_ok=True)
    name = config.kind if n_ranks() == 1 else f"{config.kind}, {n_ranks()} ranks"
    with training_bar(name, shown=not quiet and rank() == 0) as observer:
        return train_encoder(config, out, work=work, observer=observer)


def _record(config: Config, found: dict[str, Any], command: str) -> Record:
    """What was measured, and what made it; of paths the names alone."""
    settings = {
        name: Path(value).name if name in _PATHS and value is not None else value
        for name, value in config.values.items()
    }
    return Record(
        f"train/{config.kind}",
        {name: value for name, value in found.items() if name not in ("data", "ranks")},
        command=command,
        seed=config["training.seed"],
        settings={"data.kind": config.kind, **settings, "ranks": found["ranks"]},
        data=found.get("data", {}),
    )


_PATHS = ("data.path", "data.columns_from", "data.pairs", "encoder.weights")


def _digest(config: Config) -> str:
    """What a run is known by: its config, and the files it reads, as they are now."""
    files: list[Path] = []
    for name in _PATHS:
        path = config.path(name) if name in config.values else None
        if path is None:
            continue
        if config.kind == "images" and path.is_dir():
            files += list_pictures(path)[0]
        else:
            files += [path] if path.is_file() else table_files(path)
    state = hashlib.sha256(json.dumps([config.kind, dict(config.values)]).encode())
    for file in files:
        facts = file.stat()
        state.update(f"{file.resolve()} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return state.hexdigest()[:12]


def _example(kind: str) -> str:
    """A config of this kind, and a comment for each key that it may have."""
    lines = [EXAMPLES[kind], "# all keys, with their defaults:"]
    for name, key in KEYS[kind].items():
        default = "" if key.needed or key.default is None else f" = {json.dumps(key.default)}"
        needed = " (needed)" if key.needed else ""
        lines.append(f"# {name}{default}{needed}: {key.help}")
    return "\n".join(lines)


def _show(config: Config, found: dict[str, Any], out: Path) -> None:
    console = Console(highlight=False, soft_wrap=True)
    ranks = "" if found["ranks"] == 1 else f" on {found['ranks']} ranks"
    console.print(
        f"{config['training.steps']:,} batches{ranks} in {found['seconds_training']:.0f} s; κ: median "
        f"{found['kappa_median']:.4g}, 90 % within {found['kappa_low']:.4g} to {found['kappa_high']:.4g}"
    )
    if "information" in found:
        covered = ", ".join(
            f"{100 * float(m):g} %: {100 * share:.1f} %" for m, share in found["coverage"].items()
        )
        console.print(f"held-out information {found['information']:.3f} nats; caps hold {covered}")
    else:
        console.print(
            f"rank correlation with the truth: μ {found['mu_rank']:.3f}, κ {found['kappa_rank']:.3f}; mean absolute "
            f"error: μ {found['mu_mae']:.3f}, κ {found['kappa_mae']:.3f}"
        )
    console.print(f"saved in {out}", markup=False)
