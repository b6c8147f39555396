"""How long work stands still after a worker is killed, and when it takes part again.

Closures count, so that none may be lost or counted twice, and return who ran them and when. The
clock is the same in all processes of a machine.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import jaxtribute as jt
from benchmarks.peers.parameter_server_cluster import Cluster
from benchmarks.peers.parameter_server_jaxtribute import (
    PACKAGES,
    SERVER,
    make_coordinator,
    with_key,
)
from benchmarks.peers.parameter_server_work import WORKERS
from benchmarks.peers.serve import Timed, serve

IN_FLIGHT = 64
TIMEOUT_SECONDS = 60.0


class Ran(NamedTuple):
    """Which process ran a closure, and when it began."""

    process: int
    began: float


def standstill(ran: Sequence[Ran], killed: float) -> float | None:
    """The seconds until an update by a process that lives on was applied, if one was.

    A process begins a closure when the updates of the last one are applied.
    """
    begun: dict[int, list[float]] = {}
    for one in ran:
        if one.began > killed:
            begun.setdefault(one.process, []).append(one.began)
    applied = [sorted(times)[1] for times in begun.values() if len(times) > 1]
    return min(applied) - killed if applied else None


def absence(ran: Sequence[Ran], process: int, killed: float) -> float | None:
    """The seconds until a process began its first closure, if it has."""
    times = [one.began for one in ran if one.process == process]
    return min(times) - killed if times else None


class Recovery:
    """Kills a worker again and again."""

    def __init__(self, case: Mapping[str, int], coordinator: Any, cluster: Cluster) -> None:
        self.wants_absence = bool(case["restarted"])
        self.coordinator, self.cluster = coordinator, cluster
        with coordinator.strategy.scope():
            self.counter = counter = jt.Variable(np.int32(0))

        def count() -> tuple[int, float]:
            import os
            import time

            began = time.monotonic()
            counter.assign_add(1)
            time.sleep(0.002)
            return os.getpid(), began

        self.count = count

    def reset(self) -> None:
        """Begin to count."""
        self.counter.assign(0)
        self.scheduled = 0
        self.values: deque[Any] = deque()

    def run(self, steps: int) -> Timed:
        """Kill a worker `steps` times, and return the seconds lost and the closures counted."""
        seconds = sum(self._lose_a_worker() for _ in range(steps))
        self.coordinator.join()
        counted = int(self.counter.numpy())
        if counted != self.scheduled:
            raise RuntimeError(f"{self.scheduled} closures were scheduled, and {counted} counted.")
        return Timed(float(counted), seconds)

    def _lose_a_worker(self) -> float:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        ran = self._more()
        while len({one.process for one in ran}) < WORKERS:
            ran += self._more(deadline)
        killed = time.monotonic()
        self.cluster.kill("worker", 0)
        process = self.cluster.start("worker", 0)
        ran = []
        while (away := absence(ran, process, killed)) is None:
            ran += self._more(deadline)
        still = standstill(ran, killed)
        assert still is not None  # the closures before the first one of the new worker
        return away if self.wants_absence else still

    def _more(self, deadline: float = float("inf")) -> list[Ran]:
        """Keep workers busy, and return what some of the closures told."""
        if time.monotonic() > deadline:
            raise RuntimeError(f"Not all workers took part within {TIMEOUT_SECONDS:.0f} s.")
        while len(self.values) < IN_FLIGHT:
            self.values.append(self.coordinator.schedule(self.count))
            self.scheduled += 1
        return [Ran(*self.values.popleft().fetch()) for _ in range(IN_FLIGHT // 2)]


def main() -> None:
    """Start the tasks, and serve as their coordinator."""
    with Cluster(WORKERS, 1, SERVER, with_key()) as cluster:
        coordinator = make_coordinator(1)
        serve(lambda case: Recovery(case, coordinator, cluster), PACKAGES)


if __name__ == "__main__":
    main()
