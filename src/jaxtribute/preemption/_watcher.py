"""`PreemptionWatcher`: tells whether a machine is about to be taken away."""

from __future__ import annotations

import itertools

from .._group import ALONE, Group
from ..errors import AbortedError, WorkerLostError
from ..workers import current_world
from ._termination import Termination

__all__ = ["PreemptionWatcher"]

_numbers = itertools.count()


class PreemptionWatcher:
    """Tells whether one of the workers was asked to end, for programs that save by themselves.

    >>> watcher = jt.experimental.PreemptionWatcher()
    >>> print(watcher.preemption_message)
    None
    >>> watcher.close()

    All workers create it at the same time, after the strategy. They do not learn of it in the same
    step; a `PreemptionCheckpointHandler` has them agree on one.

    Raises:
      FailedPreconditionError: in another thread than the main one.
    """

    def __init__(self) -> None:
        self._group: Group = current_world() or ALONE
        number = self._group.agree("look out for preemption", str(next(_numbers)))[0]
        self._about = f"preemption seen by {number}"
        self._preempted: int | None = None
        self._group.hear(self._about, self._heard)
        self._termination = Termination()

    @property
    def preemption_message(self) -> str | None:
        """Which worker was asked to end; None as long as none was."""
        if self._preempted is None and self._termination.is_asked:
            self._preempted = self._group.index
            self._group.tell(self._about)
        if self._preempted is None:
            return None
        return f"{self._group.tasks[self._preempted]} was asked to end by SIGTERM"

    def block_until_worker_exit(self) -> None:
        """Wait until the worker that was asked to end has ended; return at once if none was.

        On a worker that was asked itself it returns at once.
        """
        if self.preemption_message is None or self._termination.is_asked:
            return
        try:
            self._group.exchange(f"{self._about}, the end", "")  # to which that one says nothing
        except (WorkerLostError, AbortedError):  # it has ended, or all are about to
            return

    def close(self) -> None:
        """Stop watching: SIGTERM does again what it did before."""
        self._termination.close()

    def _heard(self, worker: int) -> None:
        if self._preempted is None:
            self._preempted = worker
