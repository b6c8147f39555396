"""Files that a parameter server writes and reads for checkpoints, while it answers requests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .._array_files import DamagedArray
from ..errors import FailedPreconditionError
from ._messages import Files

_REMEMBERED = 64  # jobs that are done, whose coordinator may not have asked yet


class FileJobs:
    """What is under way, for whichever coordinator, and what has become of it.

    A job outlives the time of its coordinator: one that has been replaced may still complete the
    checkpoint it was saving.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        self._threads: list[threading.Thread] = []  # not jobs, whose results may be large

    def begin(self, name: str, work: Callable[[], Any]) -> None:
        """Begin something, unless it was begun already, as requests may come twice."""
        if name in self._jobs:
            return
        done = [known for known, job in self._jobs.items() if not job.thread.is_alive()]
        for known in done[:-_REMEMBERED]:
            del self._jobs[known]
        job = self._jobs[name] = _Job(name, work)
        self._threads = [t for t in self._threads if t.is_alive()] + [job.thread]

    def ask(self, name: str) -> Files:
        """Tell how far it is; it is lost if this process was not the one to begin it."""
        job = self._jobs.get(name)
        if job is None:
            return Files(True, "it knows nothing of this job", is_lost=True)
        return Files(False, None) if job.thread.is_alive() else job.outcome

    def result(self, name: str) -> Any:
        """Return what came out of one that is done.

        Raises:
          FailedPreconditionError: when it is not done, or failed.
        """
        job = self._jobs.get(name)
        if job is None or job.thread.is_alive() or job.outcome.failure is not None:
            raise FailedPreconditionError(f"The job {name!r} is not done, or has failed.")
        return job.result

    def forget(self, name: str) -> None:
        """Let go of one, and of its result."""
        self._jobs.pop(name, None)

    def close(self) -> None:
        """Wait for what is under way."""
        for thread in self._threads:
            thread.join()


class _Job:
    def __init__(self, name: str, work: Callable[[], Any]) -> None:
        self.name = name
        self.result: Any = None
        self.outcome = Files(True, None)
        # Only the thread has the work, and with it values that are written: they go when it ends.
        self.thread = threading.Thread(
            target=self._run, args=(work,), name=f"files of {name}", daemon=True
        )
        self.thread.start()

    def _run(self, work: Callable[[], Any]) -> None:
        # A failure is kept as text: the exception itself would keep the values that were written.
        try:
            self.result = work()
        except DamagedArray as error:
            self.outcome = Files(True, str(error), is_damage=True)
        except Exception as error:  # told to whoever asks
            self.outcome = Files(True, f"{type(error).__name__}: {error}")
