"""The end of a job with an evaluator: it evaluates the last checkpoint, and all is done."""

from __future__ import annotations

import signal
import socket
import time

from ._children import Child
from ._display import Display
from ._evaluator import EvaluatorTask
from ._failures import exit_status, exit_text
from ._job import Job
from ._local_cluster import EVALUATOR
from ._progress import JobProgress
from ._supervisor import Supervisor

__all__ = ["finish_evaluation"]


def finish_evaluation(
    evaluator: EvaluatorTask,
    status: int,
    job: Job,
    display: Display,
    progress: JobProgress,
    signals: socket.socket,
    reports: socket.socket,
) -> int:
    """Wait for the evaluator of a job whose training is over, and return the job's exit code.

    An evaluation takes as long as it takes. After a failure, or when the launcher was asked to end,
    it has the time that all tasks have.

    Args:
      evaluator: the evaluator.
      status: the exit code of training, which comes first.
      job: what the launcher was asked to do.
      display: where its output goes.
      progress: told of its reports.
      signals: a socket that yields the number of each signal to the launcher.
      reports: the socket on which it tells what it does.
    """
    child = evaluator.tell_training_ended()
    if child is not None:
        display.say(f"waiting for {EVALUATOR} to evaluate the last checkpoint")
        limit = None if status == 0 else job.grace_seconds
        last = _LastEvaluation(child, display, progress, signals, reports, job.grace_seconds, limit)
        outcome = last.run()
        if outcome.interrupted_by is not None:
            return status or 128 + outcome.interrupted_by
    ending = None if evaluator.child is None else evaluator.child.ending
    if ending is None or ending.returncode == 0 or ending.told_to_end is not None:
        return status
    if child is not None:
        how = exit_text(ending.returncode)
        display.say(f"{EVALUATOR} failed after {ending.seconds:.1f} s: {how}", style="bold red")
    return status or exit_status(ending.returncode)


class _LastEvaluation(Supervisor):
    """Watches an evaluator that was told that training is over.

    Args:
      child: its process.
      display: where its output goes.
      progress: told of its reports.
      signals: a socket that yields the number of each signal to the launcher.
      reports: the socket on which it tells what it does.
      grace_seconds: how long it may take to end after the launcher was asked to.
      limit: how long it may take to evaluate the last checkpoint, if that matters.
    """

    def __init__(
        self,
        child: Child,
        display: Display,
        progress: JobProgress,
        signals: socket.socket,
        reports: socket.socket,
        grace_seconds: float,
        limit: float | None,
    ) -> None:
        super().__init__([child], display, progress, signals, reports, grace_seconds)
        now = time.monotonic()
        self._kill_at = None if limit is None else now + limit
        self._ask_at: float | None = now + grace_seconds

    def _addressee(self) -> str:
        return EVALUATOR

    def _decide_about_ends(self, now: float) -> None:
        """End a program that does not look for checkpoints, and so does not hear of the end."""
        if self._ask_at is not None and now >= self._ask_at:
            self._ask_at = None
            if not self._progress.is_up(EVALUATOR):
                self._end_all(signal.SIGTERM, self._grace_seconds)
