"""Threads of a service that work while it answers, and that end before the process does."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

_LONGEST = 5.0  # seconds that a service waits for its threads when it closes


class ClosedError(BaseException):
    """The service is closing: unfinished work is given up, past any ``except Exception``."""


class Background:
    """The threads. One that still ran compiled code when the interpreter ends would abort the process."""

    def __init__(self) -> None:
        self.closing = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Run this in a thread; it may stop early with ``ClosedError``."""

        def run() -> None:
            with suppress(ClosedError):
                work()

        thread = threading.Thread(target=run, name=f"aureole-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def check(self, *_: object) -> None:
        """Raise ``ClosedError`` if the service is closing; long work calls this as its observer."""
        if self.closing.is_set():
            raise ClosedError

    def close(self) -> None:
        """Ask all threads to end, and wait for them for a few seconds."""
        self.closing.set()
        deadline = time.monotonic() + _LONGEST
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
