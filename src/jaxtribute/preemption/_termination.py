"""Whether this process was asked to end."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..errors import FailedPreconditionError

_SECONDS_BETWEEN_LOOKS = 1.0


class Termination:
    """Notices SIGTERM, or that a function says True, until it is closed.

    Args:
      watcher_fn: called once a second instead of watching for the signal.

    Raises:
      FailedPreconditionError: without a function, in another thread than the main one.
    """

    def __init__(self, watcher_fn: Callable[[], bool] | None = None) -> None:
        self.asked_at: float | None = None
        """When this process was asked to end, by the clock of `time.monotonic`."""
        self._closed = threading.Event()
        self._failure: Exception | None = None
        self._previous: Any = None
        self._thread: threading.Thread | None = None
        if watcher_fn is not None:
            self._thread = threading.Thread(
                target=self._look, args=(watcher_fn,), name="jaxtribute-termination", daemon=True
            )
            self._thread.start()
        elif _in_main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._received)
        else:
            raise FailedPreconditionError(
                "Python handles signals in its main thread only, so SIGTERM cannot be watched for "
                "from another one. Do this in the main thread, or give "
                "TerminationConfig(termination_watcher_fn=...) a function that tells when to end."
            )

    @property
    def is_asked(self) -> bool:
        """Whether this process was asked to end.

        Raises:
          Exception: what the function raised that was to tell it.
        """
        if self._failure is not None:
            raise self._failure
        return self.asked_at is not None

    def close(self) -> None:
        """Stop watching, and let SIGTERM do what it did before."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        # One that was set later calls this one, and stays.
        elif _in_main_thread() and signal.getsignal(signal.SIGTERM) == self._received:
            before = self._previous
            while isinstance(other := getattr(before, "__self__", None), Termination):
                if not other._closed.is_set():
                    break
                before = other._previous
            # A handler that was not set in Python is unknown to it, and cannot be set again.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)

    def _received(self, number: int, frame: FrameType | None) -> None:
        # It may interrupt anything, itself included, so it waits for no lock and prints nothing.
        if self.asked_at is None and not self._closed.is_set():
            self.asked_at = time.monotonic()
        if callable(self._previous):
            self._previous(number, frame)

    def _look(self, watcher_fn: Callable[[], bool]) -> None:
        try:
            while not watcher_fn():
                if self._closed.wait(_SECONDS_BETWEEN_LOOKS):
                    return
            self.asked_at = time.monotonic()
        except Exception as error:
            self._failure = error


def ignore_from_now_on() -> None:
    """Let SIGTERM change nothing any more about how this process ends."""
    if _in_main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
