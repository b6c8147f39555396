"""How an evaluator learns that training is over: SIGTERM, or a file that the launcher makes."""

from __future__ import annotations

import os
import queue
import signal
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from .._job import TRAINING_ENDED

__all__ = ["Ending"]


class Ending:
    """Takes note of the end of training while it is open.

    The first SIGTERM says so. A second one does what it did before, so that an evaluation that
    takes too long can be ended. Signals reach the main thread only; elsewhere they are left alone.
    """

    def __init__(self) -> None:
        self._is_told = False
        # Not an event: a handler of signals that sets one may wait for the very wait it interrupts.
        self._signals: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._file = os.environ.get(TRAINING_ENDED)
        self._before: Any = None
        self._catches = False

    def __enter__(self) -> Ending:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._take)
            self._catches = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._let_go()

    def _take(self, number: int, frame: FrameType | None) -> None:
        self._let_go()
        self._is_told = True
        self._signals.put(None)

    def _let_go(self) -> None:
        if self._catches:
            self._catches = False
            # None is a handler that was not made by Python, and cannot be put back.
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)

    @property
    def has_come(self) -> bool:
        """Whether training is over."""
        return self._is_told or (self._file is not None and os.path.exists(self._file))

    def wait(self, seconds: float) -> None:
        """Return after this time, or at once when a signal comes."""
        with suppress(queue.Empty):
            self._signals.get(timeout=seconds)
