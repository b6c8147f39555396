"""The evaluator of a job: a task beside training, which does not depend on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ._children import Child
from ._display import Display
from ._failures import Ending, exit_text
from ._local_cluster import EVALUATOR
from ._progress import JobProgress
from ._restarts import Restarts

__all__ = ["EvaluatorTask"]


class EvaluatorTask:
    """An evaluator, started again when it fails; training goes on in any case.

    Args:
      start: starts it, given the ports of the other tasks and how often it was started before.
      max_restarts: how often it may be started again.
      training_ended: the file that tells it that training is over.
      display: where to say what becomes of it.
      progress: told of ends and restarts.
    """

    def __init__(
        self,
        start: Callable[[Sequence[int], int], Child],
        max_restarts: int,
        training_ended: Path,
        display: Display,
        progress: JobProgress,
    ) -> None:
        self._start = start
        self._restarts = Restarts(max_restarts, chief_limit=0)
        self._training_ended = training_ended
        self._display = display
        self._progress = progress
        self._ports: Sequence[int] = ()
        self._due: float | None = None
        self.child: Child | None = None

    def begin(self, ports: Sequence[int]) -> None:
        """Start it, unless it runs since before training was started again."""
        self._ports = ports
        if self.child is None:
            self.child = self._start(ports, 0)

    def note_end(self, ending: Ending) -> None:
        """Take note that it has ended, and decide whether to start it again."""
        self._progress.end(EVALUATOR)
        if ending.returncode == 0:
            return
        how = exit_text(ending.returncode)
        self._display.say(f"{EVALUATOR} ended after {ending.seconds:.1f} s: {how}", style="red")
        restart = self._restarts.after(EVALUATOR, ending.returncode, was_up=False)
        if restart is None:
            self._display.say(f"{EVALUATOR} is not started again: training goes on", style="red")
            return
        self._display.say(f"starting {EVALUATOR} again ({restart.number} of {restart.limit})")
        self._due = time.monotonic() + restart.pause_seconds

    def started_again(self, at_once: bool = False) -> Child | None:
        """Start it again if that is due, and return the new process."""
        if self._due is None or (not at_once and time.monotonic() < self._due):
            return None
        self._due = None
        self.child = self._start(self._ports, self._restarts.of(EVALUATOR))
        self._progress.restart_task(EVALUATOR)
        return self.child

    def tell_training_ended(self) -> Child | None:
        """Tell it to evaluate the last checkpoint and end, and return it if it still runs."""
        self._training_ended.touch()
        self.started_again(at_once=True)
        return self.child if self.child is not None and self.child.ending is None else None

    def destroy(self) -> None:
        """End it if it has not ended."""
        if self.child is not None:
            self.child.destroy()
