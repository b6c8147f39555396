"""The exceptions jaxtribute raises.

Each carries the name of its TensorFlow counterpart and is also an instance of the nearest
built-in exception, so that `except ValueError` and `except jt.errors.InvalidArgumentError`
both catch what they should:

    JaxtributeError
    ├── InvalidArgumentError      (ValueError)
    ├── OutOfRangeError           (IndexError)
    ├── NotFoundError             (LookupError)
    ├── AlreadyExistsError        (ValueError)
    ├── FailedPreconditionError   (RuntimeError)
    │   └── TracerLeakError
    ├── AbortedError              (RuntimeError)
    ├── CancelledError            (RuntimeError)
    ├── InternalError             (RuntimeError)
    ├── UnknownError              (RuntimeError)
    ├── DataLossError             (OSError)
    ├── ResourceExhaustedError    (MemoryError)
    ├── UnimplementedError        (NotImplementedError)
    ├── DeadlineExceededError     (TimeoutError)
    ├── UnavailableError          (ConnectionError)
    │   ├── WorkerLostError
    │   └── TaskUnavailableError
    │       └── PSUnavailableError
    ├── ClosureInputError         (RuntimeError)
    ├── ClosureAbortedError       (RuntimeError)
    ├── PermissionDeniedError     (PermissionError)
    └── UnauthenticatedError      (PermissionError)
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "CancelledError",
    "ClosureAbortedError",
    "ClosureInputError",
    "DataLossError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "InternalError",
    "InvalidArgumentError",
    "JaxtributeError",
    "NotFoundError",
    "OutOfRangeError",
    "PSUnavailableError",
    "PermissionDeniedError",
    "ResourceExhaustedError",
    "TaskUnavailableError",
    "TracerLeakError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnknownError",
    "WorkerLostError",
]


class JaxtributeError(Exception):
    """Base of every exception that is jaxtribute's own.

    >>> issubclass(jt.errors.DeadlineExceededError, (jt.errors.JaxtributeError, TimeoutError))
    True
    """


class InvalidArgumentError(JaxtributeError, ValueError):
    """An argument cannot work, whatever the state of the system."""


class OutOfRangeError(JaxtributeError, IndexError):
    """An operation went past the end, such as reading beyond the last element."""


class NotFoundError(JaxtributeError, LookupError):
    """Something that was named does not exist."""


class AlreadyExistsError(JaxtributeError, ValueError):
    """Something that was to be created exists already."""


class FailedPreconditionError(JaxtributeError, RuntimeError):
    """The system is not in the state the operation needs."""


class TracerLeakError(FailedPreconditionError):
    """A value that exists only while JAX traces was about to be kept for longer."""

    @classmethod
    def kept(cls, what: str) -> TracerLeakError:
        """Return the error for `what` being given a tracer of a trace that is over."""
        return cls(
            f"{what} was given a tracer that was kept after the function that made it had been "
            "traced. Return the value from that function instead of storing it on the side."
        )


class AbortedError(JaxtributeError, RuntimeError):
    """The operation was given up, typically because a peer was lost."""


class CancelledError(JaxtributeError, RuntimeError):
    """The operation was cancelled before it finished."""


class InternalError(JaxtributeError, RuntimeError):
    """An invariant of jaxtribute does not hold; please report it."""


class UnknownError(JaxtributeError, RuntimeError):
    """A failure of which nothing more is known."""


class DataLossError(JaxtributeError, OSError):
    """Stored data is lost or damaged beyond repair."""


class ResourceExhaustedError(JaxtributeError, MemoryError):
    """Memory, disk or a quota ran out."""


class UnimplementedError(JaxtributeError, NotImplementedError):
    """The operation has no meaning for this kind of value or strategy."""


class DeadlineExceededError(JaxtributeError, TimeoutError):
    """A time limit passed before the operation finished."""


class UnavailableError(JaxtributeError, ConnectionError):
    """A task cannot be reached at the moment."""


class WorkerLostError(UnavailableError):
    """A worker ended, or stopped answering, while others still needed it.

    >>> jt.errors.WorkerLostError(["worker:1"], "it has finished").tasks
    ('worker:1',)

    Args:
      tasks: the names of the workers that were lost.
      why: what is known of it.
    """

    def __init__(self, tasks: Sequence[str], why: str) -> None:
        super().__init__(tuple(tasks), why)  # positional, so that it pickles
        self.tasks = tuple(tasks)
        self.why = why

    def __str__(self) -> str:
        return (
            f"Lost {', '.join(self.tasks)}: {self.why}. Workers that train together cannot go on "
            "without each other: start all of them again, from the last checkpoint, as "
            "`jaxtribute launch --max-restarts` does."
        )


class TaskUnavailableError(UnavailableError):
    """A task of a parameter-server cluster cannot be reached, or has lost what it held.

    >>> jt.errors.TaskUnavailableError("worker:1", "it has been silent for 10 s").task
    'worker:1'

    Args:
      task: the name of the task.
      why: what is known of it.
    """

    def __init__(self, task: str, why: str) -> None:
        super().__init__(task, why)  # positional, so that it pickles
        self.task = task
        self.why = why

    def __str__(self) -> str:
        return f"{self.task} is not available: {self.why}."


class PSUnavailableError(TaskUnavailableError):
    """A parameter server cannot be reached, or was restarted and has lost its variables."""

    def __str__(self) -> str:
        return (
            f"The parameter server {self.task} is not available: {self.why}. Its variables are "
            "needed by every step. Start the coordinator again, to restore from its last "
            "checkpoint, or give ClusterCoordinator a RestorePolicy, with which training goes on "
            "by itself."
        )


class ClosureInputError(JaxtributeError, RuntimeError):
    """What a scheduled function was to be given could not be made on the worker."""


class ClosureAbortedError(JaxtributeError, RuntimeError):
    """A scheduled function was given up, as each worker that ran it was lost."""


class PermissionDeniedError(JaxtributeError, PermissionError):
    """The caller is known and may not do this."""


class UnauthenticatedError(JaxtributeError, PermissionError):
    """The caller did not prove who it is."""
