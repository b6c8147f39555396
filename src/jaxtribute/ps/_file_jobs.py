"""Files that a parameter server writes and reads for checkpoints, while it answers requests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .._array_files import DamagedArray
from ..errors import FailedPreconditionError
from ._messages import Files


class FileJobs:
    """The last job; one before it that nobody waits for any more may still be under way."""

    def __init__(self) -> None:
        self._job: _Job | None = None
        self._threads: list[threading.Thread] = []  # not jobs, whose results may be large

    def begin(self, name: str, work: Callable[[], Any]) -> None:
        """Begin something, unless it was begun already, as requests may come twice."""
        if self._job is None or self._job.name != name:
            self._job = _Job(name, work)
            self._threads = [t for t in self._threads if t.is_alive()] + [self._job.thread]

    def ask(self, name: str) -> Files:
        """Tell how far it is."""
        job = self._named(name)
        return Files(False, None) if job.thread.is_alive() else job.outcome

    def result(self, name: str) -> Any:
        """Return what came out of one that is done.

        Raises:
          FailedPreconditionError: when it is not done, or failed.
        """
        job = self._named(name)
        if job.thread.is_alive() or job.outcome.failure is not None:
            raise FailedPreconditionError(f"The job {name!r} is not done, or has failed.")
        return job.result

    def forget(self) -> None:
        """Let go of the result of the last one."""
        self._job = None

    def close(self) -> None:
        """Wait for what is under way."""
        for thread in self._threads:
            thread.join()

    def _named(self, name: str) -> _Job:
        if self._job is None or self._job.name != name:
            raise FailedPreconditionError(
                f"This parameter server knows nothing of the job {name!r}: it was started again "
                "meanwhile, or another job has taken its place."
            )
        return self._job


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
