"""Watches the processes of a parameter-server job.

The chief runs the program, and the job is over when it is: then workers and servers are asked to
end. One of those that ends before is started again, at the same address, and the chief goes on.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Sequence

from ._children import Child
from ._display import Display
from ._evaluator import EvaluatorTask
from ._failures import Ending, cause_of, exit_text, failure_report
from ._progress import JobProgress, counted
from ._restarts import CHIEF, Restarts
from ._supervisor import SECONDS_AFTER_A_FAILURE, Supervisor

__all__ = ["ServerSupervisor"]


class ServerSupervisor(Supervisor):
    """Watches a chief, workers and parameter servers that have just been started.

    Args:
      children: the processes.
      start: starts a task again, for the given time.
      restarts: decides whether to.
      display: where their output goes.
      progress: told of reports, ends and restarts.
      signals: a socket that yields the number of each signal to the launcher.
      reports: the socket on which tasks tell how far they are.
      grace_seconds: how long they may take to end after the launcher was asked to.
      evaluator: what runs beside them, and neither ends nor fails with them.
    """

    def __init__(
        self,
        children: Sequence[Child],
        start: Callable[[str, int], Child],
        restarts: Restarts,
        display: Display,
        progress: JobProgress,
        signals: socket.socket,
        reports: socket.socket,
        grace_seconds: float,
        evaluator: EvaluatorTask | None = None,
    ) -> None:
        super().__init__(children, display, progress, signals, reports, grace_seconds, evaluator)
        self._start = start
        self._restarts = restarts
        self._due: dict[str, float] = {}
        self._given_up: set[str] = set()
        self._known_endings = 0
        self._over = False
        self.failure: Ending | None = None
        """What ended the job before its time."""
        self.preempted = False
        """Whether the chief has saved and ended, to be started again by somebody else."""

    def report(self) -> list[str]:
        """Return what to print about the failure, when all processes have ended."""
        assert self.failure is not None
        return self._report_about(self.failure)

    def _report_about(self, failure: Ending) -> list[str]:
        cause = cause_of(failure, self._endings, self._tasks)
        latest = {ending.task: ending for ending in self._endings} | {cause.task: cause}
        running = {child.task for child in self._running()} - {cause.task}
        ended = [ending for task, ending in latest.items() if task not in running]
        states = self._states or self._current_states()
        return failure_report(ended, self._tasks, states, first=cause)

    # --- what happens ----------------------------------------------------------------------

    def _unfinished(self) -> bool:
        return bool(self._running() or self._due)

    def _addressee(self) -> str:
        return CHIEF if self._is_running(CHIEF) else counted(len(self._running()), "task")

    def _pass_on(self, number: signal.Signals) -> None:
        self._due.clear()
        if self._over or not self._is_running(CHIEF):
            self._end_job(self._grace_seconds)
            return
        # The chief first: what it may want to save is on the servers.
        self._kill_at = time.monotonic() + self._grace_seconds
        self._child(CHIEF).ask_to_end(number)

    def _decide_about_ends(self, now: float) -> None:
        new, self._known_endings = self._endings[self._known_endings :], len(self._endings)
        if new:
            self._take_reports()  # one that has just ended may have told that it is up
        for ending in new:
            if self._over:
                return
            if ending.task == CHIEF and (ending.returncode == 0 or self._interrupted_by):
                self.preempted = ending.preempted
                self._end_job(self._grace_seconds)
            elif self._interrupted_by is None:
                self._start_again_or_give_up(ending, now)
        for task in [task for task, at in self._due.items() if now >= at]:
            del self._due[task]
            self._replace(task)

    def _start_again_or_give_up(self, ending: Ending, now: float) -> None:
        task = ending.task
        up = self._progress.is_up(task)
        restart = self._restarts.after(task, ending.returncode, up)
        if restart is None:
            self._give_up(ending)
            return
        if task == CHIEF and not ending.preempted:
            first, *others = self._report_about(ending)
            self._display.say(first, style="bold red")
            self._display.say(*others)
        else:
            self._say_lost(ending)
        limit = f"{restart.number} of {restart.limit}"
        self._display.say(f"starting {task} again ({limit})", style="bold")
        self._due[task] = now + restart.pause_seconds

    def _give_up(self, ending: Ending) -> None:
        task = ending.task
        if task == CHIEF and ending.preempted:
            self.preempted = True
            self._end_job(self._grace_seconds)
            return
        self._given_up.add(task)
        workers = {name for name in self._tasks if name.startswith("worker:")}
        if task.startswith("worker:") and not workers <= self._given_up:
            self._say_lost(ending)
            self._display.say(f"{task} is not started again: going on without it", style="bold red")
            return
        self.failure = ending
        self._states = self._current_states()
        self._end_job(SECONDS_AFTER_A_FAILURE)

    def _say_lost(self, ending: Ending) -> None:
        how = exit_text(ending.returncode)
        self._display.say(
            f"{ending.task} ended after {ending.seconds:.1f} s: {how}", style="bold red"
        )

    def _end_job(self, seconds: float) -> None:
        self._over = True
        self._due.clear()
        self._end_all(signal.SIGTERM, seconds)

    def _replace(self, task: str) -> None:
        child = self._start(task, self._restarts.of(task))
        self._children[self._tasks.index(task)] = child
        self._watch(child)
        self._progress.restart_task(task)

    def _child(self, task: str) -> Child:
        return self._children[self._tasks.index(task)]

    def _is_running(self, task: str) -> bool:
        return self._child(task).ending is None
