"""``aureole serve``: a gallery over HTTP, with a page for browsers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Option

import aureole as au
from aureole.cli._lazy import questions as saved
from aureole.cli._options import KEY, EncoderSpec, OptionalHead, expanded, option
from aureole.engines._addresses import is_local
from aureole.errors import AureoleError, InvalidInputError, MissingPackageError

_LOG = logging.getLogger("aureole.serve")
_GRACE = 5  # seconds for requests in flight after SIGTERM

HELP = r"""Serve a gallery over HTTP, with a page for browsers: items by certainty, searches, maps.

Listens on this machine only, unless you set --host, and answers only requests for localhost and the names of
--allow-host. If you set an API key (--api-key-file, or the environment variable AUREOLE_API_KEY), every route but
/healthz and /readyz requires it.

Examples:

    aureole serve --index gallery.lance --encoder encoder \
      --images pictures --label-column label
    aureole serve --index gallery.lance --text-column caption --head head \
      --encoder sentence-transformers:all-MiniLM-L6-v2 --port 8000
    aureole serve --index gallery.lance --head head --calibrator calibrator
    aureole serve --index gallery.faiss --host 0.0.0.0 \
      --api-key-file key.txt --allow-host search.example.org
"""


@dataclass(frozen=True)
class EncoderOptions:
    """The model that embeds queries."""

    encoder: EncoderSpec = None
    head: OptionalHead = None
    modality: Literal["image", "text", "vector"] | None = option(
        "Kind of query (default: what the encoder takes; vectors for a head alone)."
    )


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


@dataclass(frozen=True)
class AddressOptions:
    """Where to listen, and which requests to answer."""

    host: str = option("Address to listen on.", "127.0.0.1")
    port: int = option("Port; 0 selects a free one.", 8765, min=0, max=65535)
    allow_host: list[str] | None = option(
        "Name in the Host header of requests to answer, besides localhost and --host; repeatable, * for all.",
        metavar="NAME",
    )
    api_key_file: Path | None = option(f"File with the API key; or set {KEY}.")
    largest_body: int = option("Maximum size of a request in bytes.", 4 * 2**20, min=1024)
    timeout: float = option("Maximum duration of a request in seconds.", 30.0, min=0.1, max=3600)


@expanded
def serve(
    index: Annotated[str, Option(help="Address of the gallery.", metavar="ADDRESS")],
    model: EncoderOptions,
    items: ItemOptions,
    address: AddressOptions,
    calibrator: Annotated[
        Path | None,
        Option(help="Folder of a calibrator fitted on this gallery's directions, for /v1/match."),
    ] = None,
) -> None:
    """Serve until a signal; ``HELP`` is the text users see."""
    try:
        from aureole.serve import Service
        from aureole.serve._middleware import Access
        from aureole.serve._service import ServiceOptions
        from aureole.serve._workers import ModelProcess
    except ImportError as error:
        raise MissingPackageError(
            f"the service needs FastAPI and uvicorn ({error}): pip install 'aureole[serve]'."
        ) from error
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    _LOG.setLevel(logging.INFO)
    key = _read_key(address.api_key_file)
    if items.writable and key is None:
        raise InvalidInputError(f"--writable needs an API key: set {KEY}, or pass --api-key-file.")
    if key is None and address.host not in ("127.0.0.1", "::1", "localhost"):
        _LOG.warning("other machines can reach %s, and no API key is set.", address.host)
    hosts = [
        *(address.allow_host or ()),
        f"[{address.host}]" if ":" in address.host else address.host,
    ]
    access = Access(key, hosts, address.largest_body, address.timeout)
    options = ServiceOptions(
        items.label_column,
        items.text_column,
        items.images,
        items.writable,
    )
    with ExitStack() as stack:
        loaded = None if calibrator is None else au.MatchCalibrator.load(calibrator)
        opened = stack.enter_context(au.CredibleIndex.open(index))
        opened.schema.check_columns(items.label_column, items.text_column)
        embedder = None
        if model.encoder is not None or model.head is not None:
            spec = au.embed.ModelSpec(model.encoder, model.head)
            embedder = ModelProcess(spec, model.modality)
            stack.callback(embedder.close)
        answers = items.questions
        if answers is None and is_local(index):
            beside = saved.questions_path(index)
            answers = beside if beside.is_file() else None
        questions = None if answers is None else saved.load_questions(answers)
        service = Service(opened, embedder, options=options, calibrator=loaded, questions=questions)
        stack.callback(service.close)
        if reason := service.listing.table.map["reason"]:
            _LOG.info(reason)
        _listen(service, access, address)


def _listen(service: Any, access: Any, address: AddressOptions) -> None:
    """Answer requests until a signal, and print the URL once the service is ready."""
    import uvicorn

    from aureole.serve import create_app

    app = create_app(service, access)
    # h11 refuses headers of more than 64 KiB; httptools has no limit
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=_GRACE,
    )
    listening = _bind(address.host, address.port)
    asyncio.run(service.warm_up())
    place, port = listening.getsockname()[:2]
    name = f"[{place}]" if ":" in place else place
    typer.echo(f"aureole serves {len(service.listing.table):,} items at http://{name}:{port}")
    sys.stdout.flush()
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises them again when it is done
        signal.signal(number, lambda *_: sys.exit(0))
    uvicorn.Server(config).run([listening])


def _bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 selects a free port."""
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(where[:2], family=family, backlog=1024)
    except OSError as error:
        raise AureoleError(f"cannot listen on {host} port {port}: {error}.") from error


def _read_key(file: Path | None) -> str | None:
    """Return the API key, if any: not from the command line, which other users can see."""
    from aureole.serve._middleware import check_key

    given = os.environ.get(KEY) if file is None else file.read_bytes().decode("utf-8", "replace")
    return None if given is None else check_key(given, KEY if file is None else str(file))
