"""What a process tells the launcher that started it.

Reports are small JSON datagrams on the unix socket that `JAXTRIBUTE_STATUS_SOCKET` names. A
process without that variable has no listener and sends nothing. Sending never waits: a report that
finds the launcher busy is dropped, as the next one says more.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import threading
import time
from typing import Any

STATUS_SOCKET = "JAXTRIBUTE_STATUS_SOCKET"
RESTART_COUNT = "JAXTRIBUTE_RESTART_COUNT"
CLUSTER_KEY = "JAXTRIBUTE_CLUSTER_KEY"
TRAINING_ENDED = "JAXTRIBUTE_TRAINING_ENDED"
"""The path of a file that the launcher makes for an evaluator when training is over."""

EXIT_STUCK = 75
"""The exit code of a process that ends as a lost one keeps it in a collective (EX_TEMPFAIL)."""

EXIT_PREEMPTED = 143
"""The exit code of a process that was asked to end, and has saved what it needs to go on.

It is what shells make of SIGTERM, 128 plus 15, so that schedulers which start jobs again after one
know it. A process that SIGTERM has ended has no exit code, so the two can be told apart.
"""

EXIT_UNSAVED = 120
"""The exit code of a process of which a checkpoint could not be saved after all else was done.

It is Python's own for what goes wrong while it ends, such as writing the last of its output.
"""

_SECONDS_BETWEEN_STEPS = 0.1  # shown to people; converting a metric may wait for a device


class _Channel:
    """The way to one launcher."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._task = _own_task()
        self._socket: socket.socket | None = None
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sender.setblocking(False)
        try:
            sender.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):  # the launcher is gone
            sender.close()
            return
        self._socket = sender
        self._last_step_sent = -_SECONDS_BETWEEN_STEPS

    def send(self, fields: dict[str, Any]) -> None:
        if self._socket is None:
            return
        try:
            self._socket.send(json.dumps({"task": self._task, **fields}).encode())
        except BlockingIOError:  # the launcher has not yet read the reports before this one
            return
        except (FileNotFoundError, ConnectionError):  # it is gone, and does not come back
            self.close()

    def wants_step(self, last: bool) -> bool:
        """Tell whether the launcher should hear of this step; it always should of the last one."""
        now = time.monotonic()
        if self._socket is None or (
            not last and now - self._last_step_sent < _SECONDS_BETWEEN_STEPS
        ):
            return False
        self._last_step_sent = now
        return True

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


_lock = threading.Lock()
_channel: _Channel | None = None


def report(**fields: Any) -> None:
    """Tell the launcher, if there is one, what this process is doing.

    Args:
      **fields: `phase`, a word such as "compiling"; `step`, `total` and `metrics`. What is left
        out stays as it was last told.
    """
    with _lock:
        if (channel := _open_channel()) is not None:
            channel.send(fields)


def report_progress(step: int, total: int | None = None, **metrics: Any) -> None:
    """Show in the display of `jaxtribute launch` how far this process is.

    Costs next to nothing, and does nothing at all in a process that was not launched so. At most
    ten steps a second are sent, and always the last; only for these is a metric read.

    >>> for step in range(1, 4):
    ...     jt.train.report_progress(step, total=3, loss=1 / step)

    Args:
      step: how many steps are done.
      total: how many there will be, if that is known.
      **metrics: numbers to show beside it, such as `loss`; arrays of one number are read.

    Raises:
      TypeError: when a metric is sent and is no number.
    """
    with _lock:
        channel = _open_channel()
        if channel is None or not channel.wants_step(last=step == total):
            return
        numbers = {name: _number(name, value) for name, value in metrics.items()}
        channel.send(
            {
                "phase": "training",
                "step": int(step),
                "total": None if total is None else int(total),
                "metrics": numbers,
            }
        )


def _open_channel() -> _Channel | None:
    global _channel
    path = os.environ.get(STATUS_SOCKET)
    if _channel is not None and _channel.path != path:
        _channel.close()
        _channel = None
    if _channel is None and path:
        _channel = _Channel(path)
        atexit.register(_channel.close)
    return _channel


def _own_task() -> str:
    """Return the name of this process, from the TF_CONFIG that came with the socket."""
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {})
    return f"{task.get('type', 'worker')}:{task.get('index', 0)}"


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"The metric {name!r} must be a number, or an array of one number, got {value!r}."
        ) from None
