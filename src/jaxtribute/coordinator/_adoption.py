"""What a worker has of the coordinator it works for, and how it runs one closure.

Functions and big constants are loaded once. Resources, such as the iterator of a dataset, are made
when a closure first needs them; one that could not be made is tried again for the next closure.
All of it belongs to one life of a coordinator, and goes with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InternalError, PSUnavailableError
from ..remote import Session
from ..rpc import Buffer, ClusterKey
from ..rpc._wire import checked_frames
from ..strategies import ParameterServerStrategy
from ._blobs import BlobStore
from ._current_worker import running_on
from ._messages import Adopt, Outcome, Work
from ._packing import load_arguments, load_function, pack_error, pack_result

__all__ = ["Adoption", "Job", "Stopped"]

BLOB_BYTES = 1 << 30
"""How much of functions and big constants a worker keeps, beyond what it needs next."""


@dataclass(frozen=True, eq=False)
class Job:
    """A closure that a worker was given."""

    work: Work
    frames: Sequence[Buffer]
    settled: int

    @property
    def digests(self) -> list[str]:
        """The blobs it cannot run without."""
        return [self.work.function, *self.work.constants]


class Stopped(BaseException):
    """The process is told to end while a closure runs."""


class _InputFailed(BaseException):
    """A resource could not be made; no code of users may take it for an error of theirs."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Adoption:
    """What a worker has of one coordinator.

    Messages come in one thread, and closures run in another; the session is only used by the
    latter.

    Args:
      task: the name of the worker.
      message: how the coordinator began.
      key: the secret of the cluster.
      encryption: whether connections to parameter servers are encrypted.
      blob_bytes: how much of functions and constants to keep.
    """

    def __init__(
        self,
        task: str,
        message: Adopt,
        key: ClusterKey,
        *,
        encryption: bool = True,
        blob_bytes: int = BLOB_BYTES,
    ) -> None:
        self.origin = message.origin
        self.is_open = False
        self.task = task
        self._message = message
        self._key = key
        self._encryption = encryption
        self._session: Session | None = None
        self._lock = threading.Lock()
        self._blobs = BlobStore(blob_bytes)
        self._functions: dict[str, Callable[..., Any]] = {}
        self._builders: dict[int, str] = {}
        self._resources: dict[int, Any] = {}

    # --- From the thread of messages -------------------------------------------------------

    def add_blobs(self, digests: Sequence[str], frames: Sequence[Buffer]) -> None:
        """Keep functions and constants."""
        for digest, frame in zip(digests, frames, strict=True):
            self._drop(self._blobs.add(digest, frame))

    def add_builder(self, resource: int, function: str) -> None:
        """Learn how to make a resource; one that was made already is made again."""
        with self._lock:
            self._builders[resource] = function
            self._resources.pop(resource, None)

    def forget(self, resources: Sequence[int]) -> None:
        """Drop resources."""
        with self._lock:
            for resource in resources:
                self._builders.pop(resource, None)
                self._resources.pop(resource, None)

    def expect(self, job: Job) -> None:
        """Keep what a closure needs until `done_with` it."""
        self._blobs.pin(job.digests)

    def done_with(self, job: Job) -> None:
        """Keep what a closure needed only as long as there is room."""
        self._drop(self._blobs.unpin(job.digests))

    def missing(self, job: Job) -> list[str]:
        """Return which blobs a closure still lacks."""
        return self._blobs.missing(job.digests)

    def _drop(self, digests: Sequence[str]) -> None:
        for digest in digests:
            self._functions.pop(digest, None)

    # --- In the thread of closures ---------------------------------------------------------

    def open(self) -> Session:
        """Make the session and the strategy of this worker, unless they are there."""
        if self._session is None:
            self.is_open = True  # or has been tried; each closure tries again
            message = self._message
            session = Session(
                self.task, message.servers, self._key, self.origin, encryption=self._encryption
            )
            session.strategy = ParameterServerStrategy.on_worker(
                session, message.worker, message.workers, message.replicas
            )
            self._session = session
        return self._session

    def close(self) -> None:
        """Give up what is held elsewhere."""
        self._functions.clear()
        with self._lock:
            self._resources.clear()
        if self._session is not None:
            self._session.close()
            self._session = None

    @property
    def clocks(self) -> list[int]:
        """How many updates each parameter server has had, as far as it is known here."""
        return [] if self._session is None else list(self._session.clocks)

    def run(self, job: Job) -> tuple[Outcome, list[Buffer]]:
        """Run a closure, and return what became of it.

        Raises:
          Stopped: when the process is told to end meanwhile.
        """
        began = time.perf_counter()
        try:
            status, frames = "done", self._result(job)
        except Stopped:
            raise
        except _InputFailed as failure:
            status, frames = "input_failed", pack_error(failure.error, self.task)
        except PSUnavailableError as error:
            status, frames = "server_lost", pack_error(error, self.task)
        except BaseException as error:  # also an exit: functions do not end the worker
            status, frames = "failed", pack_error(error, self.task)
        seconds = time.perf_counter() - began
        return Outcome(job.work.number, status, seconds, len(frames)), frames

    def _result(self, job: Job) -> list[Buffer]:
        session = self.open()
        work = job.work
        with session.entered(), running_on(self._message.worker):
            function = self._function(work.function)
            args, kwargs = load_arguments(job.frames, self._blobs, self._resource, self._functions)
            # The result is packed inside, so that one which cannot be sent has updated nothing.
            with session.strategy.scope(), session.closure(work.number, job.settled, work.epoch):
                result = function(*args, **kwargs)
                return [*checked_frames(pack_result(result))] if work.wants_result else []

    def _function(self, digest: str) -> Callable[..., Any]:
        if (known := self._functions.get(digest)) is not None:
            return known
        data = self._blobs[digest]
        function = load_function(data, self._blobs, self._resource, self._functions)
        self._functions[digest] = function
        return function

    def _resource(self, number: int) -> Any:
        with self._lock:
            if number in self._resources:
                return self._resources[number]
            digest = self._builders.get(number)
        if digest is None:
            raise InternalError(f"A closure refers to resource {number}, which nobody described.")
        try:
            made = self._function(digest)()
        except (Stopped, _InputFailed, PSUnavailableError):
            raise
        except BaseException as error:
            raise _InputFailed(error) from error
        with self._lock:
            self._resources[number] = made
        return made
