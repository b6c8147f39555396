"""Gives closures to workers, and takes what becomes of them.

`schedule`, `join` and `done` are called by the user's threads. All else happens in the one thread
of the connections, which is woken only when a worker has room.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from .._limits import say, silence_limit
from ..errors import DeadlineExceededError
from ._closure import Closure
from ._closures import REPLACED, Closures, Epochs
from ._failures import Decision, Failures, Limits
from ._messages import (
    Adopt,
    Blobs,
    Build,
    Built,
    Cancel,
    Forget,
    Need,
    Outcomes,
    Pulse,
    Ready,
    Recall,
    Replaced,
    Run,
)
from ._pace import recalls, room, shares, start_delays
from ._packing import Packed, PackedFunction, Packer
from ._queue import CAPACITY, ClosureQueue
from ._remote_value import RESULT_BYTES, RemoteValue
from ._roll_call import describe_missing, describe_tasks, describe_wait
from ._servers import Servers
from ._waiting import wait_until
from ._worker_view import State, WorkerView

if TYPE_CHECKING:
    from ..rpc import Buffer

__all__ = ["Cluster", "Dispatcher", "Poster"]

_PULSE_SECONDS = 1.0
_FOR_OTHERS = 0.5  # seconds


class Poster(Protocol):
    """The part of `rpc.Connections` that a dispatcher uses."""

    def post(self, task: str, body: msgspec.Struct, frames: Sequence[Buffer] = ()) -> None: ...
    def wake(self) -> None: ...


@dataclass(frozen=True)
class Cluster:
    """What a dispatcher has to know of the cluster.

    Args:
      origin: this life of the coordinator.
      workers: the addresses of the workers.
      servers: the addresses of the parameter servers.
      replicas: on how many devices each worker runs a step.
    """

    origin: str
    workers: Sequence[str]
    servers: Sequence[str]
    replicas: int = 1


class Dispatcher:
    """The workers of one coordinator, and the closures they run; the handler of its connections.

    Args:
      cluster: who is there.
      epochs: counts the events after which workers have to read values anew.
      packer: knows the functions and constants that closures refer to.
      restore: begins to restore a parameter server that was restarted, and reports to `restored`.
      patience: how many seconds a server may be away; by default as long as a worker.
      built: told that an optimizer was first used on a worker.
      clocks: told how many updates each parameter server has had, as far as a worker knows.
      capacity: how many closures may wait.
      result_bytes: how many bytes of results may wait.
      first: the number of the first closure.
      clock: tells the time.
    """

    def __init__(
        self,
        cluster: Cluster,
        epochs: Epochs,
        packer: Packer,
        *,
        restore: Callable[[str], None] | None = None,
        patience: float | None = None,
        built: Callable[[int, list[list[int]]], None] = lambda optimizer, variables: None,
        clocks: Callable[[list[int]], None] = lambda clocks: None,
        capacity: int = CAPACITY,
        result_bytes: int = RESULT_BYTES,
        first: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._packer = packer
        self._restore = restore
        self._built, self._clocks = built, clocks
        self._clock = clock
        self._silence = silence_limit()
        limits = Limits.of(len(cluster.workers))
        self._servers = Servers(
            {f"ps:{i}": address for i, address in enumerate(cluster.servers)},
            patience or self._silence,
            restore is not None,
            limits,
        )
        self.workers = {
            f"worker:{i}": WorkerView(f"worker:{i}", address, i)
            for i, address in enumerate(cluster.workers)
        }
        self._delays = start_delays(len(cluster.workers))
        self._queue: ClosureQueue[Closure] = ClosureQueue(capacity, first)
        failures = Failures(limits)
        self.closures = Closures(
            self._queue, epochs, self._servers, failures, result_bytes, self.describe, clock
        )
        self.changed = self.closures.changed
        self._told_at = 0.0
        self._dropped: deque[int] = deque()
        self._poster: Poster | None = None
        self._started = clock()
        self._servers.begin(self._started)
        for view in self.workers.values():
            view.since = self._started

    # --- For the user's threads ------------------------------------------------------------

    def start(self, poster: Poster) -> None:
        """Send by these connections from now on."""
        self._poster = poster

    def schedule(self, function: PackedFunction, arguments: Packed) -> RemoteValue:
        """Have a function called on a worker.

        Raises:
          Exception: the first error of a function that was scheduled before, if there was one.
        """
        value, is_awaited = self.closures.schedule(function, arguments)
        if is_awaited:
            self._wake()
        return value

    def wait_for_a_worker(self, limit: float) -> None:
        """Wait until a worker is ready, and a moment for the others.

        Raises:
          DeadlineExceededError: when none is within so many seconds.
        """
        with self.changed:
            if not wait_until(self.changed, lambda: bool(self._ready()), self.missing, limit):
                raise DeadlineExceededError(
                    f"No worker was there within {limit:.0f} s: {self.missing()}. Start workers "
                    "with jt.Server(...).join() or `jaxtribute server`, or wait for longer with "
                    "JAXTRIBUTE_JOIN_TIMEOUT."
                )
            wait_until(self.changed, lambda: not self.missing(), self.missing, _FOR_OTHERS)

    def drop_resource(self, number: int) -> None:
        """Have workers forget something, soon; may be called at any moment."""
        self._dropped.append(number)

    def restored(self, task: str, lost: int, error: str = "") -> None:
        """Note what became of restoring a server; for any thread."""
        with self.changed:
            self._servers.restored(task, error)
            self.closures.stop_if_hopeless()
            self.changed.notify_all()
        if error:
            say(f"{task} could not be restored: {error}")
        else:
            say(f"{task} goes on from its newest snapshot; {lost} updates were lost.")
        self._wake()

    def _wake(self) -> None:
        if self._poster is not None:
            self._poster.wake()

    # --- In words, with `changed` held -----------------------------------------------------

    def describe(self) -> str:
        """Return what a wait for closures waits for."""
        return describe_wait(self._queue, self.workers.values(), self._servers, self._clock())

    def missing(self) -> str:
        """Return who is not there, or nothing."""
        return describe_missing(self.workers.values(), self._servers, self._clock())

    def who_is_there(self) -> list[str]:
        """Return a line about each task; `changed` is not held."""
        with self.changed:
            return describe_tasks(self.workers.values(), self._servers)

    # --- rpc.ConnectionsHandler ------------------------------------------------------------

    def up(self, task: str, incarnation: str) -> None:
        """A task is connected."""
        with self.changed:
            if task in self._servers:
                decision = self._servers.up(task, incarnation, self._clock())
                if decision is Decision.WAIT_AND_RESTORE:
                    say(f"{task} was restarted, and is restored.")
                    assert self._restore is not None
                    self._restore(task)
                self._stop_if_hopeless()
            elif not self.closures.is_closed:
                view = self.workers[task]
                if view.state is not State.DOWN:
                    self._lose(view, "it was connected anew", State.DOWN)
                view.begin(incarnation)
                self._adopt(view)
            self.changed.notify_all()
        self._dispatch()

    def down(self, task: str, why: str) -> None:
        """A task is not connected."""
        with self.changed:
            if task in self._servers:
                self._servers.down(task, why, self._clock())
                if not self.closures.is_closed:
                    say(f"{task} is not connected: {why}.")
            else:
                self._lose(self.workers[task], why, State.DOWN)
            self.changed.notify_all()
        self._dispatch()

    def received(self, task: str, body: Any, frames: list[Buffer]) -> None:
        """A worker says something."""
        view = self.workers.get(task)
        if view is None:
            return
        view.seen = self._clock()
        if view.state is State.SILENT:
            with self.changed:
                self._adopt(view)  # so that it drops what others have been given
        if getattr(body, "origin", self._cluster.origin) != self._cluster.origin:
            return
        match body:
            case Outcomes():
                self._take_outcomes(view, body, frames)
            case Ready():
                self._is_ready(view, body.devices)
            case Need():
                found = [b for b in map(self._packer.blob, body.digests) if b is not None]
                self._post(task, Blobs([b.digest for b in found]), [b.data for b in found])
            case Built():
                self._built(body.optimizer, body.variables)
            case Replaced():
                self.closures.close(REPLACED)
            case _:
                pass  # such as a `Beat`, which is a sign of life and no more

    def woken(self) -> None:
        """A worker may have room and closures may wait, after messages or a `schedule`."""
        self._dispatch()

    def tick(self, now: float) -> None:
        """Look after what does not happen."""
        now = self._clock()
        with self.changed:
            for view in self._ready():
                if now - view.seen > self._silence:
                    why = f"it has been silent for {now - view.seen:.0f} s"
                    self._lose(view, why, State.SILENT)
            if self._servers.tick(now):
                self._stop_if_hopeless()
            loads = {v.task: v.load(self._queue.held(v.task), now) for v in self._ready()}
            wanted = recalls(self._queue.waiting, loads)
            pulse = Pulse(
                self._queue.waiting,
                self._queue.running,
                sum(view.finished for view in self.workers.values()),
            )
            self.changed.notify_all()
        for task, count in wanted.items():
            self.workers[task].recalled = now
            self._post(task, Recall(count))
        if not self.closures.is_closed and now - self._told_at > _PULSE_SECONDS:
            self._told_at = now
            for view in self._ready():
                self._post(view.task, pulse)
        self._forget_dropped()
        self._dispatch()

    # --- Closures out ----------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Give closures to all workers that have room, and tell them what is cancelled."""
        now = self._clock()
        given: list[tuple[WorkerView, list[Closure]]] = []
        with self.changed:
            cancelled = self.closures.take_cancelled()
            held = {task: self._queue.held_numbers(task) for task in self.workers if cancelled}
            if not self.closures.is_closed and self._servers.are_well(now):
                given = self._give(now)
            settled = self._queue.settled
        for task, numbers in held.items():
            if own := [number for number in numbers if number in cancelled]:
                self._post(task, Cancel(own))
        for view, closures in given:
            self._send(view, closures, settled)

    def _give(self, now: float) -> list[tuple[WorkerView, list[Closure]]]:
        queue = self._queue
        views = [v for v in self._ready() if now - self._started >= self._delays[v.index]]
        loads = [view.load(queue.held(view.task), now) for view in views]
        was_full = queue.is_full
        given: list[tuple[WorkerView, list[Closure]]] = []
        for view, load, count in zip(views, loads, shares(queue.waiting, loads), strict=True):
            taken = queue.take(view.task, count) if count else []
            if taken:
                given.append((view, taken))
                if not load.held:
                    view.progress = now
        self.closures.is_awaited = not queue.waiting and any(
            queue.held(v.task) <= room(v.mean_seconds) // 2 for v in views
        )
        if was_full and given:
            self.changed.notify_all()
        return given

    def _send(self, view: WorkerView, closures: list[Closure], settled: int) -> None:
        if blobs := view.new_blobs(closures):
            self._post(view.task, Blobs([b.digest for b in blobs]), [b.data for b in blobs])
        for resource in view.new_resources(closures):
            self._post(view.task, Build(resource.number, resource.function.blob.digest))
        frames = [frame for closure in closures for frame in closure.arguments.frames]
        self._post(view.task, Run([closure.work() for closure in closures], settled), frames)

    def _post(self, task: str, body: msgspec.Struct, frames: Sequence[Buffer] = ()) -> None:
        assert self._poster is not None
        self._poster.post(task, body, frames)

    def _forget_dropped(self) -> None:
        dropped: list[int] = []
        while self._dropped:
            dropped.append(self._dropped.popleft())
        for view in self.workers.values() if dropped else ():
            if numbers := view.forget(dropped):
                self._post(view.task, Forget(numbers))

    def _take_outcomes(self, view: WorkerView, message: Outcomes, frames: list[Buffer]) -> None:
        first = 0
        self._clocks(message.clocks)
        with self.changed:
            for outcome in message.outcomes:
                last = first + outcome.frames
                closure = self.closures.ended(view.task, outcome, frames[first:last])
                first = last
                if closure is not None:
                    view.finished_one(closure, outcome.seconds)
            self.changed.notify_all()
        self._wake()  # to look at all workers once for all messages that have arrived

    # --- Workers, with `changed` held ------------------------------------------------------

    def _ready(self) -> list[WorkerView]:
        return [view for view in self.workers.values() if view.state is State.READY]

    def _adopt(self, view: WorkerView) -> None:
        view.becomes(State.ADOPTED, self._clock(), "it has not answered yet")
        own, servers = self._cluster, list(self._cluster.servers)
        adopt = Adopt(own.origin, view.index, len(own.workers), servers, own.replicas)
        self._post(view.task, adopt)

    def _is_ready(self, view: WorkerView, devices: int) -> None:
        with self.changed:
            if view.state is State.ADOPTED:
                view.becomes(State.READY, self._clock())
                view.devices = devices
                self.changed.notify_all()
        self._dispatch()

    def _lose(self, view: WorkerView, why: str, state: State) -> None:
        """Take the closures of a worker back."""
        was_ready = view.state is State.READY
        count = self.closures.lose(view.task)
        view.becomes(state, self._clock(), why)
        if was_ready and not self.closures.is_closed:
            say(f"{view.task} is lost: {why}. {count} closures go to other workers.")

    def _stop_if_hopeless(self) -> None:
        if self.closures.stop_if_hopeless() and not self.closures.is_closed:
            say(str(self._servers.error))
