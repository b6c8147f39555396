"""Restores parameter servers that were started again, beside everything else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..errors import PSUnavailableError
from ..remote import CoordinatorSession

__all__ = ["Restorer"]


class Restorer:
    """Restores parameter servers in threads of its own, as that takes a while.

    Args:
      session: the coordinator's way to the servers, which waits for them from now on.
      directory: where their snapshots are.
      every_seconds: how often they write one.
      wait_seconds: for how long one may be gone.
    """

    def __init__(
        self,
        session: CoordinatorSession,
        directory: str,
        every_seconds: float,
        wait_seconds: float,
    ) -> None:
        self._session = session
        self._directory = directory
        self._every_seconds = every_seconds
        self._wait_seconds = wait_seconds
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closing = False
        self.report: Callable[[str, int, str], None] = lambda task, lost, error: None
        session.restore_seconds = wait_seconds

    def begin(self, task: str) -> None:
        """Restore a server, and report how many updates are lost or why it cannot be restored."""
        thread = threading.Thread(
            target=self._restore, args=(task,), name=f"restoring {task}", daemon=True
        )
        self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()

    def _restore(self, task: str) -> None:
        index = int(task.partition(":")[2])
        began = time.monotonic()
        while True:
            try:
                with self._lock:
                    lost = self._session.recover_server(index, self._directory, self._every_seconds)
            except PSUnavailableError as error:  # it may be lost again before it is restored
                if self._closing or time.monotonic() - began > self._wait_seconds:
                    self._give_up(task, error)
                    return
            except Exception as error:  # any one ends the waiting of those who need the server
                self._give_up(task, error)
                return
            else:
                self.report(task, lost, "")
                return

    def _give_up(self, task: str, error: Exception) -> None:
        self._session.restore_seconds = None
        self.report(task, 0, f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Restore nothing any more."""
        self._closing = True
        self._session.restore_seconds = None
        for thread in self._threads:
            thread.join()
