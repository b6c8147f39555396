"""How `jaxtribute status` shows a cluster: as tables for people, as JSON for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ._progress import counted, duration
from ._rates import ClusterRow, ServerRow, WorkerRow

__all__ = ["as_json", "render"]

_WORKER_COLUMNS = ("closures/s", "finished", "failed", "running", "waiting", "in/s", "out/s")
_SERVER_COLUMNS = (
    "updates/s",
    "updates",
    "variables",
    "held",
    "staleness",
    "reads/s",
    "in/s",
    "out/s",
)
_UNKNOWN = "-"


def render(
    cluster: ClusterRow, workers: Sequence[WorkerRow], servers: Sequence[ServerRow]
) -> Group:
    """Return a line about the whole, and a table each of workers and of servers."""
    parts: list[Text | Table] = [Text(_summary(cluster), "bold")]
    if workers:
        table = _table("worker", _WORKER_COLUMNS)
        for worker in workers:
            _add(table, worker, _worker_cells(worker))
        parts += [Text(), table]
    if servers:
        table = _table("server", _SERVER_COLUMNS)
        for server in servers:
            _add(table, server, _server_cells(server))
        parts += [Text(), table]
    down = [row for row in [*workers, *servers] if row.state == "down"]
    if down:
        parts.append(Text())
    parts += [Text(f"{row.task} is down: {row.why}", "red") for row in down]
    return Group(*parts)


def as_json(
    cluster: ClusterRow, workers: Sequence[WorkerRow], servers: Sequence[ServerRow]
) -> dict[str, Any]:
    """Return the same as plain values; what is not known is None."""
    return {
        "cluster": dataclasses.asdict(cluster),
        "workers": [dataclasses.asdict(row) for row in workers],
        "servers": [dataclasses.asdict(row) for row in servers],
    }


def _summary(cluster: ClusterRow) -> str:
    parts = [f"{cluster.up} of {counted(cluster.tasks, 'task')} up"]
    if cluster.coordinator:
        parts.append(
            f"closures: {cluster.queued} queued, {cluster.running} running, "
            f"{cluster.finished} finished, {_number(cluster.closures_per_second)}/s"
        )
    else:
        parts.append("no coordinator")
    parts.append(
        f"{counted(cluster.variables, 'variable')} of {_size(cluster.bytes_held)}, "
        f"{_number(cluster.updates_per_second)} updates/s"
    )
    parts.append(f"{_size(cluster.bytes_per_second)}/s")
    return "; ".join(parts)


def _table(noun: str, columns: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in (noun, "address", "state", "since"):
        table.add_column(name, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _add(table: Table, row: WorkerRow | ServerRow, cells: Sequence[str]) -> None:
    state = Text(row.state, "green" if row.state == "up" else "bold red")
    since = _UNKNOWN if row.seconds is None else duration(row.seconds)
    table.add_row(row.task, row.address, state, since, *cells)


def _worker_cells(row: WorkerRow) -> list[str]:
    return [
        _number(row.closures_per_second),
        _count(row.finished),
        _count(row.failed),
        _count(row.running),
        _count(row.waiting),
        _size(row.bytes_in_per_second),
        _size(row.bytes_out_per_second),
    ]


def _server_cells(row: ServerRow) -> list[str]:
    return [
        _number(row.updates_per_second),
        _count(row.updates),
        _count(row.variables),
        _size(row.bytes_held),
        _number(row.staleness),
        _number(row.reads_per_second),
        _size(row.bytes_in_per_second),
        _size(row.bytes_out_per_second),
    ]


def _count(count: int | None) -> str:
    return _UNKNOWN if count is None else str(count)


def _number(number: float | None) -> str:
    if number is None:
        return _UNKNOWN
    return f"{number:.0f}" if number >= 100 or number == int(number) else f"{number:.1f}"


def _size(size: float | None) -> str:
    if size is None:
        return _UNKNOWN
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{_number(size)} {unit}"
        size /= 1000
    return f"{_number(size)} TB"
