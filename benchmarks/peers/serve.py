"""The contestant's side of the protocol: one JSON request a line in, one JSON reply a line out."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from importlib import metadata
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol


class Timed(NamedTuple):
    """What `Session.run` returns if only a part of what it does is to be measured."""

    outcome: float
    seconds: float
    parts: Mapping[str, float] = MappingProxyType({})
    """What else was measured, by name: like the seconds, the sum over all steps."""


def timed(work: Callable[[], object], outcome: Callable[[], float]) -> Timed:
    """Do some work, the only part that is measured, and then compute its outcome."""
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    return Timed(outcome(), seconds)


class Session(Protocol):
    """One case, ready to be measured again and again."""

    def reset(self) -> None:
        """Go back to the initial state."""
        ...

    def run(self, steps: int) -> float | Timed:
        """Do `steps` steps, wait until all is computed, and return the number to compare."""
        ...


def serve(make: Callable[[Mapping[str, int]], Session], packages: tuple[str, ...]) -> None:
    """Answer requests until stdin ends."""
    # Libraries may print; only replies may reach the parent's pipe.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    versions = {package: metadata.version(package) for package in packages}
    print(json.dumps({"versions": versions}), file=replies)
    sessions: dict[str, Session] = {}
    for line in sys.stdin:
        try:
            reply = _measure(json.loads(line), sessions, make)
        except Exception:
            reply = {"error": traceback.format_exc()}
        print(json.dumps(reply), file=replies)


def _measure(
    request: Mapping[str, Any],
    sessions: dict[str, Session],
    make: Callable[[Mapping[str, int]], Session],
) -> dict[str, Any]:
    """Time one request; every measurement starts from the same state, so all do the same work."""
    key = json.dumps(request["case"], sort_keys=True)
    if key not in sessions:
        sessions[key] = make(request["case"])
    session = sessions[key]
    session.reset()
    session.run(request["warmup"])
    gc.collect()
    start = time.perf_counter()
    outcome = session.run(request["steps"])
    seconds = time.perf_counter() - start
    if not isinstance(outcome, Timed):
        outcome = Timed(outcome, seconds)
    return {**outcome._asdict(), "parts": dict(outcome.parts)}
