"""The approximate index of a large gallery, built by many workers."""

from aureole.errors import InvalidInputError
from aureole.retrieval import LanceStore, check_build, default_lists, shown_address
from aureole.scale._table import absolute_address


def build_lists(where: str, *, workers: int, address: str | None = None, **sizes: int) -> None:
    """Build the lists (IVF) of a Lance gallery over Ray, with the ``lists`` and ``probes`` of ``CredibleIndex.build``.

    The centres of the lists are learned from a sample by the calling process; then each worker puts a part of the
    fragments into lists, and one commit makes all parts the gallery's index.
    """
    check_build("ivf", sizes)
    if not where.removesuffix("/").endswith(".lance"):
        raise InvalidInputError(
            f"many workers build the index of a Lance table alone, but {shown_address(where)} is none. "
            "Use one worker."
        )
    store = LanceStore.open(where)
    rows = store.count()
    lists = sizes.get("lists", default_lists(rows))
    if rows < 2 * lists:
        raise InvalidInputError(
            f"{lists:,} lists need {2 * lists:,} rows or more, but {shown_address(where)} has {rows:,}. Give fewer "
            "lists, or none: so few rows are searched fast without."
        )
    from aureole.scale._ray import create_lists

    anywhere = absolute_address(where)
    create_lists(anywhere, lists=lists, rows=rows, workers=workers, address=address)
    store.adopt(lists, sizes)
