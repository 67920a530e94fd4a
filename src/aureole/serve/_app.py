"""The FastAPI application: routes, their OpenAPI description and error handlers. The only file that imports FastAPI."""

import hashlib
import json
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Body, FastAPI, Header, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

import aureole
from aureole.errors import InvalidInputError
from aureole.explorer import page_folder
from aureole.serve import (
    _question_answers as answers,
    _request_models as requests,
    _response_models as responses,
)
from aureole.serve._errors import STATUS, ApiError, internal_error
from aureole.serve._json_bodies import JsonParser
from aureole.serve._keys import ApiKeys
from aureole.serve._limits import Limits
from aureole.serve._middleware import LimitsMiddleware
from aureole.serve._response_models import to_json
from aureole.serve._same_site import check_same_site
from aureole.serve._service import Service

if TYPE_CHECKING:
    from aureole.serve._tracing import Tracing

_DESCRIPTION = """Embeddings with uncertainty: posteriors vMF(mu, kappa) of inputs, credible sets in a gallery of
posteriors, and its items by their certainty."""
_COMMON = ("unauthorized", "rate_limited", "timeout", "unavailable", "internal", "too_large")
_COMMON += ("slow_body", "misdirected", "headers_too_large", "malformed")
_PAGE_TYPES = {".html": "html", ".js": "javascript", ".css": "css"}
Name = Annotated[str, Path(max_length=1024, description="Id of an item.")]
Offset = Annotated[int, Query(ge=0, le=2**40)]
Count = Annotated[int, Query(ge=1, le=500)]
Label = Annotated[str | None, Query(max_length=1000, description="Only items with this label.")]
Question = Annotated[Literal["labels", "ambiguous", "outliers"], Path(description="The question.")]
Code = Annotated[
    int | None, Query(ge=0, le=2**31, description="Only ambiguous items of the class of this code.")
]
IfNoneMatch = Annotated[str | None, Header()]


def create_app(
    service: Service,
    *,
    limits: Limits | None = None,
    key: str | None = None,
    keys: ApiKeys | None = None,
    hosts: frozenset[str] | None = None,
    tracing: "Tracing | None" = None,
) -> LimitsMiddleware:
    """The ASGI application of a service: FastAPI behind the limits middleware.

    Requests need ``key``, or one of ``keys``, and one of the ``hosts`` in their Host header; None allows all. Requests
    that the limits reject have no span in the traces.
    """
    if key is not None:
        keys = ApiKeys({"default": key})
    app = FastAPI(
        title="aureole",
        description=_DESCRIPTION,
        version=aureole.__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.json_parser = JsonParser()
    app.router.route_class = _JsonRoute
    _add_errors(app)
    _add_gallery(app, service)
    _add_table(app, service)
    _add_queries(app, service)
    _add_questions(app, service)
    if service.writable:
        if keys is None:
            raise InvalidInputError("a service that can be written to needs an API key.")
        _add_writes(app, service)
    _add_operations(app, service, secured=keys is not None)
    _add_page(app)
    inner = app if tracing is None else tracing.wrap(app)
    return LimitsMiddleware(
        inner, limits=limits or Limits(), keys=keys, hosts=hosts, metrics=service.metrics
    )


def _add_gallery(app: FastAPI, service: Service) -> None:
    """Routes that read the gallery."""

    @app.get("/v1/about", **_documented(responses.AboutAnswer))
    async def about() -> Response:
        """The gallery's size, columns and quantiles of kappa, and the encoder's modality."""
        with service.use() as current:
            return _json(current.about())

    @app.get("/v1/items", **_documented(responses.ItemsAnswer, "invalid_input"))
    async def items(
        order: Literal["ambiguous", "certain"] = "ambiguous",
        label: Label = None,
        offset: Offset = 0,
        limit: Count = 60,
    ) -> Response:
        """A page of items, least or most certain first."""
        with service.use() as current:
            return _json(await current.listing.page(order, offset, limit, label))

    @app.get("/v1/ambiguous", **_documented(responses.ItemsAnswer, "invalid_input"))
    async def ambiguous(label: Label = None, offset: Offset = 0, limit: Count = 60) -> Response:
        """A page of items, least certain first."""
        with service.use() as current:
            return _json(await current.listing.page("ambiguous", offset, limit, label))

    @app.get(
        "/v1/items/{id:path}", **_documented(responses.ItemAnswer, "invalid_input", "not_found")
    )
    async def item(id: Name) -> Response:
        """An item with its posterior and credible caps."""
        with service.use() as current:
            return _json(await current.listing.item(id))

    picture = _documented(None, "invalid_input", "not_found")
    picture["responses"][200] = {"description": "The picture.", "content": {"image/jpeg": {}}}
    picture["responses"][304] = {"description": "Not modified."}

    @app.get("/v1/pictures/{id:path}", response_class=Response, **picture)
    async def pictures(
        id: Name,
        side: Annotated[
            int, Query(ge=64, le=1024, description="Maximum width and height in pixels.")
        ] = 256,
        if_none_match: IfNoneMatch = None,
    ) -> Response:
        """A thumbnail of an item's picture."""
        known = (if_none_match or "").removeprefix("W/").strip('"')
        with service.use() as current:
            tag, content = await current.picture(id, side, known)
        headers = {"ETag": f'"{tag}"', "Cache-Control": "private, max-age=86400"}
        if content is None:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type="image/jpeg", headers=headers)

    @app.get("/v1/calibration", **_documented(responses.CalibrationAnswer))
    async def calibration() -> Response:
        """The share of held-out partners in caps of each mass, before and after the conformal calibration."""
        with service.use() as current:
            return _json(current.calibration())

    @app.get("/v1/rejection", **_documented(responses.RejectionAnswer))
    async def rejection() -> Response:
        """How often the nearest other item has the same label, as the least certain items are rejected."""
        with service.use() as current:
            return _json(current.rejection())


def _add_questions(app: FastAPI, service: Service) -> None:
    """Routes for questions about the gallery, and its comparison with another one."""

    @app.get("/v1/questions", **_documented(answers.QuestionsAnswer))
    async def questions() -> Response:
        """Which questions have answers, and the classes that are confused most."""
        with service.use() as current:
            return _json(current.questions())

    @app.get(
        "/v1/questions/{name}",
        **_documented(answers.QuestionAnswer, "invalid_input", "not_found"),
    )
    async def question(
        name: Question,
        one: Code = None,
        two: Code = None,
        offset: Offset = 0,
        limit: Count = 20,
    ) -> Response:
        """The items that a question found, the strongest first; ``one`` and ``two`` select a pair of classes."""
        classes = None if one is None or two is None else (one, two)
        with service.use() as current:
            return _json(await current.answer_question(name, offset, limit, classes))

    @app.get(
        "/v1/questions/{name}/rows",
        **_documented(responses.TableFindAnswer, "invalid_input", "not_found"),
    )
    async def question_rows(name: Question, one: Code = None, two: Code = None) -> Response:
        """The numbers of all rows that a question found; at most 200,000."""
        classes = None if one is None or two is None else (one, two)
        with service.use() as current:
            return _json(await current.question_rows(name, classes))


def _add_table(app: FastAPI, service: Service) -> None:
    """Routes of the table of all items: whole columns, items by row number, and a search for text."""
    numbered = ("invalid_input", "conflict")

    @app.get("/v1/table", **_documented(responses.TableAnswer))
    async def table() -> Response:
        """The columns of the table of all items, whose rows are numbered by kappa."""
        with service.use() as current:
            return _json(current.listing.table.describe())

    column = _documented(None, "invalid_input", "not_found")
    column["responses"][200] = {
        "description": "One value per row, little endian; X-Aureole-Type is f4 (float32, NaN: missing), u2 or u4 "
        "(codes of the column's values, the largest: missing).",
        "content": {"application/octet-stream": {}},
    }
    column["responses"][304] = {"description": "Not modified."}

    @app.get("/v1/table/columns/{name}", response_class=Response, **column)
    async def table_column(
        name: Annotated[str, Path(max_length=100, description="Name of a column.")],
        if_none_match: IfNoneMatch = None,
    ) -> Response:
        """All values of a column of numbers or categories, in row order."""
        known = (if_none_match or "").removeprefix("W/").strip('"')
        with service.use() as current:
            tag, found = current.listing.column(name, known)
        headers = {"ETag": f'"{tag}"', "Cache-Control": "private, no-cache"}
        if found is None:
            return Response(status_code=304, headers=headers)
        headers["X-Aureole-Type"] = found.type
        return Response(found.content(), media_type="application/octet-stream", headers=headers)

    @app.post("/v1/table/rows", **_documented(responses.TableRowsAnswer, "invalid_input"))
    async def table_rows(request: requests.TableRowsRequest) -> Response:
        """Items by their row numbers."""
        with service.use() as current:
            return _json(await current.listing.rows(request.rows))

    @app.post("/v1/table/ids", **_documented(responses.TableIdsAnswer, *numbered))
    async def table_ids(request: requests.TableIdsRequest) -> Response:
        """The ids of row numbers."""
        with service.use() as current:
            return _json(current.listing.ids(request.rows, request.version))

    @app.get("/v1/table/find", **_documented(responses.TableFindAnswer, "invalid_input"))
    async def table_find(
        text: Annotated[str, Query(min_length=1, max_length=200, description="In any case.")],
        column: Annotated[
            str | None, Query(max_length=100, description="id, or a column of texts; default: all.")
        ] = None,
    ) -> Response:
        """The rows whose id or text contains a text; at most 200,000."""
        with service.use() as current:
            return _json(await current.listing.find(text, column))


def _add_writes(app: FastAPI, service: Service) -> None:
    """Routes that change the gallery. All or nothing is stored; after a timeout, send the same request again."""

    @app.post("/v1/items", **_documented(responses.UpsertAnswer, "invalid_input", "forbidden"))
    async def upsert(request: requests.UpsertRequest, http: Request) -> Response:
        """Store items, and replace those whose id exists."""
        check_same_site(http.scope["headers"])
        with service.use() as current:
            return _json(await current.upsert(request))

    @app.delete(
        "/v1/items/{id:path}",
        **_documented(responses.DeleteAnswer, "invalid_input", "not_found", "forbidden"),
    )
    async def delete(id: Name, http: Request) -> Response:
        """Delete an item."""
        check_same_site(http.scope["headers"])
        with service.use() as current:
            return _json(await current.delete(id))


def _add_queries(app: FastAPI, service: Service) -> None:
    """Routes that embed and search."""

    @app.post("/v1/embed", **_documented(responses.EmbedAnswer, "invalid_input"))
    async def embed(request: Annotated[requests.EmbedRequest, Body()]) -> Response:
        """The posteriors of texts, pictures or vectors."""
        with service.use() as current:
            return _json(await current.embed(request))

    @app.post("/v1/search", **_documented(responses.SearchAnswer, "invalid_input", "not_found"))
    async def search(request: requests.SearchRequest) -> Response:
        """The items inside a query's cap, with their scores."""
        with service.use() as current:
            return _json(await current.search(request))

    @app.post(
        "/v1/match", **_documented(responses.MatchAnswer, "invalid_input", "not_found", "conflict")
    )
    async def match(request: requests.MatchRequest) -> Response:
        """The items that match a query, with their probabilities; needs a calibrator."""
        with service.use() as current:
            return _json(await current.match(request))

    @app.post("/v1/map", **_documented(responses.MapAnswer, "invalid_input", "not_found"))
    async def map_(request: requests.MapRequest) -> Response:
        """The items around a query, on a map on which the cap is a circle."""
        with service.use() as current:
            return _json(await current.map(request))


def _add_operations(app: FastAPI, service: Service, *, secured: bool) -> None:
    """Operational endpoints: health, readiness, metrics, OpenAPI description."""

    @app.get("/healthz", **_documented(responses.HealthAnswer))
    async def healthz() -> Response:
        """Whether the process works, or should be restarted; needs no key."""
        with service.use() as current:
            current.readiness.check_alive()
        return _json({"status": "ok"})

    @app.get("/readyz", **_documented(responses.ReadyAnswer))
    async def readyz() -> Response:
        """Whether the engine answers a search and the encoder embeds an input; needs no key."""
        with service.use() as current:
            states = await current.readiness.check_ready()
        return _json(states)

    text = _documented(None)
    prometheus_text = {"description": "Prometheus text format.", "content": {"text/plain": {}}}
    text["responses"][200] = prometheus_text

    @app.get("/metrics", response_class=Response, **text)
    async def prometheus() -> Response:
        """Metrics for Prometheus."""
        return Response(
            service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    description: list[bytes] = []  # built on the first request

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        if not description:
            description.append(to_json(_openapi(app, secured=secured)))
        return Response(description[0], media_type="application/json")


def _add_page(app: FastAPI) -> None:
    """The explorer's page, ``/`` and ``/assets/...``, from memory: no path is ever built from a request."""
    folder = page_folder()
    contents = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.suffix in _PAGE_TYPES
    }

    def static(name: str, known: str | None) -> Response:
        content = contents.get(name)
        if content is None:
            raise ApiError("not_found", "no such file.")
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if known == tag:
            return Response(status_code=304, headers=headers)
        media_type = f"text/{_PAGE_TYPES[PurePosixPath(name).suffix]}; charset=utf-8"
        return Response(content, media_type=media_type, headers=headers)

    @app.get("/", include_in_schema=False)
    async def page(if_none_match: IfNoneMatch = None) -> Response:
        return static("index.html", if_none_match)

    @app.get("/assets/{name:path}", include_in_schema=False)
    async def asset(name: str, if_none_match: IfNoneMatch = None) -> Response:
        return static(f"assets/{name}", if_none_match)


class _JsonRequest(Request):
    """A request whose body is parsed once."""

    parsed: Any = None

    async def parse(self) -> None:
        """Parse the body with the service's parser."""
        parser: JsonParser = self.app.state.json_parser
        try:
            self.parsed = await parser.parse(await self.body())
        except ValueError as error:
            self.parsed = error

    async def json(self) -> Any:
        """The parsed body; raises as FastAPI expects if it is not JSON."""
        if isinstance(self.parsed, ValueError):
            raise json.JSONDecodeError("invalid JSON", "", 0) from self.parsed
        return self.parsed


class _JsonRoute(APIRoute):
    """A route that limits what the parser of its body may cost."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        """FastAPI's handler of a request whose body has been parsed."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def parsed(request: Request) -> Response:
            limited = _JsonRequest(request.scope, request.receive)
            await limited.parse()
            return await handle(limited)

        return parsed


def _add_errors(app: FastAPI) -> None:
    """Send all errors, also those of FastAPI and pydantic, in the same JSON shape."""

    def response(error: ApiError, extra: Any = None) -> Response:
        headers = {name.decode(): value.decode() for name, value in error.headers()}
        return Response(error.body(), error.status, headers={**headers, **(extra or {})})

    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> Response:
        return response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return response(_invalid(error.errors()[0], request.headers.get("content-type", "")))

    @app.exception_handler(Exception)
    async def unexpected(_: Request, __: Exception) -> Response:
        return response(internal_error())

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        known = {404: ("not_found", "no such route."), 405: ("not_allowed", "method not allowed.")}
        code, message = known.get(error.status_code, ("invalid_input", "malformed request."))
        return response(ApiError(code, message), error.headers)


def _invalid(error: dict[str, Any], content_type: str) -> ApiError:
    """The response to a request that fails validation; it never quotes the request's content."""
    place, *parts = error["loc"]
    if error["type"] == "json_invalid":
        return ApiError("invalid_input", "the body is not valid JSON.")
    if place == "body" and "json" not in content_type:
        message = "the body must be JSON, with Content-Type: application/json."
        return ApiError("invalid_input", message)
    if parts[:1] == ["query"]:  # the next part is the name of the union member
        parts = ["query", *parts[2:]]
    field = ".".join(str(part) for part in parts)[:200] or None
    where = f"{field}: " if field else ""
    return ApiError("invalid_input", f"{where}{error['msg']}.", field=field)


def _json(value: Any) -> Response:
    headers = {"Cache-Control": "no-store"}
    return Response(to_json(value), media_type="application/json", headers=headers)


def _documented(model: Any, *codes: str) -> dict[str, Any]:
    """OpenAPI: a route's response model and its errors."""
    by_status: dict[int, list[str]] = {}
    for code in (*codes, *_COMMON):
        by_status.setdefault(STATUS[code], []).append(code)
    errors: dict[Any, Any] = {
        status: {"model": responses.ErrorAnswer, "description": ", ".join(names)}
        for status, names in by_status.items()
    }
    return {"responses": errors} | ({} if model is None else {"response_model": model})


def _openapi(app: FastAPI, *, secured: bool) -> dict[str, Any]:
    """The OpenAPI description, with the security scheme if the service has a key."""
    description = app.openapi()
    if secured:
        schemes = description.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes["key"] = {"type": "http", "scheme": "bearer"}
        for path, methods in description["paths"].items():
            if path not in ("/healthz", "/readyz"):
                for operation in methods.values():
                    operation["security"] = [{"key": []}]
    return description
