"""``aureole index copy`` and ``aureole index rebalance``: other engines, and more or fewer shards."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated

from typer import Argument, Option

from aureole.cli._index import index, show_gallery
from aureole.cli._options import AsJson, Gallery
from aureole.cli._output import is_quiet, rows_bar
from aureole.retrieval import CredibleIndex

COPY = """Copy a gallery to another address: to another engine, to shards, or from shards to one table.

A copy at an address that ends in .shards has several Lance tables, which searches read at once. The original is only
read. The copy has no approximate index; build it with `aureole index approximate`.

Examples:

    aureole index copy gallery.lance gallery.shards --shards 8
    aureole index copy gallery.shards merged.lance
    aureole index copy gallery.faiss postgresql://me@localhost/shop#gallery
"""
REBALANCE = """Distribute the rows of a gallery with shards to another number of shards.

Searches use the old shards until the new ones are complete. If it is interrupted, nothing has changed; run it again.
Needs twice the disk space meanwhile. Build approximate indexes again afterwards.

Examples:

    aureole index rebalance gallery.shards --shards 16
"""
_Shards = Option(min=1, max=1024, help="Number of tables.")


@index.command("copy", help=COPY)
def copy(
    gallery: Gallery,
    to: Annotated[str, Argument(help="Address of the copy.", metavar="TO")],
    shards: Annotated[int | None, _Shards] = None,
    as_json: AsJson = False,
) -> None:
    """Copy a gallery; ``COPY`` is the text users see."""
    with CredibleIndex.open(gallery) as opened, _bar("copying", opened, as_json) as observer:
        copied = opened.copy(to, shards=shards, observer=observer)
    with copied:
        show_gallery(copied, to, as_json=as_json)


@index.command("rebalance", help=REBALANCE)
def rebalance(gallery: Gallery, shards: Annotated[int, _Shards], as_json: AsJson = False) -> None:
    """Change the number of shards; ``REBALANCE`` is the text users see."""
    with CredibleIndex.open(gallery) as opened:
        with _bar("moving", opened, as_json) as observer:
            opened.rebalance(shards, observer=observer)
        show_gallery(opened, gallery, as_json=as_json)


def _bar(
    title: str, opened: CredibleIndex, as_json: bool
) -> AbstractContextManager[Callable[[int], None]]:
    return rows_bar(title, opened.count(), shown=not is_quiet(as_json=as_json))
