"""After which call all workers stop."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from .._group import Group

__all__ = ["Agreement"]


class Agreement:
    """Has all workers stop after the same number of calls, soon after one of them asks for it.

    They are in different calls at that moment, and one that is ahead may wait inside of its call
    for the others. So whoever hears of it goes on to the end of its call, and passes that only once
    it knows which call is the last: the latest that any of them was in. Threads tell each other
    where they are, and wait for no call. Until somebody asks, nothing is sent.

    Args:
      group: the workers.
      about: a name for it, the same on all workers and of no other agreement.
    """

    def __init__(self, group: Group, about: str) -> None:
        self._group = group
        self._about = about
        self._lock = threading.Lock()
        self._passed = 0
        self._last: Future[int] | None = None
        group.hear(about, self._heard)

    def ask(self) -> None:
        """Have all workers stop; not before the end of the call that this one is in."""
        if self._begin():
            self._group.tell(self._about)

    def _heard(self, worker: int) -> None:
        self._begin()

    def _begin(self) -> bool:
        with self._lock:
            if self._last is not None:
                return False
            last = self._last = Future[int]()
            own = self._passed + 1
        if len(self._group.tasks) == 1:
            last.set_result(own)
        else:
            threading.Thread(
                target=self._find_out, args=(last, own), name="jaxtribute-preemption", daemon=True
            ).start()
        return True

    def pass_call(self) -> bool:
        """Count a call that has ended, and tell whether all workers stop after it.

        Raises:
          WorkerLostError: when a worker is lost before it has said where it is.
        """
        with self._lock:
            last = self._last
            if last is None:
                self._passed += 1
                return False
        number = last.result()
        self._passed += 1
        return self._passed == number

    def _find_out(self, last: Future[int], own: int) -> None:
        try:
            last.set_result(max(map(int, self._group.exchange(self._about, str(own)))))
        except Exception as error:
            last.set_exception(error)
