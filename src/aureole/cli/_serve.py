"""``aureole serve``: a gallery over HTTP, with a page for browsers."""

from __future__ import annotations

import ipaddress
import logging
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Option

import aureole as au
from aureole.cli._inputs import EncoderSpec
from aureole.cli._options import KEY, Normalized, OptionalHead, expanded, option
from aureole.errors import InvalidInputError, MissingPackageError

if TYPE_CHECKING:
    from aureole.serve import ApiKeys, Service, Tracing

_LOG = logging.getLogger("aureole.serve")

HELP = r"""Serve a gallery over HTTP, with a page for browsers: items by certainty, searches, maps.

Listens on this machine only, unless you set --host. If you set an API key (--api-key-file, or the environment
variable AUREOLE_API_KEY) or several (--keys), every route but /healthz and /readyz requires one.

Examples:

    aureole serve --index gallery.lance --encoder encoder \
      --images pictures --label-column label
    aureole serve --index gallery.lance --text-column caption --head head \
      --encoder sentence-transformers:all-MiniLM-L6-v2 --port 8000
    aureole serve --index gallery.lance --head head --calibrator calibrator
    aureole serve --index gallery.faiss --host 0.0.0.0 \
      --api-key-file key.txt --rate 20
"""


@dataclass(frozen=True)
class EncoderOptions:
    """The model that embeds queries."""

    encoder: EncoderSpec = None
    head: OptionalHead = None
    modality: Literal["image", "text", "vector"] | None = option(
        "Kind of query (default: what the encoder takes; vectors for a head alone)."
    )
    normalized: Normalized = None


@dataclass(frozen=True)
class ItemOptions:
    """How the page shows items."""

    images: Path | None = option("Folder of pictures named after the ids.")
    label_column: str | None = option("Payload column with the label of an item.")
    text_column: str | None = option("Payload column with the text of an item.")
    questions: Path | None = option(
        "Answers of aureole inspect (default: those next to the gallery).", metavar="FILE"
    )
    writable: bool = option(
        "Accept requests with an API key that store and delete items (Lance and PostgreSQL).", False
    )
    refresh: float = option(
        "Seconds between looks for changed rows, which searches find at once but lists do not; 0 never looks.",
        10.0,
        min=0,
        max=86_400,
    )


@dataclass(frozen=True)
class AddressOptions:
    """Where to listen, and who may connect."""

    host: str = option("Address to listen on.", "127.0.0.1")
    port: int = option("Port; 0 selects a free one.", 8765, min=0, max=65535)
    api_key_file: Path | None = option(f"File with the API key; or set {KEY}.")
    keys: Path | None = option(
        "File with several API keys, one NAME KEY or NAME KEY RATE per line, or a JSON object; "
        "read again when it changes.",
        metavar="FILE",
    )
    allowed_host: list[str] | None = option(
        "Name in the Host header of requests that are answered; repeatable, * for all "
        "(default: localhost on a loopback address, otherwise all).",
        metavar="NAME",
    )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def allowed_hosts(self) -> frozenset[str] | None:
        """The names that requests may have in their Host header; None allows all."""
        names = {name.lower().strip("[]") for name in self.allowed_host or ()}
        if "*" in names or not (names or self.is_loopback):
            return None
        local = {"localhost", "127.0.0.1", "::1", self.host.lower()} if self.is_loopback else set()
        return frozenset(names | local)


@dataclass(frozen=True)
class LimitOptions:
    """Limits on requests."""

    largest_body: int = option("Maximum size of a request in bytes.", 16 * 2**20, min=1024)
    timeout: float = option("Maximum duration of a request in seconds.", 30.0, min=0.1, max=3600)
    rate: float | None = option(
        "Requests per second and client address; 0 is unlimited (default: 0 on a loopback address, otherwise 100).",
        min=0,
    )
    key_rate: float = option("Requests per second and API key; 0 is unlimited.", 0.0, min=0)
    per_address: int = option(
        "Open connections per client address; clients on this machine are not limited.", 64, min=1
    )
    batch: int = option("Requests that may share one call of the model.", 32, min=1, max=1024)
    queue: int = option("Requests that may wait for the model or the engine.", 1024, min=1)


@expanded
def serve(
    index: Annotated[str, Option(help="Address of the gallery.", metavar="ADDRESS")],
    model: EncoderOptions,
    items: ItemOptions,
    address: AddressOptions,
    limits: LimitOptions,
    calibrator: Annotated[
        Path | None,
        Option(help="Folder of a calibrator fitted on this gallery's directions, for /v1/match."),
    ] = None,
    json_logs: Annotated[
        bool, Option("--json-logs", help="Log one JSON object per line, and one line per request.")
    ] = False,
    trace: Annotated[
        bool,
        Option("--trace", help="Export OpenTelemetry traces, as the OTEL_* variables configure."),
    ] = False,
) -> None:
    """Serve until a signal; ``HELP`` is the text users see."""
    _import_server()
    from aureole.serve import BatchOptions, Pictures, Tracing, set_up_log

    set_up_log(as_json=json_logs)
    keys = _read_keys(address)
    if items.writable and keys is None:
        raise InvalidInputError(
            f"--writable needs an API key: set {KEY}, or pass --api-key-file or --keys."
        )
    if not address.is_loopback and keys is None:
        _LOG.warning("other machines can reach %s, and no API key is set.", address.host)
    tracing = Tracing() if trace else None
    with ExitStack() as stack:
        if tracing is not None:
            stack.callback(tracing.close)
        settings = {
            "pictures": None if items.images is None else Pictures(items.images),
            "label_column": items.label_column,
            "text_column": items.text_column,
            "writable": items.writable,
            "batches": BatchOptions(limits.batch, limits.queue),
        }
        opened = stack.enter_context(au.CredibleIndex.open(index))
        settings["questions"] = _questions(index, items.questions)
        service = _service(stack, opened, model, calibrator, settings)
        if opened.engine in ("FAISS", "Lance"):
            service.inspect(index)
        if items.refresh:
            service.follow(index, items.refresh)
        _listen(service, address, limits, keys=keys, tracing=tracing)


def _questions(index: str, given: Path | None) -> au.explorer.Questions | None:
    """The answers in a file, or in the one next to the gallery; None if that does not exist."""
    if given is not None:
        return au.explorer.load_questions(given)
    if not au.retrieval.is_local(index) or not au.explorer.questions_path(index).is_file():
        return None
    return au.explorer.load_questions(au.explorer.questions_path(index))


def _service(
    stack: ExitStack,
    opened: au.CredibleIndex,
    model: EncoderOptions,
    calibrator: Path | None,
    settings: dict[str, Any],
) -> Service:
    """The service of a gallery; the stack closes it."""
    from aureole.serve import Service, SubprocessEmbedder

    loaded = None if calibrator is None else au.MatchCalibrator.load(calibrator)
    opened.schema.check_columns(settings["label_column"], settings["text_column"])
    embedder = None
    if model.encoder is not None or model.head is not None:
        options = {"head": model.head, "normalized": model.normalized}
        embedder = SubprocessEmbedder(model.encoder, model.modality, **options)
        stack.callback(embedder.close)
    service = Service(opened, embedder, calibrator=loaded, **settings)
    stack.callback(service.close)
    return service


def _tags(stack: ExitStack, index: str, items: ItemOptions, refusal: str | None) -> TagService:
    """The tags of a gallery; the stack closes them."""
    from aureole.serve import TagService

    tags = None
    if items.tags is not None or au.retrieval.is_local(index):
        tags = au.retrieval.Tags.of_gallery(index, items.tags, read_only=items.read_only_tags)
        stack.callback(tags.close)
    service = TagService(tags, refusal=refusal)
    stack.callback(service.close)
    return service


def _listen(
    service: Service,
    address: AddressOptions,
    limits: LimitOptions,
    *,
    keys: ApiKeys | None,
    tracing: Tracing | None,
) -> None:
    """Answer requests until a signal, and print the URL once the service is ready."""
    from aureole.serve import Limits, Server, address_of, bound_socket, create_app

    rate = limits.rate
    if rate is None:
        rate = 0.0 if address.is_loopback else 100.0
    listening = bound_socket(address.host, address.port)
    place, port = address_of(listening)
    host = f"[{place}]" if ":" in place else place

    def ready() -> None:
        typer.echo(f"aureole serves {service.rows:,} items at http://{host}:{port}")
        sys.stdout.flush()
        if reason := service.map_reason:
            _LOG.info(reason)

    bounds = Limits(
        body=limits.largest_body,
        seconds=limits.timeout,
        rate=rate,
        key_rate=limits.key_rate,
        per_address=limits.per_address,
    )
    hosts = address.allowed_hosts()
    app = create_app(service, limits=bounds, keys=keys, hosts=hosts, tracing=tracing)
    service.warm_up()
    service.compute_rejection()
    Server(app, ready).run([listening])


def _read_keys(address: AddressOptions) -> ApiKeys | None:
    """The API keys from files or the environment, or None; never from the command line, which other users can see."""
    from aureole.serve import ApiKeys

    if address.keys is not None:
        if address.api_key_file is not None:
            raise InvalidInputError("use --keys or --api-key-file, not both.")
        return ApiKeys.read(address.keys)
    key = read_key(address.api_key_file)
    return None if key is None else ApiKeys({"default": key})


def read_key(file: Path | None) -> str | None:
    """The API key from a file or the environment, or None."""
    from aureole.serve import check_key

    given = os.environ.get(KEY) if file is None else file.read_bytes().decode("utf-8", "replace")
    return None if given is None else check_key(given, KEY if file is None else str(file))


def _import_server() -> None:
    try:
        from aureole.serve import Metrics, Server, create_app  # noqa: F401

        Metrics()
    except ImportError as error:
        raise MissingPackageError(
            f"the service needs FastAPI, uvicorn and prometheus-client ({error}): pip install 'aureole[serve]'."
        ) from error
