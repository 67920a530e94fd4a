"""Services of live galleries: a new version and its model are loaded in the background, and swapped in together.

A request uses one pair of gallery and model from beginning to end. The old pair is closed after its last request. A
version that cannot be served, such as one whose model is not known, is not used: the service logs the reason, reports
it in /readyz, and keeps answering with the pair that it has.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aureole.encoders import absolute_spec, is_spec
from aureole.errors import AureoleError, EncoderError
from aureole.models import format_of
from aureole.retrieval import (
    CredibleIndex,
    LiveVersion,
    MatchCalibrator,
    read_live,
    resolve,
)
from aureole.scale import Embedder, Modality, ModelSpec
from aureole.serve._background import Background
from aureole.serve._errors import LOG
from aureole.serve._model_process import SubprocessEmbedder
from aureole.serve._service import Service

_RETRY, _LONGEST_RETRY = (
    60.0,
    3600.0,
)  # seconds until a version that failed to load is tried again; they double


@dataclass(frozen=True)
class QueryModel:
    """The model that the operator named, and the encoders that a ``.live`` file may name besides.

    Attributes
    ----------
    spec
        Used for versions that name no model; its encoder also for versions that only name a head.
    modality
        The kind of query (default: what the model takes).
    allowed
        Specifications of encoders that a version may name. They can run code, so a file alone cannot choose them;
        folders saved by ``PosteriorEncoder.save`` need no permission.
    """

    spec: ModelSpec = field(default_factory=ModelSpec)
    modality: Modality | None = None
    allowed: Sequence[str] = ()

    def of(self, version: LiveVersion, where: Path) -> ModelSpec | None:
        """The model of a version, or None for one without a model."""
        head = None if version.head is None else resolve(where, version.head)
        if version.encoder is not None:
            encoder = resolve(where, version.encoder, encoder=True)
            self._check_allowed(encoder, where)
            spec = ModelSpec(encoder, head, self._normalized(encoder))
        elif head is not None:
            spec = ModelSpec(self.spec.encoder, head, self.spec.normalized)
        else:
            spec = self.spec
        return None if spec.encoder is None and spec.head is None else spec.absolute()

    def _normalized(self, encoder: str) -> bool | None:
        same = self.spec.encoder is not None and absolute_spec(str(self.spec.encoder)) == encoder
        return self.spec.normalized if same else None

    def _check_allowed(self, encoder: str, where: Path) -> None:
        named = [*self.allowed, *([] if self.spec.encoder is None else [str(self.spec.encoder)])]
        if absolute_spec(encoder) in map(absolute_spec, named):
            return
        folder = Path(encoder)
        if not is_spec(encoder) and folder.is_dir() and not (folder / "modules.json").exists():
            with suppress(AureoleError):
                if (format_of(folder) or "").startswith("aureole-posterior-encoder"):
                    return
        raise EncoderError(
            f"{where} names the encoder {encoder[:200]!r}, which this service may not load. Restart it with "
            "--allow-encoder and this name."
        )


@dataclass
class _Pair:
    """A version of the gallery with the model of its queries, and the number of requests that use them."""

    number: int
    index: CredibleIndex
    service: Service
    embedder: Embedder | None
    spec: ModelSpec | None
    requests: int = 0
    retired: bool = False
    owns_embedder: bool = True


class LiveService:
    """Answers with the version of a gallery that is in service, and follows releases without a restart.

    Raises if the current version cannot be served. ``close`` stops all threads and closes the gallery.

    Parameters
    ----------
    where
        Path that ends in ``.live``.
    model
        How queries are embedded.
    calibrator
        Folder of the calibrator of versions that name none.
    settings
        Further arguments of ``Service``.
    """

    def __init__(
        self,
        where: str | Path,
        model: QueryModel | None = None,
        *,
        calibrator: Path | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._where, self._model = Path(where), model or QueryModel()
        self._calibrator, self._settings = calibrator, dict(settings or {})
        self._lock, self._background = threading.Lock(), Background()
        self._failed: tuple[int, float, float] | None = (
            None  # number, when to try again, and the wait
        )
        self.rollout: str | None = None
        self._pair = self._load(None)
        self.metrics, self.writable = self._pair.service.metrics, self._pair.service.writable

    @contextmanager
    def use(self) -> Iterator[Service]:
        """The service of the current version, which is not closed inside the block."""
        with self._lock:
            pair = self._pair
            pair.requests += 1
        try:
            yield pair.service
        finally:
            with self._lock:
                pair.requests -= 1
                unused = pair.retired and not pair.requests
            if unused:
                self._close_later(pair)

    def warm_up(self) -> None:
        """Fill the caches of the current version."""
        self._pair.service.warm_up()

    def compute_rejection(self) -> None:
        """Start a thread that computes the rejection curve of the current version."""
        self._pair.service.compute_rejection()

    @property
    def rows(self) -> int:
        """The number of items of the current version."""
        return self._pair.service.rows

    @property
    def map_reason(self) -> str | None:
        """Why the current version has no map, or which rows are not on it; None if all are."""
        return self._pair.service.map_reason

    def follow(self, seconds: float) -> None:
        """Start a thread that looks for a release, and for changed rows, at this interval."""

        def run() -> None:
            while not self._background.closing.wait(seconds):
                try:
                    self.look()
                except Exception as error:
                    LOG.warning("looking for a new version failed", exc_info=error)

        self._background.start("follow", run)

    def look(self) -> None:
        """Load and use a version that was released since the last look; else list changed rows."""
        number = read_live(self._where).number
        if number == self._pair.number:
            self.rollout = self._failed = None
            self._pair.service.refresh(str(self._where))
            return
        failed, again, wait = self._failed or (None, 0.0, 0.0)
        if number == failed and time.monotonic() < again:
            return
        self.rollout = f"release {number} is being loaded"
        try:
            pair = self._load(self._pair)
        except Exception as error:
            wait = min(_LONGEST_RETRY, 2 * wait) if number == failed else _RETRY
            self._failed = (number, time.monotonic() + wait, wait)
            self.rollout = f"release {number} cannot be used; see the service's log"
            LOG.error(
                "release %d of %s cannot be used; the service keeps answering with release %d, and tries again in "
                "%d s: %s",
                number, self._where, self._pair.number, wait, error,
                exc_info=None if isinstance(error, AureoleError) else error,
            )  # fmt: skip
            return
        self._swap(pair)
        self.rollout = self._failed = None
        LOG.info("release %d of %s is in service", pair.number, self._where)

    def close(self) -> None:
        """Process the queued requests, then stop all threads, and close the gallery."""
        self._background.close()
        _close(self._pair)

    def _load(self, old: _Pair | None) -> _Pair:
        """The current version with its model: that of the old pair if it fits, else a new one."""
        index = CredibleIndex.open(self._where, follow=False)
        embedder = service = None
        try:
            live = index.live
            assert live is not None
            spec = self._model.of(live.current, self._where)
            if (
                spec is None and old is not None
            ):  # a version without a model has that of the one before
                spec = old.spec
            if old is not None and old.spec == spec and _fits(index, old.embedder):
                embedder = old.embedder
            elif spec is not None:
                options = {"head": spec.head, "normalized": spec.normalized}
                embedder = SubprocessEmbedder(spec.encoder, self._model.modality, **options)
            folder = self._calibrator
            if live.current.calibrator is not None:
                folder = Path(resolve(self._where, live.current.calibrator))
            calibrator = None if folder is None else MatchCalibrator.load(folder)
            service = Service(index, embedder, calibrator=calibrator, **self._settings)
            if old is not None:
                service.warm_up()
            return _Pair(live.number, index, service, embedder, spec)
        except BaseException:
            if service is not None:
                service.close()
            if embedder is not None and (old is None or embedder is not old.embedder):
                _close_embedder(embedder)
            index.close()
            raise

    def _swap(self, pair: _Pair) -> None:
        pair.service.share_metrics(self.metrics)
        with self._lock:
            old, self._pair = self._pair, pair
            old.retired, old.owns_embedder = True, old.embedder is not pair.embedder
            unused = not old.requests
        pair.service.compute_rejection()
        if unused:
            self._close_later(old)

    def _close_later(self, pair: _Pair) -> None:
        """Close a pair without blocking the event loop."""
        self._background.start("close", lambda: _close(pair))


def _fits(index: CredibleIndex, embedder: Embedder | None) -> bool:
    """Whether a loaded model, or none, is that of a gallery, as far as is known."""
    if embedder is None:
        return True
    try:
        index.origin.check_same(embedder.weights, "the encoder", encoder=embedder.fingerprint)
    except EncoderError:
        return False
    return embedder.dim == index.schema.dim


def _close(pair: _Pair) -> None:
    pair.service.close()
    if pair.owns_embedder and pair.embedder is not None:
        _close_embedder(pair.embedder)
    pair.index.close()


def _close_embedder(embedder: Embedder) -> None:
    if isinstance(embedder, SubprocessEmbedder):
        embedder.close()
