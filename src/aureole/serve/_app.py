"""The FastAPI application: routes, their OpenAPI description, error handlers, and the explorer's page."""

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

import aureole
from aureole.errors import InvalidInputError
from aureole.explorer._explorer import page_folder
from aureole.serve._errors import STATUS, ApiError, internal_error
from aureole.serve._middleware import Access, GuardMiddleware
from aureole.serve._models import ErrorAnswer
from aureole.serve._service import Service

_DESCRIPTION = """Embeddings with uncertainty: posteriors vMF(mu, kappa) of inputs, credible sets in a gallery of
posteriors, and its items by their certainty."""
_COMMON = ("unauthorized", "too_large", "timeout", "unavailable", "internal")
_COLUMN = """One value per row, little endian; X-Aureole-Type is f4 (float32, NaN: missing), u2 or u4 (codes of the
column's values, the largest: missing)."""


def create_app(service: Service, access: Access | None = None) -> GuardMiddleware:
    """The ASGI application of a service: FastAPI behind the checks of ``access``."""
    access = access or Access()
    app = FastAPI(
        title="aureole",
        description=_DESCRIPTION,
        version=aureole.__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    _add_errors(app)
    _add_routes(app, service)
    if service.writable:
        if access.key is None:
            raise InvalidInputError("a service that can be written to needs an API key.")
        _route(app, "POST", "/v1/items", service.upsert, "invalid_input")
        _route(app, "DELETE", "/v1/items/{id:path}", service.delete, "invalid_input", "not_found")
    description: list[dict[str, Any]] = []  # built on the first request

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> dict[str, Any]:
        if not description:
            description.append(_openapi(app, secured=access.key is not None))
        return description[0]

    app.mount("/", StaticFiles(directory=page_folder(), html=True))
    return GuardMiddleware(app, access)


def _add_routes(app: FastAPI, service: Service) -> None:
    """All routes that change nothing."""
    wrong, missing = "invalid_input", "not_found"
    listing, questions = service.listing, service.questions
    _route(app, "GET", "/v1/about", service.about)
    _route(app, "GET", "/v1/items", listing.items, wrong)
    _route(app, "GET", "/v1/items/{id:path}", listing.item, wrong, missing)
    _file(app, "/v1/pictures/{id:path}", listing.picture, "image/jpeg", "The picture.")
    _route(app, "GET", "/v1/calibration", service.calibration)
    _route(app, "GET", "/v1/rejection", service.rejection)
    _route(app, "GET", "/v1/table", listing.describe)
    _file(app, "/v1/table/columns/{name}", listing.column, "application/octet-stream", _COLUMN)
    _route(app, "POST", "/v1/table/rows", listing.rows, wrong)
    _route(app, "POST", "/v1/table/ids", listing.ids, wrong, "conflict")
    _route(app, "GET", "/v1/table/find", listing.find, wrong)
    _route(app, "GET", "/v1/questions", questions.describe)
    _route(app, "GET", "/v1/questions/{name}", questions.answer, wrong, missing)
    _route(app, "GET", "/v1/questions/{name}/rows", questions.rows, wrong, missing)
    _route(app, "POST", "/v1/embed", service.embed, wrong)
    _route(app, "POST", "/v1/search", service.search, wrong, missing)
    _route(app, "POST", "/v1/match", service.match, wrong, missing, "conflict")
    _route(app, "POST", "/v1/map", service.map, wrong, missing)
    _route(app, "GET", "/healthz", service.health)
    _route(app, "GET", "/readyz", service.ready)


def _route(app: FastAPI, method: str, path: str, handler: Any, *codes: str) -> None:
    """Add a route whose JSON is the model that its handler returns."""
    name = f"{method.lower()}{path.replace('/', '_').replace('{', '').replace(':path}', '').replace('}', '')}"
    app.add_api_route(
        path, handler, methods=[method], responses=_documented(*codes), operation_id=name
    )


def _file(app: FastAPI, path: str, handler: Any, media_type: str, about: str) -> None:
    """Add a route that returns a file."""
    answers = _documented("invalid_input", "not_found")
    answers[200] = {"description": about, "content": {media_type: {}}}
    answers[304] = {"description": "Not modified."}
    app.add_api_route(path, handler, response_class=Response, responses=answers)


def _add_errors(app: FastAPI) -> None:
    """Send all errors, also those of FastAPI and pydantic, in the same JSON shape."""

    def response(error: ApiError, extra: Any = None) -> Response:
        return Response(error.body(), error.status, headers={**error.headers(), **(extra or {})})

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
    field = ".".join(str(part) for part in parts)[:200] or None
    where = f"{field}: " if field else ""
    message = error["msg"].removeprefix("Value error, ")
    return ApiError("invalid_input", f"{where}{message}.", field=field)


def _documented(*codes: str) -> dict[int | str, dict[str, Any]]:
    """OpenAPI: the errors of a route."""
    by_status: dict[int, list[str]] = {}
    for code in (*codes, *_COMMON):
        by_status.setdefault(STATUS[code], []).append(code)
    return {
        status: {"model": ErrorAnswer, "description": ", ".join(names)}
        for status, names in by_status.items()
    }


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
