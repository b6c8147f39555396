"""Why a job failed: which task was the first, and what to say about each.

Pure: takes how tasks ended, and returns text. A task that ends because it lost another one names
that one in its error, and is a consequence, whichever of them ended first.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from .._job import EXIT_PREEMPTED, EXIT_STUCK, EXIT_UNSAVED

_ABOUT_OTHERS = (
    r"(WorkerLostError|TaskUnavailableError|PSUnavailableError|DeadlineExceededError|AbortedError)"
    r"\b(.*)"
)
_ERROR_ABOUT_OTHERS = re.compile(r"^[ |]*jaxtribute\.errors\." + _ABOUT_OTHERS)
_LAST_WORDS_ABOUT_OTHERS = re.compile(r".*\b" + _ABOUT_OTHERS)
_TASK = re.compile(r"\b[a-z]+:\d+\b")
_HEADER = re.compile(r"^[ |+]*(Exception Group )?Traceback \(most recent call last\):")
_CRASH_HEADER = re.compile(r"^Fatal Python error: ")
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_SHOWN_LINES = 60
_SHOWN_LAST_LINES = 12
_SUMMARY_LENGTH = 160

_KNOWN_SIGNALS = {
    signal.SIGKILL: "killed by SIGKILL (9): often the kernel's out-of-memory killer",
    signal.SIGABRT: "aborted with SIGABRT (6): native code gave up",
    signal.SIGSEGV: "crashed with SIGSEGV (11): native code used memory it does not have",
    signal.SIGBUS: "crashed with SIGBUS (7): often a full disk or a full /dev/shm",
    signal.SIGILL: "crashed with SIGILL (4): often native code that was built for another CPU",
    signal.SIGFPE: "crashed with SIGFPE (8): native code divided by zero",
    signal.SIGTERM: "ended by SIGTERM (15): something outside the job asked it to end",
    signal.SIGINT: "interrupted by SIGINT (2)",
}


class State(Enum):
    """What a task was doing when the first failure was found."""

    RUNNING = "running"
    STOPPED = "stopped"  # by SIGSTOP or a debugger
    ENDED = "ended"


@dataclass(frozen=True)
class Ending:
    """How one task ended."""

    task: str
    returncode: int
    """As `subprocess` has it: negative for a signal."""
    seconds: float
    """From its start."""
    stderr: tuple[str, ...] = ()
    """Its last lines."""
    told_to_end: signal.Signals | None = None
    """What the launcher had sent it before."""

    @property
    def failed(self) -> bool:
        """Whether it failed by itself."""
        return self.returncode not in (0, EXIT_PREEMPTED) and self.told_to_end is None

    @property
    def preempted(self) -> bool:
        """Whether it was asked to end, by whomever, and has saved what it needs to go on."""
        return self.returncode == EXIT_PREEMPTED


def lost_tasks(ending: Ending, tasks: Sequence[str]) -> list[str] | None:
    """Return which tasks an ending is blamed on by its own error, None if it is not."""
    if ending.returncode < 0:
        return None
    lines = _last_words(ending)
    # A process that cannot raise an error says in its last words which one it would be.
    pattern = _LAST_WORDS_ABOUT_OTHERS if ending.returncode == EXIT_STUCK else _ERROR_ABOUT_OTHERS
    for number, line in enumerate(lines):
        found = pattern.match(line)
        if found is None:
            continue
        message = "\n".join([found[2], *lines[number + 1 :]])
        named = [
            task
            for task in dict.fromkeys(_TASK.findall(message))
            if task in tasks and task != ending.task
        ]
        if named or found[1] == "WorkerLostError":
            return named
    return None


def first_failure(endings: Sequence[Ending], tasks: Sequence[str]) -> Ending | None:
    """Return the failure that the others follow from.

    Args:
      endings: in the order in which they happened.
      tasks: the names of all tasks of the job.
    """
    failed = [ending for ending in endings if ending.failed]
    causes = [ending for ending in failed if lost_tasks(ending, tasks) is None]
    return next(iter(causes or failed), None)


def cause_of(failure: Ending, endings: Sequence[Ending], tasks: Sequence[str]) -> Ending:
    """Return the latest failure of a task that a failure is blamed on, else that one itself.

    Args:
      failure: how a task ended.
      endings: what happened before, in a job in which tasks are started again.
      tasks: the names of all tasks of the job.
    """
    blamed = lost_tasks(failure, tasks) or ()
    causes = [ending for ending in endings if ending.failed and ending.task in blamed]
    return causes[-1] if causes else failure


def cause_may_follow(
    endings: Sequence[Ending], tasks: Sequence[str], states: Mapping[str, State]
) -> bool:
    """Tell whether every failure so far is blamed on a task that still runs."""
    blamed: set[str] = set()
    for ending in endings:
        if ending.failed:
            named = lost_tasks(ending, tasks)
            if named is None:
                return False
            # An error that names nobody may be about anyone.
            blamed.update(named or (task for task in tasks if task != ending.task))
    return any(states[task] is State.RUNNING for task in blamed)


def exit_status(returncode: int) -> int:
    """Return the exit status a shell would give for what `subprocess` returned."""
    return 128 - returncode if returncode < 0 else returncode


def exit_text(returncode: int) -> str:
    """Return what an exit code means."""
    if returncode == 0:
        return "finished"
    if returncode == EXIT_STUCK:
        return f"exit code {returncode}: it could not get out of a collective"
    if returncode == EXIT_PREEMPTED:
        return f"preempted, exit code {returncode}: it has saved, to go on when started again"
    if returncode == EXIT_UNSAVED:
        return f"exit code {returncode}: something could not be written when it ended"
    if returncode > 0:
        return f"exit code {returncode}"
    try:
        number = signal.Signals(-returncode)
    except ValueError:
        return f"ended by signal {-returncode}"
    return _KNOWN_SIGNALS.get(number, f"ended by {number.name} ({number.value})")


def last_traceback(lines: Sequence[str]) -> list[str]:
    """Return the last traceback, with those it is chained to, and what was printed after it."""
    start = None
    for number in reversed(range(len(lines))):
        if _CRASH_HEADER.match(lines[number]):
            return list(lines[number:])
        if _HEADER.match(lines[number]):
            start = number
            if not _is_chained(lines[:number]):
                break
    return [] if start is None else list(lines[start:])


def failure_report(
    endings: Sequence[Ending],
    tasks: Sequence[str],
    states: Mapping[str, State],
    first: Ending | None = None,
) -> list[str]:
    """Return what to print about a job that failed, the first failure first.

    Args:
      endings: of all tasks, in the order in which they happened.
      tasks: the names of all tasks.
      states: what each was doing when the first failure was found.
      first: the failure that the others follow from, if it is known.
    """
    first = first or first_failure(endings, tasks)
    if first is None:
        return []
    report = [f"{first.task} failed first, after {first.seconds:.1f} s: {_how(first)}"]
    report += _explanation(first, tasks, states)
    report += ["  " + line for line in _evidence(first)]
    others = [ending for ending in endings if ending is not first]
    width = max((len(other.task) for other in others), default=0)
    report += [
        f"{other.task:<{width}}  {_line_about(other, tasks, states)}"
        for other in sorted(others, key=lambda ending: tasks.index(ending.task))
    ]
    return report


def _how(ending: Ending) -> str:
    summary = _summary(ending)
    return exit_text(ending.returncode) + (f", {summary}" if summary else "")


def _line_about(other: Ending, tasks: Sequence[str], states: Mapping[str, State]) -> str:
    # One that ends with an error of its own while it is asked to end still says what it was.
    if other.told_to_end is not None and other.returncode <= 0:
        if states[other.task] is State.STOPPED:
            return "was stopped (SIGSTOP), and was killed by the launcher"
        if other.returncode == -signal.SIGKILL and other.told_to_end is not signal.SIGKILL:
            return "did not end when the launcher asked it to, and was killed"
        return "was ended by the launcher"
    consequence = other.returncode != 0 and lost_tasks(other, tasks) is not None
    return f"{'a consequence, ' if consequence else ''}after {other.seconds:.1f} s: {_how(other)}"


def _explanation(first: Ending, tasks: Sequence[str], states: Mapping[str, State]) -> list[str]:
    """Return what is known of the tasks that a failure is blamed on and that did not fail."""
    texts = {
        State.STOPPED: "is stopped (SIGSTOP): it was suspended, by a signal or by a debugger",
        State.RUNNING: "did not fail, and was still running: it may hang",
        State.ENDED: "had finished without an error, while others still needed it",
    }
    return [f"  {task} {texts[states[task]]}" for task in lost_tasks(first, tasks) or ()]


def _evidence(ending: Ending) -> list[str]:
    """Return the traceback, or the last words of a task that left none."""
    trace = _last_words(ending)
    killed = ending.returncode in (-signal.SIGKILL, -signal.SIGTERM)
    if killed or not trace:  # then a traceback is about something else, earlier
        last = [line for line in ending.stderr[-_SHOWN_LAST_LINES:] if line.strip()]
        return ["the last it wrote to stderr:", *last] if last else []
    if len(trace) > _SHOWN_LINES:
        left_out = len(trace) - _SHOWN_LINES
        third = _SHOWN_LINES // 3
        trace = [*trace[:third], f"... {left_out} lines ...", *trace[third - _SHOWN_LINES :]]
    return trace


def _last_words(ending: Ending) -> list[str]:
    """Return the end of what a task wrote, from where it tells of its failure."""
    if ending.returncode == EXIT_STUCK:
        for number in reversed(range(len(ending.stderr))):
            if _LAST_WORDS_ABOUT_OTHERS.match(ending.stderr[number]):
                return list(ending.stderr[number:])
    return last_traceback(ending.stderr)


def _summary(ending: Ending) -> str:
    """Return the exception, in one short line."""
    if ending.returncode < 0:
        return ""
    trace = last_traceback(ending.stderr)
    header = max((n for n, line in enumerate(trace) if _HEADER.match(line)), default=len(trace))
    # The frames are indented, and the exception comes after them.
    line = next((line for line in trace[header + 1 :] if not line.startswith(" ")), "")
    return line if len(line) <= _SUMMARY_LENGTH else line[: _SUMMARY_LENGTH - 3] + "..."


def _is_chained(before: Sequence[str]) -> bool:
    previous = next((line for line in reversed(before) if line.strip(" |")), "")
    return previous.lstrip(" |").startswith(_CHAIN)
