"""Metrics for Prometheus: requests, their time, batches and queues. The one file that imports prometheus_client."""

from collections.abc import Callable
from typing import Any

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters of one service, in a registry of their own."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self._registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self._registry}
        self._requests = Counter(
            "aureole_requests", "Answers by route and status.", ["method", "route", "status"], **own
        )
        self._seconds = Histogram(
            "aureole_request_seconds",
            "Time to the end of an answer.",
            ["route"],
            buckets=_SECONDS,
            **own,
        )
        self._flying = Gauge("aureole_requests_in_flight", "Requests being answered.", **own)
        self._sizes = Histogram(
            "aureole_batch_size", "Requests that shared a call.", ["worker"], buckets=_SIZES, **own
        )
        self._worked = Histogram(
            "aureole_batch_seconds", "Time of a call.", ["worker"], buckets=_SECONDS, **own
        )
        self._waiting = Gauge(
            "aureole_waiting", "Requests that wait for a worker.", ["worker"], **own
        )
        self._rows = Gauge("aureole_rows", "Items of the gallery at the start.", **own)
        self._children: dict[tuple[str, str, int], tuple[Any, Any]] = {}

    def begin(self) -> None:
        """Count a request that begins."""
        self._flying.inc()

    def end(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that ended."""
        self._flying.dec()
        key = (method, route, status)
        if key not in self._children:
            self._children[key] = (
                self._requests.labels(method, route, str(status)),
                self._seconds.labels(route),
            )
        count, time = self._children[key]
        count.inc()
        time.observe(seconds)

    def worker(self, name: str) -> Callable[[int, float], None]:
        """What a worker calls after each batch."""
        size, worked = self._sizes.labels(name), self._worked.labels(name)

        def seen(count: int, seconds: float) -> None:
            size.observe(count)
            worked.observe(seconds)

        return seen

    def watch(self, name: str, waiting: Callable[[], int]) -> None:
        """Show how many wait for a worker."""
        self._waiting.labels(name).set_function(waiting)

    def show_rows(self, rows: int) -> None:
        """Show the size of the gallery."""
        self._rows.set(rows)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)
