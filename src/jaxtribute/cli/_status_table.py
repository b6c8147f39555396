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

_GAP = 2
# What is left out first where there is not room for all.
_DISPENSABLE = ("address", "failed", "waiting", "reads/s", "updates", "out/s", "in/s")
_UNKNOWN = "-"


def render(
    cluster: ClusterRow,
    workers: Sequence[WorkerRow],
    servers: Sequence[ServerRow],
    width: int,
) -> Group:
    """Return a line about the whole, and a table each of workers and of servers.

    Args:
      cluster: the whole.
      workers: a row each.
      servers: a row each.
      width: of what it is shown on, in characters; columns that do not fit are left out.
    """
    parts: list[Text | Table] = [Text(_summary(cluster), "bold")]
    if workers:
        cells = [_cells("worker", row) | _worker_cells(row) for row in workers]
        parts += [Text(), _table(cells, width)]
    if servers:
        cells = [_cells("server", row) | _server_cells(row) for row in servers]
        parts += [Text(), _table(cells, width)]
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


def _table(rows: Sequence[dict[str, str]], width: int) -> Table:
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    for name in _DISPENSABLE:
        if sum(widths.values()) + _GAP * len(widths) > width:
            widths.pop(name, None)
    table = Table(box=None, padding=(0, _GAP, 0, 0), header_style="dim")
    for name in widths:
        is_text = name in ("worker", "server", "address", "state", "since")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    for row in rows:
        style = {"up": "green", "down": "bold red"}
        cells = [Text(row[name], style.get(row[name], "")) for name in widths]
        table.add_row(*cells)
    return table


def _cells(noun: str, row: WorkerRow | ServerRow) -> dict[str, str]:
    since = _UNKNOWN if row.seconds is None else duration(row.seconds)
    return {noun: row.task, "address": row.address, "state": row.state, "since": since}


def _worker_cells(row: WorkerRow) -> dict[str, str]:
    return {
        "closures/s": _number(row.closures_per_second),
        "finished": _count(row.finished),
        "failed": _count(row.failed),
        "running": _count(row.running),
        "waiting": _count(row.waiting),
        "in/s": _size(row.bytes_in_per_second),
        "out/s": _size(row.bytes_out_per_second),
    }


def _server_cells(row: ServerRow) -> dict[str, str]:
    return {
        "updates/s": _number(row.updates_per_second),
        "updates": _count(row.updates),
        "variables": _count(row.variables),
        "held": _size(row.bytes_held),
        "staleness": _number(row.staleness),
        "reads/s": _number(row.reads_per_second),
        "in/s": _size(row.bytes_in_per_second),
        "out/s": _size(row.bytes_out_per_second),
    }


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
