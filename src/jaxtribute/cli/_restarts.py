"""When a task of a parameter-server job is started again. Pure: is told how tasks ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

CHIEF = "chief:0"

_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 10.0
_FAILED_STARTS = 5


@dataclass(frozen=True)
class Restart:
    """A task may be started again."""

    number: int
    """The first is 1."""
    limit: int
    pause_seconds: float


class Restarts:
    """How often each task has been started again, and whether it may be once more.

    One that ends with an error several times in a row before it is up would do so for ever.

    Args:
      limit: how often each worker and each parameter server may be started again.
      chief_limit: how often the chief may be.
    """

    def __init__(self, limit: int, chief_limit: int) -> None:
        self._limit = limit
        self._chief_limit = chief_limit
        self._counts: Counter[str] = Counter()
        self._failed_starts: Counter[str] = Counter()

    def of(self, task: str) -> int:
        """Return how often a task has been started again."""
        return self._counts[task]

    def after(self, task: str, returncode: int, was_up: bool) -> Restart | None:
        """Return when to start a task again that has ended; None to give it up.

        Args:
          task: its name.
          returncode: as `subprocess` has it: negative for a signal.
          was_up: whether it had come so far as to take part.
        """
        limit = self._chief_limit if task == CHIEF else self._limit
        if self._counts[task] == limit:
            return None
        started = was_up or returncode < 0 or task == CHIEF
        failed_starts = 0 if started else self._failed_starts[task] + 1
        self._failed_starts[task] = failed_starts
        if failed_starts == _FAILED_STARTS:
            return None
        self._counts[task] += 1
        pause = _PAUSE_SECONDS * 2 ** max(0, failed_starts - 1)
        return Restart(self._counts[task], limit, min(pause, _LONGEST_PAUSE_SECONDS))
