"""The approximate index of a large gallery, built by many workers."""

from aureole.errors import InvalidInputError
from aureole.retrieval.lance import LanceStore
from aureole.retrieval.store import check_build, default_lists

__all__ = ["build_lists"]


def build_lists(where: str, *, workers: int, address: str | None = None, **sizes: int) -> None:
    """Build the lists (IVF) of a Lance gallery over Ray, with the ``lists`` and ``probes`` of ``CredibleIndex.build``.

    The centres of the lists are learned from a sample by the calling process; then each worker puts a part of the
    fragments into lists, and one commit makes all parts the gallery's index.
    """
    check_build("ivf", sizes)
    if not where.removesuffix("/").endswith(".lance"):
        raise InvalidInputError(
            f"many workers build the index of a Lance table alone, but {where} is none. Use one worker."
        )
    store = LanceStore.open(where)
    rows = store.count()
    lists = sizes.get("lists", default_lists(rows))
    if rows < 2 * lists:
        raise InvalidInputError(
            f"{lists:,} lists need {2 * lists:,} rows or more, but {where} has {rows:,}. Give fewer lists, or none: "
            "so few rows are searched fast without."
        )
    from aureole.scale.ray import create_lists

    create_lists(where, lists=lists, rows=rows, workers=workers, address=address)
    store.adopt(lists, sizes)
