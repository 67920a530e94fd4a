"""OpenTelemetry traces of requests: one span per request, with child spans for encoding and searching.

The only file that imports OpenTelemetry, and only when tracing is switched on. Without it, :func:`span` looks up one
context variable and does nothing. Spans have methods, routes, status codes and counts as attributes; they never contain
keys, ids, paths, texts, vectors or other parts of a request.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any

import aureole
from aureole.errors import MissingPackageError

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
_PROPAGATED = (b"traceparent", b"tracestate")
_METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE")
_NOTHING: AbstractContextManager[None] = nullcontext()
_TRACER: ContextVar[Any] = ContextVar("aureole_tracer", default=None)


def span(name: str, **attributes: str | int) -> AbstractContextManager[Any]:
    """A child span of the current request; does nothing if the request is not traced.

    Examples
    --------
    >>> with span("search", limit=10):
    ...     print("not traced")
    not traced
    """
    tracer = _TRACER.get()
    if tracer is None:
        return _NOTHING
    prefixed = {f"aureole.{key}": value for key, value in attributes.items()}
    return tracer.start_as_current_span(name, attributes=prefixed)


class Tracing:
    """A source of spans that are exported with OTLP over HTTP.

    The standard variables configure it: ``OTEL_EXPORTER_OTLP_ENDPOINT`` (default: the collector on this machine, port
    4318), ``OTEL_SERVICE_NAME`` (default ``aureole``), ``OTEL_TRACES_SAMPLER``, ``OTEL_RESOURCE_ATTRIBUTES`` and the
    other variables of the OpenTelemetry SDK. Spans are exported by a thread; if the collector is down, they are dropped
    and the SDK logs a warning. ``close`` exports the remaining spans.

    Parameters
    ----------
    exporter
        An OpenTelemetry ``SpanExporter`` to use instead, which then gets each span as soon as it ends.
    """

    def __init__(self, exporter: Any = None) -> None:
        try:
            from opentelemetry.propagate import extract
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
            from opentelemetry.trace import SpanKind, StatusCode

            if exporter is None:
                from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

                processor = BatchSpanProcessor(OTLPSpanExporter())
            else:
                processor = SimpleSpanProcessor(exporter)
        except ImportError as error:
            raise MissingPackageError(
                f"traces need OpenTelemetry ({error}): pip install 'aureole[otel]'."
            ) from error
        own = {"service.name": "aureole", "service.version": aureole.__version__}
        resource = Resource.create(own).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("aureole.serve", aureole.__version__)
        self._extract, self._server, self._error = extract, SpanKind.SERVER, StatusCode.ERROR

    def wrap(self, app: Any) -> "TracingMiddleware":
        """The ASGI application with a span for each of its requests."""
        return TracingMiddleware(app, self)

    def request_span(self, method: str, headers: list[tuple[bytes, bytes]]) -> Any:
        """A span for a request; its parent is the client's span, if the headers name one."""
        carrier = {
            name.decode(): value.decode("latin-1") for name, value in headers if name in _PROPAGATED
        }
        return self._tracer.start_as_current_span(
            method,
            context=self._extract(carrier),
            kind=self._server,
            attributes={"http.request.method": method},
            record_exception=False,  # its message may quote the request
            set_status_on_exception=False,
        )

    def activate(self) -> None:
        """Let :func:`span` create spans in the current context."""
        _TRACER.set(self._tracer)

    def finish(self, current: Any, method: str, route: str | None, status: int | None) -> None:
        """Name a request's span after its route, and mark it as an error if it failed or got no response."""
        if route is not None:
            current.update_name(f"{method} {route}")
            current.set_attribute("http.route", route)
        if status is not None:
            current.set_attribute("http.response.status_code", status)
        if status is None or status >= 500:
            current.set_status(self._error)

    def close(self) -> None:
        """Export the remaining spans, and stop the thread."""
        self._provider.shutdown()


class TracingMiddleware:
    """An ASGI application around another that creates a span for each HTTP request."""

    def __init__(self, app: Any, tracing: Tracing) -> None:
        self._app, self._tracing = app, tracing

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Handle a request inside a span; other scopes are passed on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status: int | None = None

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        with self._tracing.request_span(method, scope["headers"]) as current:
            self._tracing.activate()
            try:
                await self._app(scope, receive, watched)
            finally:
                route = getattr(scope.get("route"), "path", None)
                self._tracing.finish(current, method, route, status)
