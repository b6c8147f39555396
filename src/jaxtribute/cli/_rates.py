"""What a running cluster is doing, from what its tasks have counted. Pure: samples in, rows out.

A task counts from its start, by its own clock. A rate is the difference between two samples of the
same life of a task; a task that was started again in between has none yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from ..coordinator._messages import WorkerStatus
from ..ps._messages import ServerStatus

__all__ = ["ClusterRow", "Sample", "Samples", "ServerRow", "WorkerRow", "rows"]

State = Literal["up", "down"]


Status = TypeVar("Status", bound=WorkerStatus | ServerStatus)


@dataclass(frozen=True)
class Sample(Generic[Status]):
    """What one task answered, or why it did not."""

    task: str
    address: str
    status: Status | None = None
    life: str = ""
    """Another one after each start of the task."""
    why: str = ""


@dataclass(frozen=True)
class Samples:
    """What all tasks answered."""

    workers: Sequence[Sample[WorkerStatus]] = ()
    servers: Sequence[Sample[ServerStatus]] = ()


@dataclass(frozen=True)
class WorkerRow:
    """A worker; what is not known is None."""

    task: str
    address: str
    state: State
    why: str
    seconds: float | None = None
    """Since it was started."""
    closures_per_second: float | None = None
    finished: int | None = None
    failed: int | None = None
    running: int | None = None
    """How many closures it runs: 1 or 0."""
    waiting: int | None = None
    """How many it has been given and not yet begun."""
    bytes_in_per_second: float | None = None
    bytes_out_per_second: float | None = None


@dataclass(frozen=True)
class ServerRow:
    """A parameter server; what is not known is None."""

    task: str
    address: str
    state: State
    why: str
    seconds: float | None = None
    variables: int | None = None
    bytes_held: int | None = None
    updates: int | None = None
    updates_per_second: float | None = None
    reads_per_second: float | None = None
    bytes_in_per_second: float | None = None
    bytes_out_per_second: float | None = None
    staleness: float | None = None
    """How many updates of others came between reading and updating, in the mean."""
    peers: int | None = None


@dataclass(frozen=True)
class ClusterRow:
    """All together, as far as tasks are up; what nobody told is None."""

    tasks: int
    up: int
    coordinator: bool
    """Whether a worker belongs to a coordinator."""
    queued: int | None
    """Closures that wait on the coordinator."""
    running: int | None
    finished: int | None
    closures_per_second: float | None
    updates_per_second: float | None
    bytes_per_second: float | None
    """In either direction. Every connection has one end that counts: the one that listens."""
    variables: int
    bytes_held: int


def rows(before: Samples, now: Samples) -> tuple[ClusterRow, list[WorkerRow], list[ServerRow]]:
    """Return what to show.

    Args:
      before: the previous samples; empty if there are none.
      now: the newest.
    """
    workers = [_worker(*pair) for pair in _pairs(before.workers, now.workers)]
    servers = [_server(*pair) for pair in _pairs(before.servers, now.servers)]
    return _cluster(now, workers, servers), workers, servers


def _pairs(
    before: Sequence[Sample[Status]], now: Sequence[Sample[Status]]
) -> list[tuple[Status | None, Sample[Status]]]:
    """Return with each sample what the task answered before, in the same life."""
    lives = {(sample.task, sample.life): sample.status for sample in before}
    return [(lives.get((sample.task, sample.life)), sample) for sample in now]


def _worker(before: WorkerStatus | None, sample: Sample[WorkerStatus]) -> WorkerRow:
    status = sample.status
    if status is None:
        return WorkerRow(sample.task, sample.address, "down", sample.why)
    return WorkerRow(
        sample.task,
        sample.address,
        "up",
        "",
        seconds=status.seconds,
        closures_per_second=_rate(before, status, "finished"),
        finished=status.finished,
        failed=status.failed,
        running=int(status.running >= 0),
        waiting=status.waiting,
        bytes_in_per_second=_rate(before, status, "bytes_in"),
        bytes_out_per_second=_rate(before, status, "bytes_out"),
    )


def _server(before: ServerStatus | None, sample: Sample[ServerStatus]) -> ServerRow:
    status = sample.status
    if status is None:
        return ServerRow(sample.task, sample.address, "down", sample.why)
    return ServerRow(
        sample.task,
        sample.address,
        "up",
        "",
        seconds=status.seconds,
        variables=status.variables,
        bytes_held=status.bytes_held,
        updates=status.updates,
        updates_per_second=_rate(before, status, "updates"),
        reads_per_second=_rate(before, status, "reads"),
        bytes_in_per_second=_rate(before, status, "bytes_in"),
        bytes_out_per_second=_rate(before, status, "bytes_out"),
        staleness=status.staleness,
        peers=status.peers,
    )


def _cluster(
    now: Samples, workers: Sequence[WorkerRow], servers: Sequence[ServerRow]
) -> ClusterRow:
    everyone = [*workers, *servers]
    # Each worker has what its coordinator told it last: the one that has heard most knows best.
    told = [s.status for s in now.workers if s.status is not None and s.status.origin]
    latest = max(told, key=lambda status: status.finished_everywhere, default=None)
    return ClusterRow(
        tasks=len(everyone),
        up=sum(row.state == "up" for row in everyone),
        coordinator=latest is not None,
        queued=None if latest is None else latest.queued,
        running=None if latest is None else latest.running_everywhere,
        finished=None if latest is None else latest.finished_everywhere,
        closures_per_second=_sum(row.closures_per_second for row in workers),
        updates_per_second=_sum(row.updates_per_second for row in servers),
        bytes_per_second=_sum(
            rate for row in everyone for rate in (row.bytes_in_per_second, row.bytes_out_per_second)
        ),
        variables=sum(row.variables or 0 for row in servers),
        bytes_held=sum(row.bytes_held or 0 for row in servers),
    )


def _rate(before: Status | None, now: Status, name: str) -> float | None:
    """Return how fast a count grows; None if that is not known yet."""
    if before is None or now.seconds <= before.seconds:
        return None
    return (getattr(now, name) - getattr(before, name)) / (now.seconds - before.seconds)


def _sum(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None
