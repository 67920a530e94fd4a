"""``aureole index release`` and ``rollback``: which version of a gallery is in service."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

import aureole as au
from aureole.cli._index import index
from aureole.cli._inputs import EncoderSpec
from aureole.cli._options import AsJson, OptionalHead, expanded
from aureole.cli._output import (
    add_row,
    is_quiet,
    print_json,
    print_table,
    print_text,
    rows_bar,
    table,
)
from aureole.errors import AureoleError

RELEASE = r"""Put a new version of a gallery in service, after checking it against the current one.

Every command takes a path that ends in .live for a gallery. It is a small file that names the version in service; the
first release creates it. A release replaces it in one step: a running `aureole serve` and every open index use the new
version from then on, and no answer mixes the two. The old version is not changed, and `aureole index rollback` returns
to it.

Refused (status 1), unless you add --force: invalid rows, columns that are missing, more than 1 % of the ids missing, a
recall below 0.98, a calibration that is missing, a --head that did not make the gallery, kappas that are all equal.
Name the model of the new version if it differs, so that services can load it.

Examples:

    aureole index release shop-1.lance shop.live
    aureole index release shop-2.lance shop.live --head head-2 \
      --encoder sentence-transformers:all-MiniLM-L6-v2
    aureole index release shop-2.lance shop.live --force --json
"""
ROLLBACK = """Put the previous version of a gallery back in service. A second rollback undoes the first.

Examples:

    aureole index rollback shop.live
"""
_LIVE = Argument(help="File that names the version in service.", metavar="NAME.live")
_MARKS = {"passed": "ok", "warning": "warning", "failed": "FAILED"}


@index.command("release", help=RELEASE)
@expanded
def release(
    *,
    gallery: Annotated[str, Argument(help="Address of the new version.", metavar="ADDRESS")],
    live: Annotated[str, _LIVE],
    encoder: EncoderSpec = None,
    head: OptionalHead = None,
    calibrator: Annotated[Path | None, Option(help="Folder of its calibrator of matches.")] = None,
    force: Annotated[bool, Option("--force", help="Switch even if checks fail.")] = False,
    as_json: AsJson = False,
) -> None:
    """Release a version; ``RELEASE`` is the text users see."""
    started = time.monotonic()
    model = {
        "encoder": None if encoder is None else au.encoders.absolute_spec(encoder),
        "head": head,
        "calibrator": calibrator,
    }
    total, shown = _total(gallery, live), not is_quiet(as_json=as_json)
    with rows_bar("checking", total, shown=shown) as observer:
        done = au.retrieval.release(gallery, live, model=model, force=force, observer=observer)
    if as_json:
        print_json(
            {**_facts(live, done.live), **_checks(done), "seconds": time.monotonic() - started}
        )
    else:
        _show(done, gallery, live)
    if not done.switched:
        raise typer.Exit(1)


@index.command("rollback", help=ROLLBACK)
def rollback(live: Annotated[str, _LIVE], as_json: AsJson = False) -> None:
    """Return to the previous version; ``ROLLBACK`` is the text users see."""
    now = au.retrieval.rollback(live)
    if as_json:
        print_json(_facts(live, now))
    else:
        print_text(_in_service(live, now))


def _total(gallery: str, live: str) -> int | None:
    """The number of rows that the checks read, if it is known."""
    total = 0
    for address, passes in ((gallery, 2), (live, 1)):
        try:
            with au.CredibleIndex.open(address, follow=False) as opened:
                total += passes * opened.count()
        except AureoleError:  # reported by the release itself, or the first release
            if passes > 1:
                return None
    return total


def _facts(where: str, live: au.retrieval.Live | None) -> dict[str, Any]:
    current = None if live is None else au.retrieval.shown_address(live.current.gallery)
    previous = live.previous if live is not None else None
    return {
        "live": where,
        "number": None if live is None else live.number,
        "current": current,
        "previous": None if previous is None else au.retrieval.shown_address(previous.gallery),
    }


def _checks(done: au.retrieval.Release) -> dict[str, Any]:
    checks = [
        {"name": each.name, "outcome": each.outcome, "text": each.text, "values": each.values}
        for each in done.checks
    ]
    return {"switched": done.switched, "checks": checks}


def _show(done: au.retrieval.Release, gallery: str, live: str) -> None:
    rows = table(f"checks of {au.retrieval.shown_address(gallery)}", "check", "outcome", "")
    for check in done.checks:
        add_row(rows, check.name, _MARKS[check.outcome], check.text)
    print_table(rows)
    if done.switched:
        print_text(_in_service(live, done.live))
        return
    count = len(done.failed)
    checks = f"{count} {'check' if count == 1 else 'checks'} failed"
    print_text(f"{checks}, so nothing has changed. Add --force to switch nevertheless.")


def _in_service(where: str, live: au.retrieval.Live | None) -> str:
    assert live is not None
    text = f"{where}: {au.retrieval.shown_address(live.current.gallery)} is in service (release {live.number})"
    if live.previous is not None:
        text += f"; before: {au.retrieval.shown_address(live.previous.gallery)}"
    return text
