"""Has threads stand still at named points, so that a test can arrange what happens next."""

from __future__ import annotations

import threading

__all__ = ["POINTS", "Freezer"]

POINTS = ("execute", "report")


class Freezer:
    """Which tasks stand still, and where."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._points: dict[str, str] = {}
        self._standing: set[str] = set()

    def freeze(self, task: str, at: str) -> None:
        """Have a task stand still when it next reaches a point.

        Raises:
          ValueError: when there is no such point.
        """
        if at not in POINTS:
            raise ValueError(f"A worker stands still at one of {', '.join(POINTS)}, got {at!r}.")
        with self._changed:
            self._points[task] = at

    def reached(self, task: str, point: str) -> None:
        """Stand still, if this task is to do so here."""
        with self._changed:
            if self._points.get(task) != point:
                return
            self._standing.add(task)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._points.get(task) != point)
            self._standing.discard(task)

    def wait_until_frozen(self, task: str, seconds: float) -> None:
        """Wait until a task stands still.

        Raises:
          TimeoutError: when it does not.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: task in self._standing, seconds):
                point = self._points.get(task)
                if point is None:
                    raise TimeoutError(f"{task} was not told to stand still: call freeze first.")
                raise TimeoutError(f"{task} has not reached {point!r} for {seconds:g} s.")

    def thaw(self, task: str) -> None:
        """Let a task go on."""
        with self._changed:
            self._points.pop(task, None)
            self._changed.notify_all()
