"""Approximate indexes of sharded galleries, built with Ray: one task per shard."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aureole.errors import AureoleError, InvalidInputError, error_from_dict, error_to_dict
from aureole.retrieval import (
    ShardedStore,
    check_build,
    engine_of,
    expect_part,
    is_local,
    shown_address,
)
from aureole.scale._posterior_table import absolute_address
from aureole.scale._ray import build_lists, run_tasks


@dataclass(frozen=True)
class ShardJob:
    """Which shard a task indexes, of how many, and how."""

    where: str
    shards: int
    compressed: bool
    sizes: dict[str, int]


def build_index(
    where: str,
    *,
    workers: int,
    address: str | None = None,
    compressed: bool = False,
    lists: int | None = None,
    probes: int | None = None,
    observer: Callable[[int], None] | None = None,
) -> None:
    """Build the approximate index (IVF) of a Lance table or of a gallery with shards, with several Ray workers.

    The shards are indexed in parallel, each by one task that opens this shard alone and learns its centres from its own
    rows: no process holds the vectors of all shards. If a task fails, the shards that are complete keep their index;
    searches use them. One table is divided among the workers, see :func:`build_lists`.

    Parameters
    ----------
    where
        The address of the gallery, a path that every worker can open.
    workers, address
        The number of workers, on this machine or on the Ray cluster at the address.
    compressed
        Build lists of codes instead of vectors, as in ``CredibleIndex.build``; only for shards.
    lists, probes
        As in ``CredibleIndex.build``, for each shard.
    observer
        Called with the number of rows of the shards that are complete.
    """
    if engine_of(where) is not ShardedStore:
        if compressed:
            raise InvalidInputError(
                f"several workers cannot compress one table, but {shown_address(where)} is one. Use one worker, or "
                "copy it to shards with `aureole index copy`."
            )
        build_lists(where, workers=workers, address=address, lists=lists, probes=probes)
        return
    given = {"lists": lists, "probes": probes}
    sizes = {name: size for name, size in given.items() if size is not None}
    check_build("ivf", sizes)
    store = ShardedStore.open(where)
    try:
        with store.exclusive() as shards:
            jobs = [ShardJob(_absolute(shard), len(shards), compressed, sizes) for shard in shards]
            done = 0
            for job, result, death in run_tasks(
                build_shard, jobs, workers=workers, address=address
            ):
                if death is not None:
                    reason = (str(death).strip().splitlines() or [type(death).__name__])[-1][:300]
                    raise AureoleError(
                        f"the worker that indexed {shown_address(job.where)} died: {reason} Run the same command again."
                    ) from death
                if "error" in result:
                    raise error_from_dict(result)
                done += result["rows"]
                if observer is not None:
                    observer(done)
    finally:
        store.close()


def build_shard(job: ShardJob) -> dict[str, Any]:
    """Index one shard, on a worker: its number of rows, or an ``AureoleError`` as JSON values."""
    try:
        store = engine_of(job.where).open(job.where)
        try:
            rows = store.count()
            if rows:  # a shard may have none, if there are few rows
                expect_part(store, job.shards)
                store.build("ivf", compressed=job.compressed, **job.sizes)
        finally:
            store.close()
    except AureoleError as error:
        return error_to_dict(error)
    return {"rows": rows}


def _absolute(shard: str) -> str:
    return absolute_address(shard) if is_local(shard) else shard
