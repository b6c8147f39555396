"""Files that a parameter server writes and reads for checkpoints, while it answers requests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .._array_files import DamagedArray
from ..errors import FailedPreconditionError
from ._messages import Files


class FileJobs:
    """The job that is under way, or was the last; there is one at a time."""

    def __init__(self) -> None:
        self._job: _Job | None = None

    def begin(self, name: str, work: Callable[[], Any]) -> None:
        """Begin something, unless it was begun already, as requests may come twice."""
        if self._job is None or self._job.name != name:
            self._job = _Job(name, work)

    def ask(self, name: str) -> Files:
        """Tell how far it is."""
        job = self._named(name)
        if job.is_running:
            return Files(False, None)
        error = job.error
        if error is None:
            return Files(True, None)
        if isinstance(error, DamagedArray):
            return Files(True, str(error), is_damage=True)
        return Files(True, f"{type(error).__name__}: {error}")

    def result(self, name: str) -> Any:
        """Return what came out of one that is done.

        Raises:
          FailedPreconditionError: when it is not done, or failed.
        """
        job = self._named(name)
        if job.is_running or job.error is not None:
            raise FailedPreconditionError(f"The job {name!r} is not done, or has failed.")
        return job.result

    def forget(self) -> None:
        """Let go of the result of the last one."""
        self._job = None

    def close(self) -> None:
        """Wait for the one that is under way."""
        if self._job is not None:
            self._job.wait()

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
        self.error: Exception | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, name=f"files of {name}", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            self.result = self._work()
        except Exception as error:  # told to whoever asks
            self.error = error
