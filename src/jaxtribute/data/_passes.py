"""Which pass over a dataset is the next one."""

from __future__ import annotations

import threading


class Passes:
    """Numbers the passes, each of which has random orders of its own."""

    def __init__(self) -> None:
        self._next = 0
        self._lock = threading.Lock()

    def begin(self) -> int:
        """Return the number of a new pass."""
        with self._lock:
            self._next += 1
            return self._next - 1

    def go_on_with(self, number: int) -> None:
        """Take note that a pass is going on that was begun elsewhere, so that others follow it."""
        with self._lock:
            self._next = max(self._next, number + 1)
