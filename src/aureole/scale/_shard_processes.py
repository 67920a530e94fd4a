"""Shards in processes of their own, on this machine or on a cluster, with Ray Serve.

Ray Serve starts the processes of every shard (its replicas), distributes requests among them, checks their health and
replaces those that die; a router of our own would have to do all of that again. The process that searches reads the
manifest, asks all shards at once and merges their answers. It writes to the tables itself, so changes need no replica,
and a search of a replica starts with the latest version of its table.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from secrets import token_hex
from threading import Lock
from typing import Any

import numpy as np

from aureole.errors import (
    AureoleError,
    InvalidInputError,
    MissingPackageError,
    ShardUnavailableError,
)
from aureole.retrieval import (
    CredibleIndex,
    Rows,
    Selection,
    ShardedStore,
    engine_of,
    exact_cosines,
    pick_rows,
    shown_address,
)
from aureole.scale._posterior_table import absolute_address
from aureole.scale._ray import ray_running

LOG = logging.getLogger("aureole.scale")
_HEALTH_SECONDS = 1.0  # between checks of a replica, so also how long a death may go unnoticed
_WAITING = 64  # requests that a replica may hold: Ray Serve is slow to send the next one if there is just one
_ONE_CORE = {"OMP_NUM_THREADS": "1", "LANCE_CPU_THREADS": "1"}  # more replicas use more cores
_QUIET = {"log_level": "ERROR", "enable_access_log": False}


def open_shards(
    where: str, *, replicas: int = 1, timeout: float = 2.0, address: str | None = None
) -> CredibleIndex:
    """Open a gallery with shards, and search each shard in processes of its own.

    A shard that does not respond in time is left out: ``Hits.missing_shards`` names it, and the hits are exactly those
    of the other shards. Ray Serve restarts its process meanwhile.

    Parameters
    ----------
    where
        The address of the gallery, a folder that ends in ``.shards``. All nodes must reach it by the same path.
    replicas
        The number of processes of each shard.
    timeout
        Seconds that a search waits for a shard.
    address
        A Ray cluster (default: a Ray on this machine, for as long as the index is open).

    Examples
    --------
    >>> with open_shards("gallery.shards", replicas=2) as index:  # doctest: +SKIP
    ...     hits = index.search(query)
    """
    if engine_of(where) is not ShardedStore:
        raise InvalidInputError(
            f"{shown_address(where)} has no shards. `aureole index copy` copies it to an address that ends in .shards."
        )
    if replicas < 1 or not timeout > 0:
        raise InvalidInputError(
            f"replicas must be at least 1 and the timeout positive, but are {replicas} and {timeout}."
        )
    with ExitStack() as stack:
        pool = ShardProcesses(replicas=replicas, timeout=timeout, address=address)
        stack.callback(pool.close)
        index = CredibleIndex(ShardedStore.open(where, pool))
        stack.pop_all()
    return index


class ShardProcesses:
    """The processes of all shards: a ``SearcherPool``."""

    def __init__(self, *, replicas: int, timeout: float, address: str | None) -> None:
        self._replicas, self._timeout, self._address = replicas, timeout, address
        self._stack = ExitStack()
        self._applications: list[str] = []

    def open(self, addresses: list[str]) -> "Sequence[ServedShard]":
        """Start the processes of some shards, and stop those of the shards before."""
        serve = self._serve(len(addresses))
        shard = serve.deployment(
            num_replicas=self._replicas,
            max_ongoing_requests=_WAITING,
            ray_actor_options={"num_cpus": 1, "runtime_env": {"env_vars": _ONE_CORE}},
            health_check_period_s=_HEALTH_SECONDS,
            graceful_shutdown_timeout_s=5,
            logging_config=_QUIET,
        )(ShardReplica)
        run = token_hex(4)
        names = [f"aureole-shard-{number}-{run}" for number in range(len(addresses))]
        targets = [
            serve.RunTarget(shard.bind(absolute_address(place)), name=name, route_prefix=None)
            for name, place in zip(names, addresses, strict=True)
        ]
        handles = serve.run_many(targets)
        before, self._applications = self._applications, names
        for name in before:
            serve.delete(name, _blocking=False)
        return [
            ServedShard(handle, place, self._timeout)
            for handle, place in zip(handles, addresses, strict=True)
        ]

    def close(self) -> None:
        """Stop the processes, and Ray if it was started for them."""
        if self._applications:
            serve = self._serve(0)
            for name in self._applications:
                serve.delete(name, _blocking=False)
            self._applications = []
        self._stack.close()

    def _serve(self, shards: int) -> Any:
        """Ray Serve on a running Ray, without its own HTTP proxy."""
        import ray

        if not ray.is_initialized():
            local = ray_running(shards * self._replicas, self._address, background=False)
            self._stack.enter_context(local)
        try:
            from ray import serve
        except ImportError as error:
            raise MissingPackageError(
                f"processes of shards need Ray Serve ({error}): pip install 'aureole[scale]'."
            ) from error
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        serve.start(proxy_location="Disabled", logging_config=_QUIET)
        return serve


class ServedShard:
    """A shard that is searched by its replicas.

    After a request that got no response, the next ones fail without waiting until a health check succeeds, so that a
    dead shard delays one search by the timeout and not all.
    """

    def __init__(self, handle: Any, address: str, timeout: float) -> None:
        self._handle, self._address, self._timeout = handle, address, timeout
        self._probe: Any = None

    def candidates(
        self, mu: np.ndarray, bounds: np.ndarray, selection: Selection
    ) -> Iterator[Rows]:
        """All rows within each query's bound."""
        return iter(self._ask("candidates", mu, bounds, selection))

    def nearest(self, mu: np.ndarray, k: int, selection: Selection) -> Iterator[Rows]:
        """The k nearest rows of each query."""
        return iter(self._ask("nearest", mu, k, selection))

    def _ask(self, method: str, *arguments: Any) -> list[Rows]:
        if self._probe is not None and not self._is_back():
            raise ShardUnavailableError(f"the shard {self._address} does not respond.")
        response = getattr(self._handle, method).remote(*arguments)
        try:
            return response.result(timeout_s=self._timeout)
        except AureoleError:
            raise
        except Exception as error:  # a replica that died, a lost connection, no answer in time
            response.cancel()
            self._probe = self._handle.check_health.remote()
            LOG.warning("the shard %s does not respond: %s", self._address, type(error).__name__)
            raise ShardUnavailableError(
                f"the shard {self._address} did not respond within {self._timeout:g} seconds."
            ) from error

    def _is_back(self) -> bool:
        """Whether a replica answers again."""
        try:
            self._probe.result(timeout_s=0)
        except TimeoutError:
            return False
        except Exception:  # the replica that was asked died
            self._probe = self._handle.check_health.remote()
            return False
        self._probe = None
        return True


class ShardReplica:
    """One process of a shard: it opens the shard, and answers searches with the members of each cap."""

    def __init__(self, address: str) -> None:
        import torch

        torch.set_num_threads(1)
        self._store, self._lock = engine_of(address).open(address), Lock()

    def candidates(self, mu: np.ndarray, bounds: np.ndarray, selection: Selection) -> list[Rows]:
        """The rows within each query's bound; those that the engine returned beyond it are not sent."""
        with self._lock:  # a store is not thread-safe
            found = self._store.candidates(mu, bounds, selection)
            return [
                pick_rows(rows, np.flatnonzero(exact_cosines(query, rows.mu) >= bound))
                for query, bound, rows in zip(mu, bounds.tolist(), found, strict=True)
            ]

    def nearest(self, mu: np.ndarray, k: int, selection: Selection) -> list[Rows]:
        """The k nearest rows of each query."""
        with self._lock:
            return list(self._store.nearest(mu, k, selection))

    def check_health(self) -> None:
        """Raise if the table cannot be read; Ray Serve then replaces the process."""
        with self._lock:
            self._store.count()
