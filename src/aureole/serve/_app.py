"""The HTTP application: routes, their description, and errors of one shape. The one file that imports FastAPI."""

from typing import Annotated, Any, Literal

from fastapi import Body, FastAPI, Header, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import aureole
from aureole.serve import _models as models
from aureole.serve._faults import STATUS, Fault
from aureole.serve._guard import Guard
from aureole.serve._limits import Limits
from aureole.serve._metrics import Metrics
from aureole.serve._page import StaticFile, read_static
from aureole.serve._service import Service
from aureole.serve._wire import to_json

_ABOUT = """Embeddings that know how sure they are: posteriors vMF(mu, kappa) of inputs, credible sets in a gallery of
posteriors, and its items by their certainty."""
_COMMON = ("unauthorized", "rate_limited", "timeout", "unavailable", "internal", "too_large")
Name = Annotated[str, Path(max_length=1024, description="An item's id.")]
Offset = Annotated[int, Query(ge=0, le=2**40)]
Count = Annotated[int, Query(ge=1, le=500)]
Label = Annotated[str | None, Query(max_length=1000, description="Only items of this label.")]


def create_app(
    service: Service,
    *,
    limits: Limits | None = None,
    key: str | None = None,
    metrics: Metrics | None = None,
) -> Guard:
    """The ASGI application of a service: FastAPI's behind a guard."""
    app = FastAPI(
        title="aureole",
        description=_ABOUT,
        version=aureole.__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    metrics = metrics or Metrics()
    metrics.show_rows(len(service.certainty))
    metrics.watch("engine", service.engine.waiting)
    if service.encoder is not None:
        metrics.watch("encoder", service.encoder.waiting)
    _add_errors(app)
    _add_gallery(app, service)
    _add_questions(app, service)
    _add_operations(app, metrics, secured=key is not None)
    _add_page(app, read_static())
    return Guard(app, limits=limits or Limits(), key=key, metrics=metrics)


def _add_gallery(app: FastAPI, service: Service) -> None:
    """Routes to what is there."""

    @app.get("/v1/about", **_answers(models.AboutAnswer))
    async def about() -> Response:
        """What is served: the gallery's size and columns, the kappas' quantiles, the encoder's kind."""
        return _json(service.about())

    @app.get("/v1/items", **_answers(models.ItemsAnswer, "invalid_input"))
    async def items(
        order: Literal["ambiguous", "certain"] = "ambiguous",
        label: Label = None,
        offset: Offset = 0,
        limit: Count = 60,
    ) -> Response:
        """A page of items, from the least or the most certain on."""
        return _json(await service.items(order, offset, limit, label))

    @app.get("/v1/ambiguous", **_answers(models.ItemsAnswer, "invalid_input"))
    async def ambiguous(label: Label = None, offset: Offset = 0, limit: Count = 60) -> Response:
        """A page of the least certain items."""
        return _json(await service.items("ambiguous", offset, limit, label))

    @app.get("/v1/items/{id:path}", **_answers(models.ItemAnswer, "invalid_input", "not_found"))
    async def item(id: Name) -> Response:
        """An item with its posterior and credible caps."""
        return _json(await service.item(id))

    picture = _answers(None, "invalid_input", "not_found")
    picture["responses"][200] = {"description": "The picture.", "content": {"image/jpeg": {}}}
    picture["responses"][304] = {"description": "The picture that the client has is the same."}

    @app.get("/v1/pictures/{id:path}", response_class=Response, **picture)
    async def pictures(
        id: Name,
        side: Annotated[int, Query(ge=64, le=1024, description="Pixels, at most.")] = 256,
        if_none_match: Annotated[str | None, Header()] = None,
    ) -> Response:
        """A small picture of an item."""
        known = (if_none_match or "").removeprefix("W/").strip('"')
        tag, content = await service.picture(id, side, known)
        headers = {"ETag": f'"{tag}"', "Cache-Control": "private, max-age=86400"}
        if content is None:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type="image/jpeg", headers=headers)

    @app.get("/v1/rejection", **_answers(models.RejectionAnswer))
    async def rejection() -> Response:
        """How often the nearest other item has the same label, as less certain items are left out."""
        return _json(service.rejection())


def _add_questions(app: FastAPI, service: Service) -> None:
    """Routes that take a query."""

    @app.post("/v1/embed", **_answers(models.EmbedAnswer, "invalid_input"))
    async def embed(request: Annotated[models.EmbedRequest, Body()]) -> Response:
        """The posteriors of texts, pictures or vectors."""
        return _json(await service.embed(request))

    @app.post("/v1/search", **_answers(models.SearchAnswer, "invalid_input", "not_found"))
    async def search(request: models.SearchRequest) -> Response:
        """The items in a query's cap, with their scores."""
        return _json(await service.search(request))

    @app.post("/v1/map", **_answers(models.MapAnswer, "invalid_input", "not_found"))
    async def map_(request: models.MapRequest) -> Response:
        """The items around a query on a map where the cap is a circle."""
        return _json(await service.map(request))


def _add_operations(app: FastAPI, metrics: Metrics, *, secured: bool) -> None:
    """Routes for who runs the service."""

    @app.get("/healthz", **_answers(models.HealthAnswer))
    async def healthz() -> Response:
        """Whether requests are taken; needs no key."""
        return _json({"status": "ok"})

    text = _answers(None)
    text["responses"][200] = {"description": "Prometheus text.", "content": {"text/plain": {}}}

    @app.get("/metrics", response_class=Response, **text)
    async def shown() -> Response:
        """Counters for Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    described: list[bytes] = []

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        if not described:
            described.append(to_json(_described(app, secured=secured)))
        return Response(described[0], media_type="application/json")


def _add_page(app: FastAPI, files: dict[str, StaticFile]) -> None:
    """The browser page: ``/`` and ``/assets/...``."""

    def sent(file: StaticFile | None, known: str | None) -> Response:
        if file is None:
            raise Fault("not_found", "there is no such file.")
        headers = {"ETag": f'"{file.tag}"', "Cache-Control": "no-cache"}
        if known and known.strip('"') == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.type, headers=headers)

    @app.get("/", include_in_schema=False)
    async def page(if_none_match: Annotated[str | None, Header()] = None) -> Response:
        return sent(files["index.html"], if_none_match)

    @app.get("/assets/{name:path}", include_in_schema=False)
    async def asset(name: str, if_none_match: Annotated[str | None, Header()] = None) -> Response:
        return sent(files.get(f"assets/{name}"), if_none_match)


def _add_errors(app: FastAPI) -> None:
    """One shape for errors of ours, of the framework and of the types."""

    def answer(fault: Fault, headers: Any = None) -> Response:
        found = {name.decode(): value.decode() for name, value in fault.headers()}
        return Response(fault.body(), fault.status, headers={**found, **(headers or {})})

    @app.exception_handler(Fault)
    async def fault(_: Request, error: Fault) -> Response:
        if error.code == "too_large":
            raise error  # the guard closes the connection
        return answer(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return answer(_invalid(error.errors()[0], request.headers.get("content-type", "")))

    @app.exception_handler(Exception)
    async def ours(_: Request, __: Exception) -> Response:
        return answer(Fault("internal", "an error of the service; it is in its log."))

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        codes: dict[int, Any] = {404: "not_found", 405: "not_allowed"}
        messages = {404: "there is no such address.", 405: "this address takes another method."}
        code = codes.get(error.status_code, "invalid_input")
        message = messages.get(error.status_code, "the request cannot be read.")
        return answer(Fault(code, message), error.headers)


def _invalid(error: dict[str, Any], content_type: str) -> Fault:
    """What is wrong with a request, from what the types say about it; nothing of its content is repeated."""
    place, *parts = error["loc"]
    if error["type"] == "json_invalid":
        return Fault("invalid_input", "the body is not JSON.")
    if place == "body" and "json" not in content_type:
        return Fault("invalid_input", "send JSON, with Content-Type: application/json.")
    if parts[:1] == ["query"]:  # what comes next is only which kind of query it was taken for
        parts = ["query", *parts[2:]]
    field = ".".join(str(part) for part in parts)[:200] or None
    where = f"{field}: " if field else ""
    return Fault("invalid_input", f"{where}{error['msg']}.", field=field)


def _json(value: Any) -> Response:
    return Response(
        to_json(value), media_type="application/json", headers={"Cache-Control": "no-store"}
    )


def _answers(model: Any, *codes: str) -> dict[str, Any]:
    """The description of a route's answers: its model, and the errors it may give."""
    by_status: dict[int, list[str]] = {}
    for code in (*codes, *_COMMON):
        by_status.setdefault(STATUS[code], []).append(code)
    responses: dict[Any, Any] = {
        status: {"model": models.ErrorAnswer, "description": ", ".join(found)}
        for status, found in by_status.items()
    }
    return (
        {"responses": responses}
        if model is None
        else {"response_model": model, "responses": responses}
    )


def _described(app: FastAPI, *, secured: bool) -> dict[str, Any]:
    """The OpenAPI description, with the key where one is needed."""
    found = app.openapi()
    if secured:
        schemes = found.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes["key"] = {"type": "http", "scheme": "bearer"}
        for path, methods in found["paths"].items():
            if path != "/healthz":
                for operation in methods.values():
                    operation["security"] = [{"key": []}]
    return found
