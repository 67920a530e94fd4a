"""``aureole serve``: a gallery over HTTP, with a page for browsers."""

import ipaddress
import json
import logging
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from aureole.cli._options import KEY, Normalized, model_option
from aureole.errors import InvalidInputError, MissingPackageError
from aureole.retrieval import CredibleIndex

HELP = r"""Serve a gallery over HTTP, with a page for browsers: pictures or texts by their certainty, searches, maps.

It listens on this machine alone unless --host says otherwise. A key, from --api-key-file or the environment's
AUREOLE_API_KEY, is then asked for by every address but /healthz.

Examples:

    aureole serve --index gallery.lance --encoder encoder \
      --images pictures --label-column label
    aureole serve --index gallery.lance --encoder head --modality text \
      --text-column caption --port 8000
    aureole serve --index gallery.faiss --host 0.0.0.0 \
      --api-key-file key.txt --rate 20
"""


def serve(
    index: Annotated[str, typer.Option(help="The gallery's address.", metavar="ADDRESS")],
    encoder: Annotated[
        Path | None,
        model_option("The folder of the model that made the gallery, or minilm-captions."),
    ] = None,
    modality: Annotated[
        Literal["image", "text", "vector"] | None,
        typer.Option(help="What it takes: a head on MiniLM's vectors can take texts."),
    ] = None,
    normalized: Normalized = None,
    images: Annotated[
        Path | None, typer.Option(help="A folder of pictures named after the ids.")
    ] = None,
    label_column: Annotated[
        str | None, typer.Option(help="The payload column that says what an item is.")
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(help="The payload column with an item's text.")
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8765,
    api_key_file: Annotated[
        Path | None, typer.Option(help=f"A file with the key; or set {KEY}.")
    ] = None,
    largest_body: Annotated[
        int, typer.Option(min=1024, help="Bytes of a request at most.")
    ] = 16 * 2**20,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds for a request at most.")
    ] = 30.0,
    rate: Annotated[
        float | None,
        typer.Option(min=0, help="Requests a second of one address; 0: any number. Default: 0 on this machine, "
                     "else 100."),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, max=1024, help="Requests that may share a call.")
    ] = 32,
    queue: Annotated[
        int, typer.Option(min=1, help="Requests that may wait for the encoder or the engine.")
    ] = 1024,
    json_logs: Annotated[
        bool, typer.Option("--json-logs", help="Log in lines of JSON.")
    ] = False,
) -> None:  # fmt: skip
    """Serve until a signal; ``HELP`` is what users read."""
    _import_server()
    from aureole.serve import (
        HostedEmbedder,
        Limits,
        Metrics,
        Pictures,
        Server,
        Service,
        address_of,
        bound_socket,
        create_app,
    )

    _set_up_log(as_json=json_logs)
    key = read_key(api_key_file)
    loopback = _is_loopback(host)
    if not loopback and key is None:
        typer.echo(f"warning: {host} may be reached by others, and there is no key.", err=True)
    metrics = Metrics()
    with CredibleIndex.open(index) as opened, ExitStack() as stack:
        embedder = None
        if encoder is not None:
            embedder = HostedEmbedder(encoder, modality, normalized=normalized)
            stack.callback(embedder.close)
        service = Service(
            opened,
            embedder,
            pictures=None if images is None else Pictures(images),
            label_column=label_column,
            text_column=text_column,
            batch=batch,
            room=queue,
            seen=metrics.worker,
        )
        try:
            allowed = (0.0 if loopback else 100.0) if rate is None else rate
            limits = Limits(body=largest_body, seconds=timeout, rate=allowed)
            listening = bound_socket(host, port)
            place, number = address_of(listening)
            shown = f"[{place}]" if ":" in place else place

            def ready() -> None:
                rows = len(service.certainty)
                typer.echo(f"aureole serves {rows:,} items at http://{shown}:{number}")
                sys.stdout.flush()

            app = create_app(service, limits=limits, key=key, metrics=metrics)
            service.warm_up()
            service.compute_rejection()
            Server(app, ready).run([listening])
        finally:
            service.close()


def read_key(file: Path | None) -> str | None:
    """The key from a file or the environment, or None; never from the command line, which others can read."""
    given = os.environ.get(KEY) if file is None else file.read_bytes().decode("utf-8", "replace")
    if given is None:
        return None
    key = given.strip()
    if len(key) < 8 or not key.isascii() or not key.isprintable() or " " in key:
        where = KEY if file is None else str(file)
        raise InvalidInputError(
            f"the key in {where} must have 8 printable ASCII characters or more, without blanks."
        )
    return key


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _import_server() -> None:
    try:
        from aureole.serve import Metrics, Server, create_app

        Metrics(), Server, create_app
    except ImportError as error:
        raise MissingPackageError(
            f"the service needs FastAPI, uvicorn and prometheus-client ({error}): pip install 'aureole[serve]'."
        ) from error


def _set_up_log(*, as_json: bool) -> None:
    """Log to stderr: a line each, or a JSON object each."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_JsonLines() if as_json else text)
    for name in ("aureole.serve", "uvicorn.error"):
        log = logging.getLogger(name)
        log.handlers, log.propagate = [handler], False
        log.setLevel(logging.INFO if name == "aureole.serve" else logging.WARNING)


class _JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        found: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found)
