"""How many closures a worker is given at a time, and which are taken back for idle ones.

Pure decisions: enough closures are on their way that no worker waits for a round trip, and few
enough that none of them waits behind a slow one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Load", "recalls", "room", "shares", "start_delays"]

_FEWEST, _MOST = 2, 64
_SECONDS_AHEAD = 0.02
_WORTH_RECALLING = 0.01


def room(mean_seconds: float | None) -> int:
    """Return how many closures a worker may have.

    Args:
      mean_seconds: how long one takes it, or None while that is not known.
    """
    if mean_seconds is None:
        return _FEWEST
    if mean_seconds <= _SECONDS_AHEAD / _MOST:
        return _MOST
    return max(_FEWEST, min(_MOST, math.ceil(_SECONDS_AHEAD / mean_seconds)))


@dataclass(frozen=True)
class Load:
    """What one worker has to do.

    Args:
      held: how many closures it has.
      mean_seconds: how long one takes it, or None while that is not known.
      since: how many seconds ago it last finished one or was given the first.
      recalled: whether it was asked to give some back and has not answered.
    """

    held: int
    mean_seconds: float | None
    since: float = 0.0
    recalled: bool = False


def shares(waiting: int, loads: Sequence[Load]) -> list[int]:
    """Return how many of the waiting closures each worker gets.

    A worker gets more once it has at most half of what it may have, so that messages hold several.
    """
    free = [_free(load) for load in loads]
    given = [0] * len(loads)
    # Those that have least come first when there is not enough for all.
    order = sorted((i for i in range(len(loads)) if free[i]), key=lambda i: loads[i].held)
    for place, i in enumerate(order):
        fair = math.ceil(waiting / (len(order) - place))
        given[i] = min(free[i], fair)
        waiting -= given[i]
    return given


def _free(load: Load) -> int:
    most = room(load.mean_seconds)
    return most - load.held if load.held <= most // 2 else 0


def recalls(waiting: int, loads: Mapping[str, Load]) -> dict[str, int]:
    """Return how many closures that have not begun each worker is to give back.

    That is when nothing waits, and a worker is idle while another has some that would take long.
    """
    idle = sum(1 for load in loads.values() if not load.held)
    if waiting or not idle:
        return {}
    wanted: dict[str, int] = {}
    for worker, load in sorted(loads.items(), key=lambda one: -one[1].held):
        unbegun = load.held - 1
        seconds = unbegun * max(load.mean_seconds or 0.0, load.since)
        if idle and unbegun > 0 and not load.recalled and seconds > _WORTH_RECALLING:
            wanted[worker] = min(unbegun, max(idle, unbegun // 2))
            idle = max(0, idle - wanted[worker])
    return wanted


def start_delays(workers: int, environment: Mapping[str, str] = os.environ) -> list[float]:
    """Return after how many seconds each worker gets its first closure."""
    delay = float(environment.get("TF_COORDINATOR_SCHEDULE_START_DELAY", "0"))
    longest = float(environment.get("TF_COORDINATOR_SCHEDULE_START_DELAY_MAX", "inf"))
    return [min(delay * i, longest) for i in range(workers)]
