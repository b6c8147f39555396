"""Watches the processes of a job until all have ended.

One loop in one thread waits for output, reports, signals and the end of processes. It decides with
`_failures` and does nothing by itself but pass on, ask to end, and kill.
"""

from __future__ import annotations

import selectors
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ._children import Child
from ._display import Display
from ._evaluator import EvaluatorTask
from ._failures import Ending, State, cause_may_follow
from ._output import Stream
from ._progress import JobProgress, counted

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends the whole job, as the launcher is asked to."""

_TICK_SECONDS = 0.25
_SECONDS_FOR_THE_CAUSE = 5.0
SECONDS_AFTER_A_FAILURE = 5.0
# One Ctrl-C may come twice: from the terminal, and from a program that passes on what it gets.
_SECONDS_OF_ONE_INTERRUPTION = 0.5
_LONGEST_REPORT = 64 * 1024


@dataclass(frozen=True)
class Outcome:
    """How the processes of a job ended."""

    endings: Sequence[Ending]
    """In the order in which it happened."""
    states: Mapping[str, State]
    """What each was doing when the first failure was found."""
    interrupted_by: signal.Signals | None


class Supervisor:
    """Watches processes that have just been started, and ends them all when one fails.

    Args:
      children: the processes.
      display: where their output goes.
      progress: told of reports and ends.
      signals: a socket that yields the number of each signal to the launcher.
      reports: the socket on which tasks tell how far they are.
      grace_seconds: how long they may take to end after the launcher was asked to.
      evaluator: what runs beside them, and neither ends nor fails with them.
    """

    def __init__(
        self,
        children: Sequence[Child],
        display: Display,
        progress: JobProgress,
        signals: socket.socket,
        reports: socket.socket,
        grace_seconds: float,
        evaluator: EvaluatorTask | None = None,
    ) -> None:
        self._evaluator = evaluator
        self._children = list(children)
        self._selector = selectors.DefaultSelector()
        self._tasks = [child.task for child in children]
        self._display = display
        self._progress = progress
        self._signals = signals
        self._reports = reports
        self._grace_seconds = grace_seconds
        self._endings: list[Ending] = []
        self._states: dict[str, State] | None = None
        self._first_failure_at: float | None = None
        self._kill_at: float | None = None
        self._interrupted_by: signal.Signals | None = None
        self._interrupted_at = 0.0
        self._was_preempted = False
        self._complained = False

    def run(self) -> Outcome:
        """Return when all processes have ended. Whatever happens, none of them is left."""
        try:
            self._selector.register(self._signals, selectors.EVENT_READ, self._take_signals)
            self._selector.register(self._reports, selectors.EVENT_READ, self._take_reports)
            for child in self._children:
                self._watch(child)
            if self._evaluator is not None and self._evaluator.child is not None:
                self._watch(self._evaluator.child)
            while self._unfinished():
                for key, _ in self._selector.select(_TICK_SECONDS):
                    if isinstance(key.data, tuple):
                        self._copy_output(key.fd, *key.data)
                    else:
                        key.data()
                self._notice_ends()
                self._look_after_the_evaluator()
                self._decide()
                self._display.progress(self._progress, time.monotonic())
            self._take_reports()
        finally:
            self._selector.close()
            for child in self._children:
                child.destroy()
        return Outcome(self._endings, self._states or self._current_states(), self._interrupted_by)

    def _watch(self, child: Child) -> None:
        if child.ending is not None:
            return
        for descriptor, stream in child.streams:
            self._selector.register(descriptor, selectors.EVENT_READ, (child, stream))

    def _unfinished(self) -> bool:
        return bool(self._running())

    def _running(self) -> list[Child]:
        return [child for child in self._children if child.ending is None]

    def _current_states(self) -> dict[str, State]:
        return {child.task: child.state() for child in self._children}

    # --- what comes in ---------------------------------------------------------------------

    def _copy_output(self, descriptor: int, child: Child, stream: Stream) -> None:
        lines, more = child.read(stream)
        self._display.task_lines(child.task, stream, lines)
        if not more:
            self._selector.unregister(descriptor)

    def _take_reports(self) -> None:
        while True:
            try:
                datagram = self._reports.recv(_LONGEST_REPORT)
            except BlockingIOError:
                return
            if not self._progress.report(datagram, time.monotonic()) and not self._complained:
                self._complained = True
                self._display.say(f"ignored what is no report of progress: {datagram[:200]!r}")

    def _take_signals(self) -> None:
        for byte in self._signals.recv(4096):
            number = signal.Signals(byte)
            if number in FORWARDED:
                self._interrupt(number)

    def _notice_ends(self) -> None:
        for child in self._running():
            if child.poll():
                self._endings.append(self._take_end(child))
                self._progress.end(child.task)

    def _take_end(self, child: Child) -> Ending:
        """Show what a process wrote before it ended, and return how it did."""
        for descriptor, _ in child.streams:
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
        for stream, lines in child.last_lines():
            self._display.task_lines(child.task, stream, lines)
        assert child.ending is not None
        return child.ending

    def _look_after_the_evaluator(self) -> None:
        evaluator = self._evaluator
        if evaluator is None or evaluator.child is None:
            return
        if evaluator.child.poll():
            evaluator.note_end(self._take_end(evaluator.child))
        if (child := evaluator.started_again()) is not None:
            self._watch(child)

    # --- what follows from it --------------------------------------------------------------

    def _interrupt(self, number: signal.Signals) -> None:
        now = time.monotonic()
        if self._interrupted_by is not None:
            if now - self._interrupted_at >= _SECONDS_OF_ONE_INTERRUPTION:
                self._display.say(f"{number.name} again: killing them", style="bold red")
                self._kill_all()
            return
        self._interrupted_by, self._interrupted_at = number, now
        passed_on = f"passed on to {self._addressee()}, with {self._grace_seconds:g} s to end"
        self._display.say(
            f"{number.name}: {passed_on}"
            + ("; press Ctrl-C again to kill them" if number is signal.SIGINT else ""),
            style="bold",
        )
        # A terminal that is gone, and output that nobody reads, are no news to a worker.
        self._pass_on(number if number is signal.SIGINT else signal.SIGTERM)

    def _addressee(self) -> str:
        return counted(len(self._running()), "worker")

    def _pass_on(self, number: signal.Signals) -> None:
        self._end_all(number, self._grace_seconds)

    def _decide(self) -> None:
        now = time.monotonic()
        if self._display.closed and self._interrupted_by is None:
            self._interrupt(signal.SIGPIPE)
        self._decide_about_ends(now)
        if self._kill_at is not None and now >= self._kill_at:
            late = ", ".join(child.task for child in self._running())
            # After a failure, the report says it.
            if late and (self._states is None or self._interrupted_by is not None):
                self._display.say(f"killing {late}: still running after the time to end")
            self._kill_all()

    def _decide_about_ends(self, now: float) -> None:
        """End all once one has failed; not before it is clear which was the first."""
        if not self._was_preempted and any(ending.preempted for ending in self._endings):
            self._was_preempted = True
            if self._interrupted_by is None:  # else all have been asked
                self._end_all(signal.SIGTERM, self._grace_seconds)
        if self._states is None and any(ending.failed for ending in self._endings):
            self._first_failure_at = self._first_failure_at or now
            states = self._current_states()
            waited = now - self._first_failure_at
            if waited >= _SECONDS_FOR_THE_CAUSE or not cause_may_follow(
                self._endings, self._tasks, states
            ):
                self._states = states
                self._end_all(signal.SIGTERM, SECONDS_AFTER_A_FAILURE)

    def _end_all(self, number: signal.Signals, seconds: float) -> None:
        self._kill_at = min(self._kill_at or float("inf"), time.monotonic() + seconds)
        for child in self._running():
            child.ask_to_end(number)

    def _kill_all(self) -> None:
        self._kill_at = None
        for child in self._running():
            child.kill()
