"""Train: from a config to an encoder in a folder and the figures of a record, on one rank or several.

Every rank calls ``train`` alike. What is read or made once (pictures, vectors of texts) the first rank leaves in the
folder for work, where the others map it, and where a run that is started again finds it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aureole.data import ARRAYS, read_column, read_groups, read_pairs, read_vectors, table_files
from aureole.errors import InvalidInputError
from aureole.losses import rank
from aureole.models import Card
from aureole.records import file_hash
from aureole.training._config import Config
from aureole.training._fit import Observer
from aureole.training._frozen import FrozenHead
from aureole.training._picture_recipe import train_pictures
from aureole.training._process_recipe import train_process
from aureole.training._recipe import figures, keyed, prepared

_BATCH, _LARGEST_HASHED = 64, 2**33  # texts at a time, bytes of a file


def train(
    config: Config, out: Path, *, work: Path, observer: Observer | None = None
) -> dict[str, Any]:
    """The figures of an encoder trained as the config says, which the first rank saves in ``out``; elsewhere {}.

    ``work`` is a folder that all ranks share, for checkpoints and what is prepared: a run that was stopped goes on
    from there. It is the caller's to delete.
    """
    recipes: dict[str, Callable[..., dict[str, Any]]] = {
        "vectors": _vectors,
        "captions": _captions,
        "images": train_pictures,
        "process": train_process,
    }
    found = recipes[config.kind](config, out, work, observer)
    return found if rank() == 0 else {}


def _vectors(config: Config, out: Path, work: Path, observer: Observer | None) -> dict[str, Any]:
    path = Path(config["data.path"])
    beside = config.path("data.columns_from")
    others = beside or path
    # a file of one array needs no name of a column; a table beside the vectors may hold the ids of pairs alone
    grouped = config["data.group_column"] is not None or (
        beside is not None and beside.suffix in ARRAYS
    )
    if grouped == (config["data.pairs"] is not None):
        raise InvalidInputError("give either data.group_column or data.pairs, one of the two.")
    vectors = read_vectors(path, config["data.vector_column"], work=work)
    groups = read_groups(others, config["data.group_column"]) if grouped else None
    pairs = config.path("data.pairs")
    partners = None
    if pairs is not None:
        ids = (others, config["data.id_column"]) if config["data.id_column"] else None
        partners = read_pairs(pairs, config["data.left"], config["data.right"], ids=ids)
    files = dict.fromkeys(p for p in (path, others, pairs) if p is not None)
    return _head(config, vectors, groups, partners, list(files), out, work, observer)


def _captions(config: Config, out: Path, work: Path, observer: Observer | None) -> dict[str, Any]:
    """A head on MiniLM's vectors of texts."""
    path = Path(config["data.path"])
    groups = read_groups(path, config["data.group_column"])

    def embed() -> np.ndarray:
        from aureole.training._sentence_transformers import minilm_folder, pooling_pipeline

        texts = read_column(path, config["data.text_column"])
        wrong = [n for n, text in enumerate(texts) if not isinstance(text, str) or not text.strip()]
        if wrong:
            raise InvalidInputError(
                f"row {wrong[0]} (counted from 0) of {path} has no text in {config['data.text_column']!r}. Drop "
                "such rows."
            )
        pipeline = pooling_pipeline(minilm_folder())
        found = pipeline.encode(list(texts), batch_size=_BATCH, show_progress_bar=False)
        return found.astype(np.float32)

    vectors = prepared(work / "vectors.npy", embed)
    return _head(config, vectors, groups, None, [path], out, work, observer)


def _head(
    config: Config,
    vectors: np.ndarray,
    groups: np.ndarray | None,
    partners: np.ndarray | None,
    files: list[Path],
    out: Path,
    work: Path,
    observer: Observer | None,
) -> dict[str, Any]:
    head = FrozenHead(
        config["encoder.dim"],
        kappa_pos=config["loss.kappa_pos"],
        width=config["encoder.width"],
        steps=config["training.steps"],
        items=config["training.items"],
        lr=config["training.lr"],
        held_out=config["training.held_out"],
        seed=config["training.seed"],
    )
    head.fit(
        vectors,
        groups,
        pairs=partners,
        checkpoint=work / "checkpoint.safetensors",
        observer=observer,
    )
    if rank() > 0:
        return {}
    head.save(out, card=Card(name="A head on frozen vectors", data=files[0].name))
    return {
        "rows": len(vectors),
        "dim": head.dim_,
        "kappa_pos": head.kappa_pos_,
        "information": head.information_,
        "coverage": keyed(head.coverage_),
        **figures(head.fit_),
        "data": hashes(files),
    }


def hashes(paths: Sequence[Path]) -> dict[str, str]:
    """The SHA-256 of each file that paths stand for, by its name, below its folder's where it is of a folder.

    Files of the same name are told apart by their whole paths. For one of more than 8 GiB it says so instead.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "table"
    >>> folder.mkdir()
    >>> _ = (folder / "a.csv").write_text("x")
    >>> hashes([folder])
    {'table/a.csv': '2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881'}
    """
    named = [
        (file.name if file == path else f"{path.name}/{file.relative_to(path)}", file)
        for path in paths
        for file in table_files(path)
    ]
    often = Counter(name for name, _ in named)
    found = {}
    for name, file in named:
        size = file.stat().st_size
        small = size <= _LARGEST_HASHED
        told = file_hash(file) if small else f"{size} bytes, too many to be hashed"
        found[name if often[name] == 1 else str(file)] = told
    return found
