"""Keeping Ctrl-C, and what other signals raise, out of a stretch of the program."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SECONDS_OF_PATIENCE = 1.0


@contextmanager
def postponed() -> Generator[None]:
    """Have signals handled after this rather than inside.

    Python runs their handlers in the main thread, between any two instructions, and what they raise
    is raised there. One that comes a second after another was postponed is handled at once: what
    runs inside may have come to a standstill, and the user wants out.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers: dict[int, Any] = {}
    arrived: dict[int, float] = {}

    def note(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - arrived.setdefault(number, now) > _SECONDS_OF_PATIENCE:
            handlers[number](number, frame)

    try:
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler):
                handlers[number] = handler
                signal.signal(number, note)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        _deliver(list(arrived))


def _deliver(numbers: list[int]) -> None:
    if numbers:
        try:
            signal.raise_signal(numbers.pop())
        finally:  # the handler of one must not keep the others from being handled
            _deliver(numbers)
