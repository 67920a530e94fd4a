"""Health and readiness: whether the workers run, and whether the engine and the encoder answer."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import torch

from aureole.distributions import VonMisesFisher
from aureole.retrieval import SearchOptions
from aureole.serve._batching import Batcher, Encoder, Engine, SearchPlan
from aureole.serve._errors import LOG, ApiError

_PROBE_SECONDS = 5.0  # after which a worker counts as not answering
_CACHED = 1.0  # seconds for which a result is reused: the route needs no key
_STUCK = 300.0  # seconds in one call of the engine, after which a restart is the only cure
_TINY = SearchPlan(1.0, 1, SearchOptions(kind="credible"), count=False)


class Readiness:
    """Probes of a service's workers. Results are cached for a second, and concurrent calls share one probe."""

    def __init__(self, engine: Engine, encoder: Encoder | None, dim: int) -> None:
        self._engine, self._encoder, self._dim = engine, encoder, dim
        self._probing: asyncio.Future[dict[str, str | None]] | None = None
        self._found: tuple[float, dict[str, str | None]] | None = None

    def check_alive(self) -> None:
        """Raise a 503 if a worker thread has ended, or if the engine is stuck in one call."""
        workers: list[tuple[str, Batcher[Any, Any]]] = [("engine", self._engine.queue)]
        if self._encoder is not None:
            workers.append(("encoder", self._encoder.queue))
        for name, queue in workers:
            if not queue.is_alive():
                raise ApiError("unavailable", f"the thread of the {name} has ended.")
        if self._engine.queue.seconds_busy() > _STUCK:
            raise ApiError("unavailable", f"the engine has been in one call for over {_STUCK:g} s.")

    async def check_ready(self) -> dict[str, Any]:
        """The state of the engine and of the encoder (None without one); raises a 503 unless both answer."""
        self.check_alive()
        found = self._found
        if found is None or time.monotonic() - found[0] > _CACHED:
            if self._probing is None:
                self._probing = asyncio.ensure_future(self._probe())
            states = await asyncio.shield(self._probing)
        else:
            states = found[1]
        failed = [
            f"the {name} {state}" for name, state in states.items() if state not in ("ok", None)
        ]
        if failed:
            raise ApiError("unavailable", f"not ready: {', '.join(failed)}.", retry_after=1)
        return {"status": "ready", **states}

    async def _probe(self) -> dict[str, str | None]:
        try:
            engine = self._state("engine", self._engine.queue, self._search)
            if self._encoder is None:
                states: dict[str, str | None] = {"engine": await engine, "encoder": None}
            else:
                encoder = self._state("encoder", self._encoder.queue, self._encoder.probe)
                first, second = await asyncio.gather(engine, encoder)
                states = {"engine": first, "encoder": second}
            self._found = (time.monotonic(), states)
            return states
        finally:
            self._probing = None

    async def _state(
        self, name: str, queue: Batcher[Any, Any], probe: Callable[[], Awaitable[Any]]
    ) -> str:
        # under load, batches that succeed are the proof, and a probe would only wait in the queue
        if len(queue) and queue.seconds_since_success() < _PROBE_SECONDS:
            return "ok"
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                await probe()
        except TimeoutError:
            return f"did not answer within {_PROBE_SECONDS:g} s"
        except Exception as error:
            if not isinstance(error, ApiError):
                LOG.error("the readiness probe of the %s failed", name, exc_info=error)
            return "failed"
        return "ok"

    async def _search(self) -> None:
        mu = torch.from_numpy(np.eye(1, self._dim, dtype=np.float32)[0])
        query = VonMisesFisher(mu, torch.tensor(1.0), validate_args=False)
        await self._engine.search(_TINY, query)
