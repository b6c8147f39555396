"""What the chief knows of the workers, and what it tells them.

`Roster` opens no sockets and looks at no clock: it is told what happened and when, and returns the
messages to send. So every order of events can be tried in a test.

From workers: `report` (their part of an exchange), `tell` (what others may listen for), `beat`
(alive, and where in the program), `leave` (the process is about to end) and `broke` (it gave up on
the others).
To workers: `missing` and `begin` while they gather, then `all` (the parts of an exchange), `told`,
`beats` (where everybody is), `finished`, `bye`, and `lost` and `broke`, after which no exchange
succeeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ._facts import differences
from ._wire import Message

FINISHED = "it has finished"
ENDED = "its process has ended without a word, as one that is killed does"

Outgoing = list[tuple[int, Message]]


class Roster:
    """The workers of a cluster, as the chief sees them."""

    def __init__(self, tasks: Sequence[str], silence_limit: float) -> None:
        self._tasks = tuple(tasks)
        self._silence_limit = silence_limit
        self._facts: dict[int, Mapping[str, Any]] = {}
        self._heard: dict[int, float] = {}
        self._places: dict[int, Any] = {}
        self._reports: dict[str, dict[int, str]] = {}
        self._ended: dict[int, str] = {}  # finished, or lost: why
        self._begun = False
        self._over = False

    @property
    def missing(self) -> list[str]:
        """The workers that have not come yet."""
        return [task for i, task in enumerate(self._tasks) if i not in self._facts]

    def refusal(self, worker: int, facts: Mapping[str, Any]) -> str | None:
        """Return why a worker cannot be taken in, if it cannot."""
        if not 0 <= worker < len(self._tasks):
            return (
                f"There is no worker {worker} in the chief's cluster, which has "
                f"{', '.join(self._tasks)}. Give all tasks the same cluster."
            )
        if worker in self._facts:
            other = self._facts[worker].get("process", "another process")
            return (
                f"{self._tasks[worker]} has joined already, as {other}; this is "
                f"{facts.get('process')}. Give each process its own task, and make sure that none "
                "of an earlier run is left."
            )
        return None

    def joined(self, worker: int, facts: Mapping[str, Any], now: float) -> Outgoing:
        """Take in a worker; when it is the last, all may begin, or learn why they cannot."""
        self._facts[worker] = facts
        self._heard[worker] = now
        if self.missing:
            return self._to_all({"say": "missing", "tasks": self.missing})
        self._begun = True
        found = differences(self._tasks, [self._facts[i] for i in range(len(self._tasks))])
        return self._to_all({"say": "begin", "differences": found})

    def said(self, worker: int, message: Message, now: float) -> Outgoing:
        """Take note of what a worker says."""
        self._heard[worker] = now
        if message["do"] == "beat":
            self._places[worker] = message["place"]
        elif message["do"] == "report":
            return self._reported(worker, message["about"], message["report"])
        elif message["do"] == "tell":
            told = self._to_all({"say": "told", "about": message["about"], "by": worker})
            return [outgoing for outgoing in told if outgoing[0] != worker]
        elif message["do"] == "leave":
            if message["why"] is not None:
                return [*self._lose(worker, message["why"]), (worker, {"say": "bye"})]
            self._ended[worker] = FINISHED
            finished = self._to_all({"say": "finished", "worker": worker})
            return [(worker, {"say": "bye"}), *finished, *self._check_all()]
        elif message["do"] == "broke":
            return self._stop({"say": "broke", "by": worker, "why": message["why"]})
        return []

    def gone(self, worker: int) -> Outgoing:
        """Take note that a worker's connection was closed."""
        if worker in self._ended:
            return []
        if not self._begun:  # it may come again
            self._facts.pop(worker, None)
            return self._to_all({"say": "missing", "tasks": self.missing})
        return self._lose(worker, ENDED)

    def passed(self, now: float) -> Outgoing:
        """Take note that time has passed."""
        if self._over or not self._begun:
            return self._to_all({"say": "missing", "tasks": self.missing})
        for worker, heard in self._heard.items():
            if worker not in self._ended and now - heard > self._silence_limit:
                why = f"it has not answered for {now - heard:.0f} s; it may be stopped or cut off"
                return self._lose(worker, why)
        places = [self._places.get(i) for i in range(len(self._tasks))]
        return self._to_all({"say": "beats", "places": places})

    def _reported(self, worker: int, about: str, report: str) -> Outgoing:
        self._reports.setdefault(about, {})[worker] = report
        return self._check(about)

    def _check_all(self) -> Outgoing:
        return [outgoing for about in list(self._reports) for outgoing in self._check(about)]

    def _check(self, about: str) -> Outgoing:
        reports = self._reports[about]
        if len(reports) == len(self._tasks):
            del self._reports[about]
            ordered = [reports[i] for i in range(len(self._tasks))]
            return self._to_all({"say": "all", "about": about, "reports": ordered})
        left = next((i for i in self._ended if i not in reports), None)
        return [] if left is None else self._lose(left, self._ended[left])

    def _lose(self, worker: int, why: str) -> Outgoing:
        self._ended[worker] = why
        return self._stop({"say": "lost", "worker": worker, "why": why})

    def _stop(self, message: Message) -> Outgoing:
        outgoing = [] if self._over else self._to_all(message)
        self._over = True
        return outgoing

    def _to_all(self, message: Message) -> Outgoing:
        return [(worker, message) for worker in self._facts]
