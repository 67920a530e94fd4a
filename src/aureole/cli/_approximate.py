"""``aureole index approximate``: a faster index on a gallery that is there, by one process or by a cluster."""

import sys
import time
from contextlib import redirect_stdout
from typing import Annotated, Literal

import torch
import typer

from aureole.cli._gallery import facts
from aureole.cli._index import QUERIES, show_facts, sizes_of
from aureole.cli._options import AsJson, Links, Lists, Probes, RayAddress, Width
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.retrieval import CredibleIndex, shown_address
from aureole.scale import build_lists

HELP = r"""Build an approximate index on a gallery: faster searches that may miss members of a cap.

It says how many members it finds for 20 rows of the gallery. With more than one worker, or at an address, Ray builds
the lists of a Lance table, each worker those of a part of the rows; with one it is not needed.

Examples:

    aureole index approximate photos.lance
    aureole index approximate photos.lance --probes 64 --workers 8 \
      --ray-address 10.0.0.1:6379
    aureole index approximate gallery.faiss --kind hnsw --width 256
"""


def approximate(
    gallery: Annotated[str, typer.Argument(help="The gallery's address.", metavar="ADDRESS")],
    kind: Annotated[Literal["ivf", "hnsw"], typer.Option(help="Lists, or a graph.")] = "ivf",
    lists: Lists = None,
    probes: Probes = None,
    links: Links = None,
    width: Width = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that build.")] = 1,
    ray_address: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    """Build an approximate index; ``HELP`` is what users read."""
    started = time.monotonic()
    sizes = sizes_of(kind, lists, probes, links, width)
    together = workers > 1 or ray_address is not None
    if together and kind != "ivf":
        raise typer.BadParameter("several workers build --kind ivf alone.")
    with CredibleIndex.open(gallery) as found:
        if not found.count():
            raise InvalidInputError(f"{shown_address(gallery)} has no rows to build an index of.")
        if together:
            with redirect_stdout(sys.stderr):  # Ray may have something to say
                build_lists(gallery, workers=workers, address=ray_address, **sizes)
        else:
            found.build(kind, **sizes)
        built = time.monotonic() - started
        posteriors, _ = found.fetch(_some_ids(found))
        recall = found.check_recall(posteriors, least=0.0)
        result = facts(found, gallery)
    show_facts({**result, "recall": recall.share, "seconds": built}, as_json=as_json)


def _some_ids(found: CredibleIndex) -> list[str]:
    """The rows that are nearest to some random directions."""
    rng = torch.Generator().manual_seed(0)
    mu = torch.nn.functional.normalize(
        torch.randn(QUERIES, found.schema.dim, generator=rng), dim=-1
    )
    hits = found.search(VonMisesFisher(mu, 0.0), 1.0, limit=1, exact=True)
    return sorted({one.ids[0] for one in hits})
