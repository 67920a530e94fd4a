"""The recipes of ``aureole train``: from a config to a saved encoder and the metrics of its record.

There is one recipe per kind of data: a table of vectors, and a process with known posteriors. All ranks call ``train``
with the same arguments.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from aureole.data import read_groups, read_vectors
from aureole.data._addresses import RemotePath
from aureole.data._array_files import ARRAYS
from aureole.data._tables import read_pairs, table_files
from aureole.errors import InvalidInputError
from aureole.evaluation import recovery
from aureole.losses import ClosedFormInfoNCE, ContrastiveLoss, InfoNCE, MCInfoNCE
from aureole.losses._negatives import n_ranks, rank
from aureole.models import Card, IndependentEncoder, ResidualMLP
from aureole.records import file_hash
from aureole.synthetic import ControlledProcess, draw_generator
from aureole.training._config import Config, ProcessConfig, VectorsConfig
from aureole.training._fit import Fit, FitOptions, Observer, Phase, fit
from aureole.training._frozen_head import FrozenHead


def train(
    config: Config, out: Path, *, work: Path, observer: Observer | None = None
) -> dict[str, Any]:
    """Train an encoder by a config, save it in ``out`` and return the metrics of its record ({} on ranks other than 0).

    ``work`` is a folder that all ranks share, for checkpoints: an interrupted run resumes from there. The caller
    deletes it.
    """
    if isinstance(config, VectorsConfig):
        return _train_on_vectors(config, out, work, observer)
    return _train_on_process(config, out, work, observer)


def _train_on_vectors(
    config: VectorsConfig, out: Path, work: Path, observer: Observer | None
) -> dict[str, Any]:
    """Train a head on a table of vectors."""
    columns = config.columns_from or config.path
    # an array file needs no column name; a table given as columns_from may contain only the ids of pairs
    grouped = config.group_column is not None or (
        config.columns_from is not None and columns.suffix in ARRAYS
    )
    if grouped == (config.pairs is not None):
        raise InvalidInputError(
            "give either data.group_column or data.pairs, not both and not neither."
        )
    vectors = read_vectors(config.path, config.vector_column, work=work)
    groups = read_groups(columns, config.group_column) if grouped else None
    pairs = None
    if config.pairs is not None:
        ids = (columns, config.id_column) if config.id_column else None
        pairs = read_pairs(config.pairs, (config.left, config.right), ids=ids)
    head = FrozenHead(
        config.dim,  # type: ignore[arg-type]
        kappa_pos=config.kappa_pos,
        width=config.width,
        steps=config.steps,
        items=config.items,
        lr=config.lr,
        held_out=config.held_out,
        seed=config.seed,
    )
    head.fit(vectors, groups, pairs=pairs, checkpoint=_checkpoint(work), observer=observer)
    if rank() > 0:
        return {}
    head.save(out, card=Card(name="A head on frozen vectors", data=config.path.name))
    return {
        "rows": len(vectors),
        "dim": head.dim_,
        "kappa_pos": head.kappa_pos_,
        "information": head.information_,
        "coverage": keyed(head.coverage_),
        **_fit_metrics(head.fit_),
        "data": hashes([p for p in (config.path, config.columns_from, config.pairs) if p]),
    }


def _train_on_process(
    config: ProcessConfig, out: Path, work: Path, observer: Observer | None
) -> dict[str, Any]:
    """Train an encoder for a synthetic process, and measure its errors against the known posteriors."""
    seed, dim, kappas = config.seed, config.dim, (config.kappa_low, config.kappa_high)
    generator = draw_generator(dim, kappas, kind=config.generator, seed=seed)  # type: ignore[arg-type]
    process = ControlledProcess(generator, kappa_pos=config.kappa_pos)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = [ResidualMLP(dim, n, width=config.width) for n in (dim, 1)]
        encoder = IndependentEncoder(*networks, n_in=dim)
        encoder.initialise(process.inputs(4096))

    def scores(model: nn.Module) -> dict[str, float]:
        x = process.inputs(2000, torch.Generator().manual_seed(~seed % 2**63))
        with torch.no_grad():
            return recovery(model(x), *process.generator(x), max_items=1000)

    fitted = fit(
        encoder,
        _make_loss(config),
        lambda _, rng: process.batch(config.items, config.pairs, generator=rng),
        phases=[Phase("joint", config.steps, config.lr)],
        options=FitOptions(seed=seed, evaluate_every=max(1, config.steps // 10)),
        checkpoint=_checkpoint(work),
        evaluate=scores,
        observer=observer,
    )
    if rank() > 0:
        return {}
    assert isinstance(fitted.encoder, IndependentEncoder)
    card = Card(name="A process with known posteriors", kappa_pos=config.kappa_pos, data="drawn")
    fitted.encoder.save(out, card=card)
    kinds = ("mu_", "kappa_r", "kappa_m")
    recovered = {name: v for name, v in fitted.curve[-1].items() if name.startswith(kinds)}
    return {"dim": dim, "kappa_pos": config.kappa_pos, **recovered, **_fit_metrics(fitted)}


def _make_loss(config: ProcessConfig) -> ContrastiveLoss:
    if config.loss == "mcinfonce":
        return MCInfoNCE(config.kappa_pos, config.n_samples)
    if config.loss == "infonce":
        return InfoNCE(temperature=1 / config.kappa_pos)
    return ClosedFormInfoNCE(config.kappa_pos, centring=config.centring)


def _checkpoint(work: Path) -> Path:
    return work / "checkpoint.safetensors"


def hashes(paths: Sequence[Path]) -> dict[str, str]:
    """Return the SHA-256 of each file by name; files of a folder are named "folder/file", remote ones have none."""
    by_name = {}
    for path in dict.fromkeys(paths):
        for file in table_files(path):
            if isinstance(file, RemotePath):
                by_name[str(file)] = "remote"
                continue
            name = file.name if file == path else f"{path.name}/{file.relative_to(path)}"
            by_name[str(file) if name in by_name else name] = file_hash(file)
    return by_name


def _fit_metrics(fitted: Fit) -> dict[str, Any]:
    """Return the metrics of a fit for a record, as JSON values: NaN and infinity become None.

    Examples
    --------
    >>> names = ("loss", "kappa_low", "kappa_median", "kappa_high", "information")
    >>> _fit_metrics(Fit(nn.Identity(), [dict.fromkeys(names, 0.5) | {"information": math.nan}]))["curve"]
    [{'loss': 0.5, 'kappa_low': 0.5, 'kappa_median': 0.5, 'kappa_high': 0.5, 'information': None}]
    """
    curve = [
        {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in point.items()
        }
        for point in fitted.curve
    ]
    return {
        **{name: curve[-1][name] for name in ("loss", "kappa_low", "kappa_median", "kappa_high")},
        "ranks": n_ranks(),
        "seconds_training": round(fitted.seconds, 1),
        "curve": curve,
    }


def keyed(coverage: dict[float, float]) -> dict[str, float]:
    """Return coverage by mass with text keys, for JSON."""
    return {f"{mass:g}": share for mass, share in coverage.items()}
