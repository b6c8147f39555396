"""Runs the closures that a worker was given: one at a time, in their order, in one thread.

The thread that carries messages tells an `Executor` what has arrived; the one that called `work`
does everything else: it makes and closes sessions, loads functions, makes resources and runs
closures. Between the two are one lock and no waiting.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from .._limits import say
from ..rpc import Buffer
from ._adoption import Adoption, Job, Stopped
from ._messages import Outcome
from ._outbox import Outbox

__all__ = ["Executor", "Listeners"]


class Listeners(Protocol):
    """Whom an executor tells what happens, from either thread."""

    def opened(self, adoption: Adoption) -> None:
        """The worker is ready for what this coordinator sends."""

    def needs(self, adoption: Adoption, digests: list[str]) -> None:
        """These blobs are not there."""

    def built(self, adoption: Adoption, optimizer: int, variables: list[list[int]]) -> None:
        """An optimizer was first used, with these variables, each by its shards."""

    def reached(self, point: str) -> None:
        """The thread is about to `execute` a closure, or to `report` what became of one."""


class Executor:
    """The closures of a worker, and the thread that runs them.

    Args:
      outbox: where outcomes go.
      listeners: whom to tell the rest.
    """

    def __init__(self, outbox: Outbox, listeners: Listeners) -> None:
        self._outbox = outbox
        self._listeners = listeners
        # Reentrant, as a signal may come to the thread that has it.
        self._changed = threading.Condition(threading.RLock())
        self._adoption: Adoption | None = None
        self._retired: list[Adoption] = []
        self._waiting: deque[Job] = deque()
        self._asked: set[str] = set()
        self._attached = False
        self._running = -1
        self._in_closure = False
        self._finished = 0
        self._failed = 0
        self._stopping = False

    # --- What has arrived ------------------------------------------------------------------

    def adopt(self, adoption: Adoption) -> None:
        """Work for a coordinator; if it is the same as before, it has just returned.

        Closures that have not begun are dropped: a coordinator that was away has given them to
        others.
        """
        with self._changed:
            self._drop_waiting()
            self._asked.clear()
            current = self._adoption
            if current is not None and current.origin == adoption.origin:
                if current.is_open:
                    self._listeners.opened(current)
            else:
                self._retire()
                self._adoption = adoption
            self._attached = True
            self._outbox.begin(adoption.origin)
            self._changed.notify_all()

    def detach(self) -> None:
        """Begin no closure until the coordinator is back."""
        with self._changed:
            self._attached = False

    def give_up(self) -> None:
        """Forget a coordinator that does not come back."""
        with self._changed:
            self._drop_waiting()
            self._retire()
            self._changed.notify_all()

    def add_blobs(self, digests: Sequence[str], frames: Sequence[Buffer]) -> None:
        """Keep functions and constants."""
        with self._changed:
            if self._adoption is not None:
                self._adoption.add_blobs(digests, frames)
            self._asked.difference_update(digests)
            self._changed.notify_all()

    def add(self, jobs: Sequence[Job]) -> None:
        """Run closures after those that wait already."""
        with self._changed:
            if self._adoption is None:
                return
            for job in jobs:
                self._adoption.expect(job)
                self._waiting.append(job)
                self._ask_for(self._adoption, job)
            self._changed.notify_all()

    def cancel(self, numbers: Sequence[int]) -> None:
        """Answer closures that have not begun as cancelled."""
        with self._changed:
            wanted = set(numbers)
            self._give_back(
                [job for job in self._waiting if job.work.number in wanted], "cancelled"
            )

    def recall(self, count: int) -> None:
        """Give closures back that have not begun, the last ones first."""
        with self._changed:
            self._give_back(list(self._waiting)[::-1][:count], "returned")

    def stop(self) -> bool:
        """End `work` after the closure that runs, and tell whether one does."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            return self._in_closure

    def wake(self) -> None:
        """Have `work` ask again whether it should go on."""
        with self._changed:
            self._changed.notify_all()

    # --- Figures ---------------------------------------------------------------------------

    @property
    def adoption(self) -> Adoption | None:
        """What it has of the coordinator it works for."""
        return self._adoption

    @property
    def running(self) -> int:
        """The number of the closure that runs, or -1."""
        return self._running

    @property
    def waiting(self) -> int:
        """How many closures have not begun."""
        return len(self._waiting)

    @property
    def finished(self) -> int:
        """How many closures have ended, well or not."""
        return self._finished

    @property
    def failed(self) -> int:
        """How many of them have not ended well."""
        return self._failed

    # --- The thread ------------------------------------------------------------------------

    def work(self, go_on: Callable[[], bool] = lambda: True) -> None:
        """Run closures until stopped, or as long as `go_on()` is true."""
        while (step := self._next(go_on)) is not None:
            step()
        if self._stopping:
            for adoption in [*self._retired, self._adoption]:
                if adoption is not None:
                    adoption.close()

    def _next(self, go_on: Callable[[], bool]) -> Callable[[], None] | None:
        """Wait for something to do, and return it."""
        with self._changed:
            while not self._stopping and go_on():
                if self._retired:
                    return self._retired.pop().close
                adoption = self._adoption
                if adoption is not None and not adoption.is_open:
                    return partial(self._open, adoption)
                if adoption is not None and self._waiting and self._attached:
                    job = self._waiting[0]
                    if not self._ask_for(adoption, job):
                        self._waiting.popleft()
                        self._running = job.work.number
                        return partial(self._run, adoption, job)
                self._changed.wait()
            return None

    def _open(self, adoption: Adoption) -> None:
        try:
            session = adoption.open()
            session.strategy.tell_built = partial(self._listeners.built, adoption)
        except Exception as error:  # which each closure reports too
            say(f"{adoption.task} cannot run closures: {type(error).__name__}: {error}")
        if adoption is self._adoption:
            self._listeners.opened(adoption)

    def _run(self, adoption: Adoption, job: Job) -> None:
        self._listeners.reached("execute")
        try:
            self._in_closure = True
            if self._stopping:
                return
            outcome, frames = adoption.run(job)
        except Stopped:  # by a signal, and nobody waits for the outcome any more
            return
        finally:
            self._in_closure = False
        self._listeners.reached("report")
        with self._changed:
            adoption.done_with(job)
            self._running = -1
            self._finished += 1
            self._failed += outcome.status != "done"
            last = not self._waiting
            if self._stopping:
                return
        self._outbox.add(adoption.origin, outcome, frames, last=last, clocks=adoption.clocks)

    def _ask_for(self, adoption: Adoption, job: Job) -> list[str]:
        """Return the blobs that a closure lacks, which are asked for if they were not."""
        missing = adoption.missing(job)
        if new := [digest for digest in missing if digest not in self._asked]:
            self._asked.update(new)
            self._listeners.needs(adoption, new)
        return missing

    def _give_back(self, jobs: Sequence[Job], status: str) -> None:
        if self._adoption is None:
            return
        for job in jobs:
            self._waiting.remove(job)
            self._adoption.done_with(job)
            outcome = Outcome(job.work.number, status, 0.0, 0)
            self._outbox.add(self._adoption.origin, outcome, last=job is jobs[-1])

    def _drop_waiting(self) -> None:
        if self._adoption is not None:
            for job in self._waiting:
                self._adoption.done_with(job)
        self._waiting.clear()

    def _retire(self) -> None:
        if self._adoption is not None:
            self._retired.append(self._adoption)
            self._adoption = None
