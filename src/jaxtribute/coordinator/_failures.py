"""What is done about each failure: values in, a decision out.

A closure runs again when a worker, or the way to a parameter server, failed; an error of the
function itself is the user's, and ends what was scheduled.
"""

from __future__ import annotations

import enum
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    TaskUnavailableError,
    UnavailableError,
)
from ._queue import STRIKES

__all__ = [
    "Decision",
    "Failure",
    "Failures",
    "FunctionFailed",
    "InputFailed",
    "Limits",
    "ServerLost",
    "ServerRestarted",
    "WorkerLost",
    "decide",
]

_PATIENT_TIMES = 10

_TASK = re.compile(r"/job:(?P<job>worker|ps|chief)\b|\b(?P<task>worker|ps|chief):\d+\b")


class Decision(enum.Enum):
    """What to do about a failure."""

    RETRY = "run the closure again, on any worker"
    RETRY_ALONE = "run the closure again, blaming it if that worker is lost too"
    GIVE_UP = "report that the closure was lost too often"
    RAISE = "raise the error at the next schedule, join or done, and cancel the rest"
    WAIT_AND_RESTORE = "pause, and restore the server when it is back"
    STOP = "raise at every schedule, join and done from now on"


@dataclass(frozen=True)
class WorkerLost:
    """A worker was lost that had a closure; how often that happened to the closure."""

    times: int


@dataclass(frozen=True)
class ServerLost:
    """A closure could not reach a parameter server.

    Args:
      times: how often that was so for that server.
      can_restore: whether the server is waited for if it is gone.
      times_of_closure: how often it was so for that closure, which then waited a while each time.
    """

    times: int
    can_restore: bool = False
    times_of_closure: int = 1


@dataclass(frozen=True)
class ServerRestarted:
    """A parameter server is gone for good, or back without its variables."""

    can_restore: bool = False


@dataclass(frozen=True)
class InputFailed:
    """Something that the closure was to be given could not be made on the worker."""

    error: BaseException


@dataclass(frozen=True)
class FunctionFailed:
    """A function raised an error; and how often one of that kind was overlooked already."""

    error: BaseException
    times: int = 0


Failure = WorkerLost | ServerLost | ServerRestarted | InputFailed | FunctionFailed


@dataclass(frozen=True)
class Limits:
    """How often failures that may pass are overlooked."""

    server_failures: int = 3
    timeouts: int = 0

    @classmethod
    def of(cls, workers: int, environment: Mapping[str, str] = os.environ) -> Limits:
        """Read them from the environment.

        Raises:
          ValueError: when a variable holds something else than a number.
        """
        return cls(
            _number(environment, "IGNORE_TRANSIENT_PS_FAILURES", 3),
            _number(environment, "IGNORE_TRANSIENT_TIMEOUTS", workers // 10),
        )


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    for variable in (f"JAXTRIBUTE_{name}", f"TF_COORDINATOR_{name}"):
        text = environment.get(variable)
        if text is not None:
            try:
                return int(text)
            except ValueError:
                raise ValueError(f"{variable} must be a whole number, got {text!r}.") from None
    return default


def decide(failure: Failure, limits: Limits) -> Decision:
    """Return what to do about a failure."""
    match failure:
        case WorkerLost(times):
            return Decision.GIVE_UP if times >= STRIKES else Decision.RETRY_ALONE
        case ServerRestarted(can_restore):
            return Decision.WAIT_AND_RESTORE if can_restore else Decision.STOP
        case ServerLost(_, True, times):
            # Others reach the server, or it would be known to be gone.
            return Decision.WAIT_AND_RESTORE if times < _PATIENT_TIMES else Decision.RAISE
        case ServerLost(times):
            return Decision.RETRY if times < limits.server_failures else Decision.RAISE
        case InputFailed():
            return Decision.RAISE
        case FunctionFailed(error, times):
            return _decide_on_error(error, times, limits)


def _decide_on_error(error: BaseException, times: int, limits: Limits) -> Decision:
    jobs = _jobs_in(error)
    if isinstance(error, DeadlineExceededError):
        return Decision.RETRY if times < limits.timeouts else Decision.RAISE
    if isinstance(error, CancelledError) and jobs:  # another failure is behind it
        return Decision.RETRY_ALONE
    if isinstance(error, (UnavailableError, AbortedError)) and jobs == {"worker"}:
        return Decision.RETRY_ALONE
    return Decision.RAISE


def _jobs_in(error: BaseException) -> set[str]:
    """Return the jobs of the tasks that an error names."""
    if isinstance(error, TaskUnavailableError):
        return {error.task.partition(":")[0]}
    return {match["job"] or match["task"] for match in _TASK.finditer(str(error))}


class Failures:
    """Counts the failures of one coordinator, to decide on the next."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._of_server: Counter[str] = Counter()
        self._timeouts = 0

    def server_lost(self, task: str, can_restore: bool, times_of_closure: int) -> Decision:
        """Decide on a closure that could not reach a server."""
        self._of_server[task] += 1
        failure = ServerLost(self._of_server[task], can_restore, times_of_closure)
        return decide(failure, self._limits)

    def function_failed(self, error: BaseException) -> Decision:
        """Decide on an error that a function raised."""
        decision = decide(FunctionFailed(error, self._timeouts), self._limits)
        if isinstance(error, DeadlineExceededError):
            self._timeouts += 1
        return decision
