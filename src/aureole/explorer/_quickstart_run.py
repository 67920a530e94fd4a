"""The run of a quickstart: from nothing to an encoder, a gallery, a record and a page in one folder; resumable."""

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from aureole.data import blur_pictures, drawn_shapes, write_picture
from aureole.errors import InvalidInputError
from aureole.explorer._quickstart import QuickstartSetting, draw, measure, train
from aureole.explorer._quickstart_page import Findings, write_page
from aureole.explorer._quickstart_search import (
    GALLERIES,
    choose_query,
    two_searches,
    write_gallery,
)
from aureole.explorer._two_caps import CapSearch, count_labels, two_caps_figure
from aureole.records import Record, file_hash, read_record, write_record
from aureole.training import Observer

EXTRAS = "pip install 'aureole[train,reports,images,retrieval]'"
_PACKAGES = ("lightning_fabric", "matplotlib", "jinja2", "PIL")
_ENGINES = ("lance", "faiss")
_PLAN, _RECORD, _CHECKPOINT, _PAGE = (
    "plan.json",
    "quickstart.json",
    "training.safetensors",
    "quickstart.html",
)
_CAPS = "caps.svg"
_LARGE, _LARGEST = 40, 120  # pixels: of a picture on the page, and of a query

Say = Callable[[str], None]
Watch = Callable[[], AbstractContextManager[Observer | None]]


@dataclass(frozen=True)
class Quickstart:
    """A finished quickstart: its record, its page, its gallery, and whether it was there already."""

    record: Record
    page: Path
    gallery: Path
    found: bool = False


def missing_packages() -> list[str]:
    """What a quickstart needs and is not installed.

    Examples
    --------
    >>> missing_packages()
    []
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if not any(find_spec(name) for name in _ENGINES):
        missing.append(" or ".join(_ENGINES))
    return missing


def run_quickstart(
    out: Path,
    seed: int = 0,
    *,
    setting: QuickstartSetting | None = None,
    command: str,
    say: Say = lambda _: None,
    watch: Watch = nullcontext,
) -> Quickstart:
    """Draw, train, check, search and write all of it to a folder; one plain sentence is said before each step.

    A finished run is read, not repeated, and one that was stopped goes on from its last checkpoint. A folder that holds
    anything else is left alone, with an error.
    """
    setting = QuickstartSetting() if setting is None else setting
    plan = json.loads(json.dumps({"quickstart": setting.as_json(), "seed": seed}))
    _claim(out, plan)
    gallery = next((out / name for name in GALLERIES if (out / name).exists()), None)
    if (out / _RECORD).is_file() and (out / _PAGE).is_file() and gallery is not None:
        return Quickstart(read_record(out / _RECORD), out / _PAGE, gallery, found=True)
    started = time.monotonic()
    say(
        f"Drawing {setting.pictures + setting.held_out:,} shapes, and {setting.annotators} votes on what each shows."
    )
    shapes = draw(setting, seed)
    say(
        f"Training an encoder on {setting.pictures:,} of them: pairs with the same vote belong together."
    )
    with watch() as observer:
        encoder, seconds = train(
            setting, shapes.train, seed, checkpoint=out / _CHECKPOINT, observer=observer
        )
    encoder.save(out / "encoder")
    say(f"Checking it on the {setting.held_out:,} that it has not seen.")
    held_out = shapes.held_out
    posterior, metrics = measure(encoder, held_out)
    say("Searching for a star, and for the same star blurred.")
    gallery = write_gallery(out, out / "encoder", held_out, posterior, setting)
    query = choose_query(held_out, posterior.kappa, setting)
    searches = two_searches(gallery, encoder, held_out, query, setting)
    for search in searches:
        write_picture(search.picture, out / f"{search.title}.png")
    say("Writing the page.")
    labels = [held_out.names[label] for label in held_out.labels[: setting.gallery]]
    metrics |= {
        "query": held_out.names[int(held_out.probabilities[query].argmax())],
        "searches": [_as_json(search, labels) for search in searches],
        "seconds_training": seconds,
        "parameters": sum(p.numel() for p in encoder.parameters()),
    }
    large = drawn_shapes(setting.held_out, side=_LARGE, seed=10 * seed + 1).pictures
    queries = _large_queries(seed, query, setting)
    svg = two_caps_figure(searches, large[: setting.gallery], labels, queries)
    (out / _CAPS).write_text(_standalone(svg), encoding="utf-8")
    metrics["seconds"] = time.monotonic() - started
    written = {_CAPS: file_hash(out / _CAPS)}
    record = Record(
        "quickstart", metrics, command=command, seed=seed, settings=setting.as_json(), data=written
    )
    findings = Findings(
        record, held_out, posterior.kappa, large, searches, queries, next_steps(out, gallery)
    )
    page = write_page(findings, out / _PAGE)
    write_record(record, out / _RECORD)
    (out / _CHECKPOINT).unlink(missing_ok=True)
    return Quickstart(record, page, gallery)


def next_steps(out: Path, gallery: Path) -> list[tuple[str, str]]:
    """(What can be done with what was written, the command that does it)."""
    encoder, pictures = out / "encoder", out / "pictures"
    return [
        (
            "search for a picture of your own",
            f"aureole search {gallery} --image {out / 'blurred.png'} --encoder {encoder}",
        ),
        ("explore the gallery in one file", f"aureole report {gallery} --pictures {pictures}"),
        (
            "serve it, with a page for browsers",
            f"aureole serve --index {gallery} --encoder {encoder} --images {pictures} --label-column label",
        ),
    ]


def _claim(out: Path, plan: dict[str, Any]) -> None:
    """Make the folder ours: new, empty, or of a quickstart with the same plan."""
    marker = out / _PLAN
    if marker.is_file():
        try:
            found = json.loads(marker.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InvalidInputError(
                f"{marker} is not what a quickstart writes ({error}). Choose another folder with --out."
            ) from error
        if found != plan:
            theirs = found.get("seed") if isinstance(found, dict) else None
            raise InvalidInputError(
                f"{out} holds a quickstart with other settings or another seed ({theirs}). Choose another folder with "
                "--out, or delete this one."
            )
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidInputError(
            f"{out} is there and holds something else. Choose another folder with --out."
        )
    out.mkdir(parents=True, exist_ok=True)
    marker.write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")


def _as_json(search: CapSearch, labels: list[str]) -> dict[str, Any]:
    return {
        "title": search.title,
        "kappa": search.kappa,
        "degrees": search.degrees,
        "members": len(search.members),
        "labels": count_labels([labels[i] for i in search.members]),
    }


def _large_queries(seed: int, query: int, setting: QuickstartSetting) -> list[torch.Tensor]:
    """The query in a size for people, sharp and blurred by as much of its side."""
    sharp = drawn_shapes(query + 1, side=_LARGEST, seed=10 * seed + 1).pictures[query]
    width = setting.blur * _LARGEST / 32
    return [sharp, blur_pictures(sharp[None], torch.tensor([width]))[0]]


def _standalone(svg: str) -> str:
    return f'<?xml version="1.0" encoding="utf-8"?>\n{svg}\n'
