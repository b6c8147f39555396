"""Where in the program each worker is, and what follows when they are not together.

Nothing here waits or sends: a `Place` is what workers tell each other, and `judge` decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import DeadlineExceededError, FailedPreconditionError, JaxtributeError

_NOTICE_EVERY = 10.0  # seconds
_MARGIN = 1.0  # seconds; what is known of the others may be as old


@dataclass(frozen=True)
class Place:
    """How many things a worker has done together with the others, and what it does now."""

    count: int = 0
    what: str = ""  # empty while it is on its own
    since: float = 0.0
    timeout: float | None = None

    def as_message(self) -> dict[str, Any]:
        """Return what the others need to know of it."""
        return {"count": self.count, "what": self.what}


@dataclass(frozen=True)
class Judgement:
    """What to do about a wait: nothing, tell the user, or give up."""

    notice: str | None = None
    error: JaxtributeError | None = None


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
                f"The workers do not do the same: this one is in {own.what}, {found}. All workers "
                "have to run the same program, and to take part in everything that communicates: "
                "steps, reductions, reading variables that are combined on reading, saving."
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
