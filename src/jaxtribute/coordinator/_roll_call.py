"""Who is there and what they do, in words."""

from __future__ import annotations

from collections.abc import Iterable

from ._closure import Closure
from ._queue import ClosureQueue
from ._servers import Servers
from ._worker_view import State, WorkerView

__all__ = ["describe_missing", "describe_tasks", "describe_wait"]


def describe_wait(
    queue: ClosureQueue[Closure], workers: Iterable[WorkerView], servers: Servers, now: float
) -> str:
    """Return what a wait for closures waits for."""
    parts = [f"{queue.running} closures to end and {queue.waiting} to begin"]
    for view in workers:
        held = queue.held(view.task)
        parts.append(view.describe(now) + (f", has {held}" if held else ""))
    return "; ".join([*parts, *servers.describe(now)])


def describe_missing(workers: Iterable[WorkerView], servers: Servers, now: float) -> str:
    """Return who is not there, or nothing."""
    away = [view.describe(now) for view in workers if view.state is not State.READY]
    return "; ".join([*away, *servers.describe(now)])


def describe_tasks(workers: Iterable[WorkerView], servers: Servers) -> list[str]:
    """Return a line about each task."""
    lines: list[str] = []
    for view in workers:
        is_ready = view.state is State.READY
        devices = f"{view.devices} device{'' if view.devices == 1 else 's'}"
        state = f"up, with {devices}" if is_ready else "not up yet"
        lines.append(f"{view.task} at {view.address}: {state}")
    for task, (address, is_up) in servers.addresses().items():
        lines.append(f"{task} at {address}: {'up' if is_up else 'not up yet'}")
    return lines
