"""The closures of one coordinator: scheduled by the user's threads, settled by another.

`Closures` sends nothing. The thread of the connections tells it what becomes of closures, and asks
it which workers have to be told that closures are cancelled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ..errors import (
    ClosureAbortedError,
    ClosureInputError,
    FailedPreconditionError,
    PSUnavailableError,
)
from ._closure import Closure
from ._failures import Decision, Failures
from ._messages import Outcome
from ._packing import Packed, PackedFunction
from ._queue import STRIKES, ClosureQueue, Lost
from ._remote_value import RemoteValue, Results
from ._results import load_error
from ._servers import Servers
from ._waiting import wait_until

if TYPE_CHECKING:
    from ..rpc import Buffer

__all__ = ["REPLACED", "Closures", "Epochs"]

REPLACED = "another coordinator has taken over the workers. Only one may use a cluster at a time."
_CLOSED = "The coordinator was closed. Make a new strategy and a new ClusterCoordinator."
_CANCELLED = "The function was not run: another scheduled function had raised an error before."


class Epochs(Protocol):
    """Counts the events after which workers have to read values anew."""

    @property
    def epoch(self) -> int: ...
    def bump_epoch(self) -> None: ...


class Closures:
    """What was scheduled, and how it ended. Everything below the first part needs `changed` held.

    Args:
      queue: those that are not over.
      epochs: counts joins and fetches.
      servers: the parameter servers, without which nothing goes on.
      failures: decides about errors.
      result_bytes: how many bytes of results may wait to be fetched.
      describe: says in words what a wait for closures waits for.
      clock: tells the time.
    """

    def __init__(
        self,
        queue: ClosureQueue[Closure],
        epochs: Epochs,
        servers: Servers,
        failures: Failures,
        result_bytes: int,
        describe: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self.changed = threading.Condition(threading.Lock())
        self.queue = queue
        self.is_closed = False
        self._why_closed = _CLOSED
        self.is_awaited = True  # whether a worker has room, and the dispatcher wants to know
        self._epochs = epochs
        self._servers = servers
        self._failures = failures
        self._describe = describe
        self._clock = clock
        self._results = Results(self.changed, describe, epochs.bump_epoch, result_bytes)
        self._failed = ""  # the name of the function that the error in the queue is of
        self._joining = 0
        self._to_cancel: set[int] = set()

    # --- For the user's threads ------------------------------------------------------------

    def schedule(self, function: PackedFunction, arguments: Packed) -> tuple[RemoteValue, bool]:
        """Have a function called on a worker; tell also whether the dispatcher has to be woken.

        Raises:
          Exception: the first error of a function that was scheduled before, if there was one.
        """
        value = RemoteValue(self._results)
        closure = Closure(function, arguments, self._epochs.epoch, value)
        with self.changed:
            self._raise_error(instead_of=function.name)
            while self._joining or self.queue.is_full:
                wait_until(
                    self.changed,
                    lambda: not (self._joining or self.queue.is_full) or self._has_error,
                    self._describe_schedule,
                )
                self._raise_error(instead_of=function.name)
            self.queue.put(closure)
            was_awaited, self.is_awaited = self.is_awaited, False
        return value, was_awaited

    def join(self) -> None:
        """Wait until all closures are settled.

        Raises:
          Exception: the first error of a function, if there was one.
        """
        with self.changed:
            self._joining += 1
            try:
                wait_until(
                    self.changed, lambda: self.queue.is_empty or self._has_error, self._describe
                )
                self._raise_error()
            finally:
                self._joining -= 1
                self.changed.notify_all()
                self._epochs.bump_epoch()

    def wait_for_fewer(self, most: int) -> int:
        """Wait until fewer closures than so many are not settled, and return how many are not.

        Raises:
          Exception: the first error of a function, if there was one.
        """
        with self.changed:
            wait_until(
                self.changed,
                lambda: self.queue.waiting + self.queue.running < most or self._has_error,
                self._describe,
            )
            self._raise_error()
            return self.queue.waiting + self.queue.running

    def done(self) -> bool:
        """Tell whether all closures are settled.

        Raises:
          Exception: the first error of a function, if there was one.
        """
        with self.changed:
            self._raise_error()
            is_done = self.queue.is_empty
        if is_done:
            self._epochs.bump_epoch()
        return is_done

    def close(self, why: str = _CLOSED) -> None:
        """Give up what has not run."""
        with self.changed:
            if not self.is_closed:
                self.is_closed, self._why_closed = True, why
            why = f"The function had not run before: {self._why_closed}"
            self._cancel(self.queue.fail(FailedPreconditionError("closed")), why)
            self._cancel(self.queue.drop_running(), why)
            self.changed.notify_all()

    @property
    def _has_error(self) -> bool:
        return self.is_closed or self.queue.error is not None or self._servers.error is not None

    def _raise_error(self, instead_of: str | None = None) -> None:
        """Raise what went wrong, once what runs is over.

        Args:
          instead_of: the function that was to be scheduled, which the error is not of.
        """
        if not self._has_error:
            return
        if not self.is_closed and self._servers.error is None:
            wait_until(
                self.changed,
                lambda: self.queue.is_empty or self.is_closed or self._servers.error is not None,
                self._describe,
            )
        if self.is_closed:
            raise FailedPreconditionError(self._why_closed)
        error = self.queue.raise_error()
        if error is not None and instead_of is not None:
            error.add_note(
                f"This is the error of {self._failed!r}, which was scheduled before. `schedule` "
                f"raised it, once, and did not schedule {instead_of!r}; what had not run is "
                "cancelled. Call `join` after such an error to have it raised there."
            )
        error = self._servers.error or error  # another thread may have taken it meanwhile
        if error is not None:
            self.changed.notify_all()
            raise error.with_traceback(None)

    def _describe_schedule(self) -> str:
        if self._joining:
            return f"a join in another thread, which waits for {self._describe()}"
        return f"room in the queue; {self._describe()}"

    # --- What becomes of them --------------------------------------------------------------

    def ended(self, worker: str, outcome: Outcome, frames: list[Buffer]) -> Closure | None:
        """Take what became of a closure; return it if it has run and was not over before."""
        number, status = outcome.number, outcome.status
        if status == "done":
            closure = self.queue.settle(worker, number)
            value = None if closure is None else closure.value
            if value is not None:
                value.finish(frames)
            return closure
        closure = self.queue.get(number)
        if closure is None:
            self.queue.settle(worker, number)  # another worker was faster
        elif status not in ("cancelled", "returned"):
            self._take_error(worker, closure, status, load_error(frames))
            return closure
        else:
            self._take_back(self.queue.give_back(worker, number))
        return None

    def lose(self, worker: str) -> int:
        """Take the closures of a worker back, and return how many others will run."""
        lost = self.queue.lose(worker)
        self._take_back(lost)
        return len(lost.put_back)

    def stop_if_hopeless(self) -> bool:
        """Cancel everything if a parameter server is lost for good."""
        error = self._servers.error
        if error is not None and not self.is_closed:
            self._cancel_all(error)
        return error is not None

    def take_cancelled(self) -> set[int]:
        """Return the closures that workers are not to begin, and have not been told of."""
        numbers, self._to_cancel = self._to_cancel, set()
        return numbers

    def _take_error(self, worker: str, closure: Closure, status: str, error: Exception) -> None:
        decision = Decision.RAISE
        if status == "server_lost":
            task = error.task if isinstance(error, PSUnavailableError) else "ps"
            closure.servers_lost += 1
            times = closure.servers_lost
            decision = self._failures.server_lost(task, self._servers.can_restore, times)
            if decision is Decision.WAIT_AND_RESTORE:
                self._servers.suspect(task, self._clock())
        elif status == "failed":
            decision = self._failures.function_failed(error)
        else:
            error = _input_error(closure, error)
        if decision is Decision.RETRY_ALONE:
            closure.lost_on.append(worker)
            decision = Decision.RAISE if len(closure.lost_on) >= STRIKES else Decision.RETRY
        if decision is Decision.RAISE:
            self.queue.settle(worker, closure.number)
            self._fail(closure, error)
        else:
            self._take_back(self.queue.give_back(worker, closure.number))

    def _take_back(self, lost: Lost[Closure]) -> None:
        self._cancel(lost.cancelled, _CANCELLED)
        for closure in lost.given_up:
            error = ClosureAbortedError(
                f"The function {closure.function.name!r} was given up: {STRIKES} workers were lost "
                f"that had it ({', '.join(closure.lost_on)}). Look in their output for what ended "
                "them; running out of memory is a common cause."
            )
            self._fail(closure, error)

    def _fail(self, closure: Closure, error: BaseException) -> None:
        """Have an error raised, and cancel everything else."""
        value = closure.value
        if value is not None:
            value.fail(error)
        # The error that cancelled a closure may have been raised before the closure has ended.
        if self.queue.error is None and not closure.cancelled:
            self._failed = closure.function.name
            self._cancel_all(error)

    def _cancel_all(self, error: BaseException) -> None:
        self._cancel(self.queue.fail(error), _CANCELLED)
        self._to_cancel.update(closure.number for closure in self.queue.all_running())

    def _cancel(self, closures: Sequence[Closure], why: str) -> None:
        for closure in closures:
            value = closure.value
            if value is not None:
                value.cancel(why)


def _input_error(closure: Closure, error: BaseException) -> ClosureInputError:
    made = ClosureInputError(
        f"The function {closure.function.name!r} was not run, as something that it was to be given "
        f"could not be made on the worker: {type(error).__name__}: {error}"
    )
    made.__cause__ = error
    return made
