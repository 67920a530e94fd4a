"""OpenTelemetry traces: spans of requests, encoding and searching; nothing without them."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from aureole.errors import MissingPackageError
from aureole.serve._tracing import Tracing, TracingMiddleware, span
from tests.serve.conftest import ask, in_base64, names, running
from tests.serve.test_server import served

memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def exporter():
    return memory.InMemorySpanExporter()


@pytest.fixture
def tracing(exporter):
    made = Tracing(exporter)
    yield made
    made.close()


class Route:
    path = "/v1/items/{id:path}"


def call(app, method="GET", headers=()):
    """Send one request to an ASGI application; the messages that it sends."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": "/v1/items/secret-id",
        "headers": list(headers),
    }
    asyncio.run(app(scope, receive, send))
    return sent


def responding(status=200, error=None, children=()):
    """An application that opens child spans, then responds or raises."""

    async def app(scope, receive, send):
        scope["route"] = Route()
        for name, attributes in children:
            with span(name, **attributes):
                await asyncio.sleep(0)
        if error is not None:
            raise error
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return app


def test_a_request_is_a_span_with_its_children(tracing, exporter):
    children = [("encode", {"kind": "text", "inputs": 2}), ("search", {"limit": 10})]
    sent = call(tracing.wrap(responding(children=children)))
    assert sent[0]["status"] == 200
    encode, search, request = exporter.get_finished_spans()
    assert request.name == "GET /v1/items/{id:path}"
    assert request.attributes == {
        "http.request.method": "GET",
        "http.route": "/v1/items/{id:path}",
        "http.response.status_code": 200,
    }
    assert encode.parent.span_id == search.parent.span_id == request.context.span_id
    assert encode.attributes == {"aureole.kind": "text", "aureole.inputs": 2}
    assert request.resource.attributes["service.name"] == "aureole"


def test_nothing_of_the_request_is_in_a_span(tracing, exporter):
    headers = [(b"authorization", b"Bearer secret-key"), (b"x-custom", b"secret-header")]
    with pytest.raises(ValueError, match="secret"):
        call(tracing.wrap(responding(error=ValueError("secret-message"))), headers=headers)
    (request,) = exporter.get_finished_spans()
    assert "secret" not in request.to_json()
    assert not request.events
    assert not request.status.is_ok


@pytest.mark.parametrize(("status", "ok"), [(200, True), (404, True), (503, False)])
def test_server_errors_mark_the_span(tracing, exporter, status, ok):
    call(tracing.wrap(responding(status)))
    (request,) = exporter.get_finished_spans()
    assert request.status.is_ok is ok


def test_parent_comes_from_the_header(tracing, exporter):
    parent = f"00-{TRACE}-b7ad6b7169203331-01".encode()
    call(tracing.wrap(responding()), headers=[(b"traceparent", parent)])
    (request,) = exporter.get_finished_spans()
    assert f"{request.context.trace_id:032x}" == TRACE


@pytest.mark.parametrize("value", [b"", b"00-zz-zz-01", b"\xff\xfe" * 50, b"00-" + b"0" * 5000])
def test_hostile_parents_are_ignored(tracing, exporter, value):
    sent = call(
        tracing.wrap(responding()), headers=[(b"traceparent", value), (b"tracestate", value)]
    )
    assert sent[0]["status"] == 200
    (request,) = exporter.get_finished_spans()
    assert request.parent is None


def test_unknown_methods_do_not_name_spans(tracing, exporter):
    call(tracing.wrap(responding()), method="BREW" * 100)
    (request,) = exporter.get_finished_spans()
    assert request.attributes["http.request.method"] == "_OTHER"


def test_service_name_comes_from_the_environment(exporter, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop-search")
    made = Tracing(exporter)
    call(made.wrap(responding()))
    made.close()
    (request,) = exporter.get_finished_spans()
    assert request.resource.attributes["service.name"] == "shop-search"


def test_other_scopes_pass():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    asyncio.run(TracingMiddleware(app, None)({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"]


def test_without_tracing_a_span_does_nothing():
    first, second = span("search", limit=1), span("encode")
    assert first is second  # one shared object: nothing is created per request


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'aureole\[otel\]'"):
        Tracing()


def test_opentelemetry_is_not_imported_without_tracing():
    code = "import sys; import aureole.serve._tracing; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_search_over_http_has_spans(service, made, tracing, exporter):
    picture = in_base64(made[0] / "pictures" / f"{names()[0]}.png")
    with running(service, tracing=tracing) as place:
        body = {"query": {"image": picture}, "limit": 3}
        assert ask(place, "POST", "/v1/search", body)[0] == 200
    spans = {one.name: one for one in exporter.get_finished_spans()}
    assert set(spans) == {"encode", "search", "POST /v1/search"}
    request = spans["POST /v1/search"]
    assert spans["encode"].parent.span_id == request.context.span_id
    assert spans["search"].attributes["aureole.limit"] == 3
    assert picture[:40] not in "".join(one.to_json() for one in spans.values())


def test_rejected_requests_have_no_span(service, tracing, exporter):
    with running(service, key="a-long-key", tracing=tracing) as place:
        assert ask(place, "GET", "/v1/about")[0] == 401
    assert exporter.get_finished_spans() == ()


@contextlib.contextmanager
def collector():
    """(Address, bodies): an OTLP receiver on a free port of this machine."""
    bodies = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            assert self.path == "/v1/traces"
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", bodies
        finally:
            server.shutdown()
            thread.join(10)


def spans_of(bodies):
    """The spans of export requests."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    requests = [ExportTraceServiceRequest.FromString(body) for body in bodies]
    resources = [one for request in requests for one in request.resource_spans]
    return [span for one in resources for scope in one.scope_spans for span in scope.spans]


@pytest.mark.slow
def test_a_collector_gets_spans_without_keys_and_queries(made):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    key, words = "a-key-that-nobody-guesses", "words-of-a-private-query"
    picture = in_base64(made[0] / "pictures" / f"{names()[0]}.png")
    with collector() as (address, bodies):
        options = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_BSP_SCHEDULE_DELAY": "200"}
        quiet = {"AUREOLE_API_KEY": key, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        with served(made, "--trace", **options, **quiet) as (process, place):
            headers = {"Authorization": f"Bearer {key}"}
            body = {"query": {"image": picture}, "limit": 3, "filter": {"caption": words}}
            asked = [
                ask(place, "POST", "/v1/search", body, headers)[0],
                ask(place, "POST", "/v1/search", {"query": {"text": words}}, headers)[0],
                ask(place, "GET", f"/v1/items/{words}", headers=headers)[0],
                ask(place, "GET", "/v1/about", headers={"Authorization": f"Bearer {words}"})[0],
            ]
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
    assert asked == [200, 422, 404, 401]
    spans = spans_of(bodies)
    named = sorted(span.name for span in spans)
    assert named.count("POST /v1/search") == 2
    assert {"encode", "search", "GET /v1/items/{id:path}"} <= set(named)
    assert "GET /v1/about" not in named  # rejected before it is traced
    raw = b"".join(bodies)
    for private in (key, words, picture[:40]):
        assert private.encode() not in raw
