"""Objects to save, and workers without processes."""

import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax.numpy as jnp
import numpy as np

import jaxtribute as jt

MEETING_SECONDS = 60.0
"""How long a worker waits for the others before the test fails."""


@functools.cache
def strategy(name: str) -> jt.Strategy:
    """Return a strategy by a short name, the same one to every test."""
    if name == "default":
        return jt.get_strategy()
    if name == "one device":
        return jt.OneDeviceStrategy("CPU:0")
    return jt.MirroredStrategy([f"CPU:{i}" for i in range(int(name))])


STRATEGIES = ["default", "one device", "1", "2", "3", "4"]


class Dense(jt.Module):
    def __init__(self, inputs: int = 3, outputs: int = 2, fill: float = 0.0) -> None:
        super().__init__("dense")
        self.w = jt.Variable(jnp.full((inputs, outputs), fill), name="w")
        self.b = jt.Variable(jnp.full((outputs,), fill), name="b")

    def __call__(self, x: Any) -> Any:
        return x @ self.w.value() + self.b.value()


def on_read(value: Any, aggregation: str) -> jt.Variable:
    """Create a variable that replicas write on their own."""
    return jt.Variable(
        value,
        trainable=False,
        synchronization=jt.VariableSynchronization.ON_READ,
        aggregation=jt.VariableAggregation[aggregation],
    )


def copies(variable: jt.Variable) -> list[Any]:
    """Return what each replica has."""
    return [np.asarray(c.numpy()).tolist() for c in getattr(variable, "values", (variable,))]


def same_bits(a: Any, b: Any) -> bool:
    """Tell whether two arrays are equal to the last bit."""
    a, b = np.asarray(a), np.asarray(b)
    return (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes())


# --- Workers -----------------------------------------------------------------------------------


class _Meeting:
    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.changed = threading.Condition()
        self.reports: dict[str, dict[int, str]] = {}


class Worker:
    """One of several workers in threads, which ask each other as groups of processes do."""

    def __init__(self, index: int, meeting: _Meeting) -> None:
        self.index = index
        self.tasks = tuple(f"worker:{i}" for i in range(meeting.workers))
        self._meeting = meeting
        self._agreed = 0
        self.strategy = jt.MirroredStrategy([f"CPU:{2 * index}", f"CPU:{2 * index + 1}"])
        self.strategy.topology.group = self

    def exchange(self, about: str, report: str, cancelled: Any = None) -> list[str]:
        meeting = self._meeting
        deadline = time.monotonic() + MEETING_SECONDS
        with meeting.changed:
            reports = meeting.reports.setdefault(about, {})
            assert self.index not in reports, f"{about} was asked twice"
            reports[self.index] = report
            meeting.changed.notify_all()
            while len(reports) < meeting.workers:
                if time.monotonic() > deadline:
                    raise threading.BrokenBarrierError(f"nobody else asked about {about}")
                meeting.changed.wait(0.02)
            return [reports[worker] for worker in range(meeting.workers)]

    def agree(self, what: str, report: str) -> list[str]:
        self._agreed += 1
        return self.exchange(f"{self._agreed} {what}", report)

    def carry_out(self, program: Any, *args: Any, what: str, timeout: float | None = None) -> Any:
        return program(*args)


def run_workers(program: Callable[[Worker], Any], workers: int = 2) -> list[Any]:
    """Run a program on each worker, and return what each returned or raised."""
    meeting = _Meeting(workers)
    with ThreadPoolExecutor(workers) as pool:
        running = [pool.submit(program, Worker(i, meeting)) for i in range(workers)]
    return [one.exception() or one.result() for one in running]


def results(program: Callable[[Worker], Any], workers: int = 2) -> list[Any]:
    """Run a program on each worker, none of which may fail."""
    outcomes = run_workers(program, workers)
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    # A worker that waited in vain did so because of another.
    for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error
    return outcomes
