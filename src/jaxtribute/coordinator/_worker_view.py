"""What the coordinator knows of one worker."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Iterable

from ._closure import Closure
from ._pace import Load
from ._packing import Blob, Resource

__all__ = ["State", "WorkerView"]

_WEIGHT = 0.2  # of the newest closure in the mean
_RECALL_SECONDS = 0.5


class State(enum.Enum):
    """Whether a worker can be given closures."""

    DOWN = "not connected"
    ADOPTED = "connected, not ready"
    READY = "ready"
    SILENT = "silent"


class WorkerView:
    """One worker as the coordinator sees it.

    Args:
      task: its name.
      address: where it listens.
      index: its number.
    """

    def __init__(self, task: str, address: str, index: int) -> None:
        self.task = task
        self.address = address
        self.index = index
        self.state = State.DOWN
        self.incarnation = ""
        self.devices = 0
        self.seen = 0.0  # when it last sent something
        self.since = 0.0  # when its state last changed
        self.why = "it has not been reached yet"  # it is not ready
        self.mean_seconds: float | None = None
        self.progress = 0.0  # when it last finished a closure, or was given its first
        self.recalled = float("-inf")
        self.finished = 0
        self._known: weakref.WeakSet[Blob] = weakref.WeakSet()
        self._resources: dict[int, bool] = {}  # whether each was used since it was described

    def begin(self, incarnation: str) -> bool:
        """Note that it is connected, and tell whether it is another process than before."""
        is_new = incarnation != self.incarnation
        self.incarnation = incarnation
        self._known = weakref.WeakSet()  # what was on its way may have been lost
        if is_new:
            self._resources = {}
            self.mean_seconds = None
        else:
            # One that is described again is made again, so this is not done without need.
            self._resources = {number: True for number, used in self._resources.items() if used}
        return is_new

    def becomes(self, state: State, now: float, why: str = "") -> None:
        """Note how it is, and why it cannot be used if it cannot."""
        self.state, self.since, self.why = state, now, why
        if state in (State.ADOPTED, State.READY):
            self.seen = now

    def load(self, held: int, now: float) -> Load:
        """Return what it has to do."""
        recalled = now - self.recalled < _RECALL_SECONDS
        return Load(held, self.mean_seconds, now - self.progress if held else 0.0, recalled)

    def finished_one(self, closure: Closure, seconds: float) -> None:
        """Note that it has run a closure, and so has what that needed."""
        mean = self.mean_seconds
        self.mean_seconds = seconds if mean is None else mean + _WEIGHT * (seconds - mean)
        self.progress = self.seen
        self.finished += 1
        for resource in closure.resources:
            if resource.number in self._resources:
                self._resources[resource.number] = True

    def new_blobs(self, closures: Iterable[Closure]) -> list[Blob]:
        """Return what closures need and the worker has not been sent, which it is now."""
        needed = dict.fromkeys(blob for closure in closures for blob in closure.blobs)
        new = [blob for blob in needed if blob not in self._known]
        self._known.update(new)
        return new

    def new_resources(self, closures: Iterable[Closure]) -> list[Resource]:
        """Return what the worker does not know how to make, and is told now."""
        needed = {
            resource.number: resource for closure in closures for resource in closure.resources
        }
        new = [resource for number, resource in needed.items() if number not in self._resources]
        self._resources.update((resource.number, False) for resource in new)
        return new

    def forget(self, numbers: Iterable[int]) -> list[int]:
        """Return which of some resources it has, and no longer needs."""
        return [number for number in numbers if self._resources.pop(number, None) is not None]

    def describe(self, now: float) -> str:
        """Return in words how it is."""
        if self.state is State.READY:
            return f"{self.task} ready"
        return f"{self.task} {self.state.value} for {now - self.since:.0f} s ({self.why})"
