"""How far a job is, from what its tasks report. Pure: is given reports and the time."""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

_RATE_SECONDS = 10.0
_SHORTEST_RATE_SECONDS = 0.5
_LONG_IDLE_SECONDS = 60.0


@dataclass
class _TaskProgress:
    phase: str | None = None
    step: int | None = None
    total: int | None = None
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    running: bool = True


class JobProgress:
    """The state of all tasks of a job.

    Args:
      tasks: their names.
      now: the time at which the job starts, in seconds.
      max_restarts: how often it may be started again.
    """

    def __init__(self, tasks: Sequence[str], now: float, max_restarts: int = 0) -> None:
        self._names = list(tasks)
        self._started = now
        self._max_restarts = max_restarts
        self._restarts = 0
        self._task_restarts = 0
        # In a cluster with parameter servers there are tasks that are no workers.
        self.noun = "worker" if all(t.startswith("worker:") for t in tasks) else "task"
        self._tasks: dict[str, _TaskProgress] = {}
        self._steps: deque[tuple[float, int]] = deque()
        self._reset()

    def _reset(self) -> None:
        self._tasks = {name: _TaskProgress() for name in self._names}
        self._steps.clear()

    def restart(self) -> None:
        """Note that all tasks are started again."""
        self._restarts += 1
        self._reset()

    def restart_task(self, task: str) -> None:
        """Note that one task is started again, and begins anew."""
        self._task_restarts += 1
        if self._tasks[task].step is not None:
            self._steps.clear()
        self._tasks[task] = _TaskProgress()

    def is_up(self, task: str) -> bool:
        """Tell whether a task has reported anything since it was started."""
        return self._tasks[task].phase is not None

    def end(self, task: str) -> None:
        """Note that a task has ended."""
        self._tasks[task].running = False

    def report(self, datagram: bytes, now: float) -> bool:
        """Take in a report of a task; return False for what is none."""
        fields = _parse(datagram)
        task = None if fields is None else self._tasks.get(str(fields.get("task")))
        if fields is None or task is None:
            return False
        for name in ("phase", "step", "total"):
            if name in fields:
                setattr(task, name, fields[name])
        if "metrics" in fields:
            task.metrics = dict(fields["metrics"] or {})
        lowest = self._lowest_step()
        if lowest is not None and (not self._steps or lowest != self._steps[-1][1]):
            self._steps.append((now, lowest))
            while now - self._steps[0][0] > _RATE_SECONDS and len(self._steps) > 2:
                self._steps.popleft()
        return True

    def text(self, now: float) -> str:
        """Return the state in one line."""
        idle = self._idle(now)
        stall = f"no step for {duration(idle)}" if idle >= _LONG_IDLE_SECONDS else self._rate()
        parts = [*self._state(), stall, duration(now - self._started), *self._restarted()]
        return ", ".join(part for part in parts if part)

    def state(self, now: float) -> str:
        """Return what is worth another line when it changes, which the passing of time is not.

        That no step is made any more is, the first time, and whenever it has lasted twice as long.
        """
        stall = int(math.log2(max(1.0, 2 * self._idle(now) / _LONG_IDLE_SECONDS)))
        return ", ".join([*self._state(), *self._restarted(), str(stall)])

    def reached(self) -> str:
        """Return how far the job has come, to be put behind something else."""
        return "".join(f", {part}" for part in self._reached())

    def _state(self) -> list[str]:
        running = sum(task.running for task in self._tasks.values())
        everyone = len(self._tasks)
        some = f"{running} of " if running < everyone else ""
        return [f"{some}{counted(everyone, self.noun)}{self._phases()}", *self._reached()]

    def _reached(self) -> list[str]:
        step = self._step_text()
        # All workers compute the same, so that one speaks for all: the first, which is the chief.
        metrics = next(iter(self._tasks.values())).metrics
        return [*([step] if step else []), *(f"{name} {v:.4g}" for name, v in metrics.items())]

    def _phases(self) -> str:
        running = [task.phase for task in self._tasks.values() if task.running]
        phases = Counter(phase or "running" for phase in running)
        if len(phases) > 1:
            counts = ", ".join(f"{count} {phase}" for phase, count in phases.items())
            return f" ({counts})"
        if not any(running):
            return " running" if running else ""
        return f", {running[0]}"

    def _step_text(self) -> str:
        steps = [task.step for task in self._tasks.values() if task.step is not None]
        if not steps:
            return ""
        low, high = min(steps), max(steps)
        totals = [task.total for task in self._tasks.values() if task.total is not None]
        step = f"step {low}" if low == high else f"step {low}..{high}"
        return step + (f" of {max(totals)}" if totals else "")

    def _lowest_step(self) -> int | None:
        return min((t.step for t in self._tasks.values() if t.step is not None), default=None)

    def _rate(self) -> str:
        if len(self._steps) < 2:
            return ""
        (began, first), (ended, last) = self._steps[0], self._steps[-1]
        if ended - began < _SHORTEST_RATE_SECONDS or last <= first:
            return ""
        return f"{(last - first) / (ended - began):.3g} steps/s"

    def _idle(self, now: float) -> float:
        """Return how long ago the last step was made; 0 before the first."""
        return now - self._steps[-1][0] if self._steps else 0.0

    def _restarted(self) -> list[str]:
        if self._task_restarts:
            return [counted(self._task_restarts, "restart")]
        return [f"restart {self._restarts} of {self._max_restarts}"] if self._restarts else []


def counted(count: int, noun: str) -> str:
    """Return a number of things in words."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def duration(seconds: float) -> str:
    """Return a time as people write it: 4.2 s, 3:05, 2:03:05."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _parse(datagram: bytes) -> dict[str, Any] | None:
    """Return the fields of a report, None for something else: anyone may write to a socket."""
    try:
        parsed = json.loads(datagram)
    except ValueError:
        return None
    if not isinstance(parsed, dict):
        return None
    fields = cast(dict[str, Any], parsed)
    metrics = fields.get("metrics") or {}
    valid = (
        isinstance(fields.get("phase", ""), str)
        and all(isinstance(fields.get(n), int | None) for n in ("step", "total"))
        and isinstance(metrics, dict)
        and all(isinstance(value, int | float) for value in metrics.values())
    )
    return fields if valid else None
