"""Outcomes of closures on their way to the coordinator, several in one message.

The outcome of a long closure, and of the last one that waits here, goes at once. Those of short
ones are held back for a moment, so that thousands a second do not cost a message each.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from ..rpc import Buffer
from ._messages import Outcome, Outcomes

__all__ = ["Outbox"]

_HELD_BACK_SECONDS = 0.01
_LONG_SECONDS = 0.01  # from here on a message costs little beside the closure
_MOST_BYTES, _MOST_FRAMES = 8 << 20, 1024  # results beyond that are not collected any further

Send = Callable[[msgspec.Struct, Sequence[Buffer]], bool]


class Outbox:
    """Collects outcomes for one coordinator at a time; for any thread.

    Args:
      send: sends a message to the coordinator, or returns False if it is not connected.
      clock: tells the time.
    """

    def __init__(self, send: Send, clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._changed = threading.Condition()
        self._origin = ""
        self._outcomes: list[Outcome] = []
        self._frames: list[Buffer] = []
        self._clocks: list[int] = []
        self._bytes = 0
        self._since = 0.0
        self._stuck = False  # until the coordinator is connected again

    def begin(self, origin: str) -> None:
        """Drop what was for another coordinator; what is left for this one goes now."""
        with self._changed:
            if origin != self._origin:
                self._clear()
                self._origin = origin
                self._stuck = False
            self._flush()

    def add(
        self,
        origin: str,
        outcome: Outcome,
        frames: Sequence[Buffer] = (),
        *,
        last: bool,
        clocks: Sequence[int] | None = None,
    ) -> None:
        """Send an outcome soon; if it is the last one for now, at once.

        Args:
          origin: for which coordinator it is.
          outcome: what became of a closure.
          frames: its result or error.
          last: whether none follows for now.
          clocks: those of the parameter servers, if they may have gone on.
        """
        with self._changed:
            if origin != self._origin:
                return
            if len(self._frames) + len(frames) > _MOST_FRAMES:
                self._flush()
            if not self._outcomes:
                self._since = self._clock()
            self._outcomes.append(outcome)
            self._frames.extend(frames)
            self._clocks = self._clocks if clocks is None else list(clocks)
            self._bytes += sum(memoryview(frame).nbytes for frame in frames)
            long = outcome.seconds > _LONG_SECONDS or self._bytes > _MOST_BYTES
            if last or long or self._clock() - self._since > _HELD_BACK_SECONDS:
                self._flush()
            elif len(self._outcomes) == 1:
                self._changed.notify_all()  # the next closure may be a long one

    def wait(self, seconds: float) -> None:
        """Wait so long, or until outcomes are there that have been held back."""
        with self._changed:
            if self._stuck or not self._outcomes:
                self._changed.wait(seconds)
            if self._outcomes and not self._stuck:
                self._changed.wait(_HELD_BACK_SECONDS)
                self._flush()

    def wake(self) -> None:
        """End a `wait`."""
        with self._changed:
            self._changed.notify_all()

    def _flush(self) -> None:
        if not self._outcomes:
            return
        message = Outcomes(self._origin, list(self._outcomes), self._clocks)
        self._stuck = not self._send(message, list(self._frames))
        if not self._stuck:
            self._clear()

    def _clear(self) -> None:
        self._outcomes.clear()
        self._frames.clear()
        self._bytes = 0
