"""Where in the program each worker is, and what follows when they are not together.

Nothing here waits or sends: a `Place` is what workers tell each other, and `judge` decides.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import DeadlineExceededError, FailedPreconditionError, JaxtributeError

_NOTICE_EVERY = 10.0  # seconds
_SAME_PROGRAM = (
    "All workers have to run the same program, and to take part in everything that communicates: "
    "steps, reductions, reading variables that are combined on reading, saving."
)
_MARGIN = 1.0  # seconds; what is known of the others may be as old


@dataclass(frozen=True)
class Place:
    """How many things a worker has done together with the others, and what it does now."""

    count: int = 0
    what: str = ""  # empty while it is on its own
    since: float = 0.0
    timeout: float | None = None
    trail: int = 0  # a checksum of all that was done, in order

    def next(self, what: str, now: float, timeout: float | None) -> Place:
        """Return the place of a worker that begins something."""
        trail = zlib.crc32(what.encode(), self.trail)
        return Place(self.count + 1, what, now, timeout, trail)

    def as_message(self) -> dict[str, Any]:
        """Return what the others need to know of it."""
        return {"count": self.count, "what": self.what, "trail": self.trail}


@dataclass(frozen=True)
class Judgement:
    """What to do about a wait: nothing, tell the user, or give up."""

    notice: str | None = None
    error: JaxtributeError | None = None


def diverged(
    trails: Mapping[int, int], tasks: Sequence[str], places: Sequence[Any]
) -> JaxtributeError | None:
    """Return the error for workers that have not done what this one did, if there are any.

    Collectives of one size go together whatever they are for, so such workers need not notice.

    Args:
      trails: the checksum of what this worker had done, by how many things it had.
      tasks: the names of all workers.
      places: where each of them is, as messages; None where it is not known.
    """
    for task, place in zip(tasks, places, strict=False):
        if place is None or trails.get(place["count"], place["trail"]) == place["trail"]:
            continue
        return FailedPreconditionError(
            f"The workers have not done the same: {task} has done {place['count']} things together "
            f"with the others, and not those that this one did, or in another order. Results since "
            f"then are wrong. {_SAME_PROGRAM}"
        )
    return None


def judge(
    own: Place, tasks: Sequence[str], places: Sequence[Any], now: float, noticed: float
) -> Judgement:
    """Decide about a wait of this worker, from where the others are.

    Args:
      own: where this worker is.
      tasks: the names of all workers.
      places: where each of them is, as messages; None where it is not known.
      now: the time.
      noticed: when the user was last told.
    """
    if not own.what:
        return Judgement()
    waited = now - own.since
    behind = [
        i for i, place in enumerate(places) if place is not None and place["count"] < own.count
    ]
    elsewhere = [
        i
        for i, place in enumerate(places)
        if place is not None and place["count"] == own.count and place["what"] not in ("", own.what)
    ]
    if elsewhere and waited > _MARGIN:
        found = ", ".join(f"{tasks[i]} is in {places[i]['what']}" for i in elsewhere)
        return Judgement(
            error=FailedPreconditionError(
                f"The workers do not do the same: this one is in {own.what}, {found}. "
                + _SAME_PROGRAM
            )
        )
    if not behind:
        return Judgement()
    names = ", ".join(tasks[i] for i in behind)
    if own.timeout is not None and waited > own.timeout + _MARGIN:
        return Judgement(
            error=DeadlineExceededError(
                f"{names} did not arrive at {own.what} within timeout_seconds={own.timeout:g}; "
                f"waited {waited:.1f} s. {_last_seen(behind, tasks, places)} Find out what keeps "
                "them, or allow more time in CommunicationOptions."
            )
        )
    if waited > _NOTICE_EVERY and now - noticed > _NOTICE_EVERY:
        return Judgement(
            notice=f"has waited {waited:.0f} s in {own.what} for {names}. "
            + _last_seen(behind, tasks, places)
        )
    return Judgement()


def _last_seen(behind: Sequence[int], tasks: Sequence[str], places: Sequence[Any]) -> str:
    seen = [
        f"{tasks[i]} is alive, {places[i]['what'] or 'busy with something of its own'} "
        f"({places[i]['count']} things done together)"
        for i in behind
    ]
    return "; ".join(seen) + "."
