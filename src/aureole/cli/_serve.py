"""``aureole serve``: a gallery over HTTP, with a page for browsers."""

import ipaddress
import json
import logging
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Option

from aureole.cli._inputs import EncoderSpec
from aureole.cli._options import KEY, Normalized, OptionalHead, expanded, option
from aureole.errors import InvalidInputError, MissingPackageError
from aureole.retrieval import CredibleIndex, MatchCalibrator

if TYPE_CHECKING:
    from aureole.serve import Service

HELP = r"""Serve a gallery over HTTP, with a page for browsers: items by certainty, searches, maps.

Listens on this machine only, unless you set --host. If you set an API key (--api-key-file, or the environment
variable AUREOLE_API_KEY), every route but /healthz requires it.

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

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True)
class LimitOptions:
    """Limits on requests."""

    largest_body: int = option("Maximum size of a request in bytes.", 16 * 2**20, min=1024)
    timeout: float = option("Maximum duration of a request in seconds.", 30.0, min=0.1, max=3600)
    rate: float | None = option(
        "Requests per second and client address; 0 is unlimited (default: 0 on a loopback address, otherwise 100).",
        min=0,
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
    json_logs: Annotated[bool, Option("--json-logs", help="Log one JSON object per line.")] = False,
) -> None:
    """Serve until a signal; ``HELP`` is the text users see."""
    _import_server()
    from aureole.serve import BatchOptions, Pictures, Service, SubprocessEmbedder

    _set_up_log(as_json=json_logs)
    key = read_key(address.api_key_file)
    if not address.is_loopback and key is None:
        warning = f"other machines can reach {address.host}, and no API key is set."
        typer.echo(f"warning: {warning}", err=True)
    loaded = None if calibrator is None else MatchCalibrator.load(calibrator)
    with CredibleIndex.open(index) as opened, ExitStack() as stack:
        opened.schema.check_columns(items.label_column, items.text_column)
        embedder = None
        if model.encoder is not None or model.head is not None:
            options = {"head": model.head, "normalized": model.normalized}
            embedder = SubprocessEmbedder(model.encoder, model.modality, **options)
            stack.callback(embedder.close)
        service = Service(
            opened,
            embedder,
            calibrator=loaded,
            pictures=None if items.images is None else Pictures(items.images),
            label_column=items.label_column,
            text_column=items.text_column,
            batches=BatchOptions(limits.batch, limits.queue),
        )
        stack.callback(service.close)
        if items.refresh:
            service.follow(index, items.refresh)
        _listen(service, address, limits, key=key)


def _listen(
    service: "Service", address: AddressOptions, limits: LimitOptions, *, key: str | None
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
        typer.echo(f"aureole serves {len(service.kappa_order):,} items at http://{host}:{port}")
        sys.stdout.flush()

    bounds = Limits(body=limits.largest_body, seconds=limits.timeout, rate=rate)
    app = create_app(service, limits=bounds, key=key)
    service.warm_up()
    service.compute_rejection()
    Server(app, ready).run([listening])


def read_key(file: Path | None) -> str | None:
    """The API key from a file or the environment, or None; never from the command line, which other users can see."""
    given = os.environ.get(KEY) if file is None else file.read_bytes().decode("utf-8", "replace")
    if given is None:
        return None
    key = given.strip()
    if len(key) < 8 or not key.isascii() or not key.isprintable() or " " in key:
        where = KEY if file is None else str(file)
        raise InvalidInputError(
            f"the API key in {where} must have at least 8 printable ASCII characters and no spaces."
        )
    return key


def _import_server() -> None:
    try:
        from aureole.serve import Metrics, Server, create_app  # noqa: F401

        Metrics()
    except ImportError as error:
        raise MissingPackageError(
            f"the service needs FastAPI, uvicorn and prometheus-client ({error}): pip install 'aureole[serve]'."
        ) from error


def _set_up_log(*, as_json: bool) -> None:
    """Log to stderr, as plain lines or as JSON lines."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_JsonLines() if as_json else text)
    for name in ("aureole.serve", "uvicorn.error"):
        log = logging.getLogger(name)
        log.handlers, log.propagate = [handler], False
        log.setLevel(logging.INFO if name == "aureole.serve" else logging.WARNING)


class _JsonLines(logging.Formatter):
    """Formats a log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
