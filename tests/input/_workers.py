"""Workers without processes, and looking into what they are given."""

import functools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

import jaxtribute as jt
from jaxtribute._topology import Topology
from jaxtribute.input import InputSetting, distribute

MEETING_SECONDS = 20.0
"""How long a worker waits for the others before the test fails."""


@functools.cache
def mirrored(replicas: int) -> jt.MirroredStrategy:
    """Return a strategy with that many replicas, the same one to every test."""
    return jt.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def setting(workers: int, worker: int, replicas: int, peers: Any = None) -> InputSetting:
    """Return the place of one worker, with that many replicas of its own, among several."""
    context = jt.InputContext(workers, worker, workers * replicas)
    return InputSetting(Topology(jax.devices()[:replicas]), context, peers)


def distribute_to(
    dataset: Any, workers: int, worker: int, replicas: int, peers: Any = None
) -> jt.DistributedDataset:
    """Return what one worker gets of a dataset."""
    return distribute(dataset, setting(workers, worker, replicas, peers), None)


# --- Elements --------------------------------------------------------------------------------


def parts(element: Any) -> list[Any]:
    """Return the components of an element as lists or numbers."""
    components = element.values if isinstance(element, jt.PerReplica) else (element,)
    return [np.asarray(component).tolist() for component in components]


def steps(dataset: Any) -> list[list[Any]]:
    """Return the parts of each element, of one pass."""
    return [parts(element) for element in dataset]


def steps_on(replicas: int, dataset: Any) -> list[list[Any]]:
    """Return the parts of each element, distributed by a strategy."""
    return steps(mirrored(replicas).experimental_distribute_dataset(dataset))


def steps_of_workers(dataset: Any, workers: int, replicas: int) -> list[list[list[Any]]]:
    """Return the parts of each element, worker by worker, none of which asks the others."""
    return [steps(distribute_to(dataset, workers, w, replicas)) for w in range(workers)]


# --- Options ---------------------------------------------------------------------------------


def with_policy(dataset: jt.data.Dataset, policy: str) -> jt.data.Dataset:
    """Return the dataset with an `AutoShardPolicy`."""
    options = jt.data.Options()
    options.experimental_distribute.auto_shard_policy = jt.data.AutoShardPolicy[policy]
    return dataset.with_options(options)


# --- Workers that ask each other -------------------------------------------------------------


class _Meeting:
    """Where the reports of all workers come together."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.changed = threading.Condition()
        self.reports: dict[str, dict[int, str]] = {}


class _Peer:
    """One worker's way to ask the others."""

    def __init__(self, worker: int, meeting: _Meeting) -> None:
        self._worker = worker
        self._meeting = meeting

    def exchange(self, about: str, report: str, cancelled: threading.Event) -> Sequence[str]:
        meeting = self._meeting
        deadline = time.monotonic() + MEETING_SECONDS
        with meeting.changed:
            reports = meeting.reports.setdefault(about, {})
            assert self._worker not in reports, f"{about} was asked twice"
            reports[self._worker] = report
            meeting.changed.notify_all()
            while len(reports) < meeting.workers:
                if cancelled.is_set():
                    raise jt.errors.CancelledError(f"{about} is no longer asked")
                if time.monotonic() > deadline:
                    raise threading.BrokenBarrierError(f"nobody else asked about {about}")
                meeting.changed.wait(0.02)
            return [reports[worker] for worker in range(meeting.workers)]


def meet(workers: int) -> list[_Peer]:
    """Return, for each worker, its way to ask the others."""
    meeting = _Meeting(workers)
    return [_Peer(worker, meeting) for worker in range(workers)]


def run_workers(workers: int, replicas: int, program: Callable[[InputSetting], Any]) -> list[Any]:
    """Run the program of each worker in a thread of its own, and return what they return."""
    peers = meet(workers)
    with ThreadPoolExecutor(workers) as pool:
        settings = [setting(workers, w, replicas, peers[w]) for w in range(workers)]
        running = [pool.submit(program, own) for own in settings]
    errors = [error for one in running if (error := one.exception()) is not None]
    # A worker that waited in vain did so because of another.
    for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error
    return [one.result() for one in running]
