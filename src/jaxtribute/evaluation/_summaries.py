"""Results as TensorBoard reads them.

An event file consists of records, each a message with the time, the step and values. tensorboardX
knows the messages and the form of a record; its own writer is not used, as that leaves a thread.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

from ._results import Result

__all__ = ["Summaries"]


class Summaries:
    """Writes the numbers of results to an event file, if tensorboardX is installed.

    Args:
      directory: where; the file is made with the first result.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: Any = None
        try:
            from tensorboardX import RecordWriter  # imported here, as it is optional
        except ImportError:
            RecordWriter = None
        self._writer_of = RecordWriter

    @property
    def missing(self) -> str | None:
        """What to tell the user if no summaries are written."""
        if self._writer_of is not None:
            return None
        return 'no summaries for TensorBoard: for these, pip install "jaxtribute[tensorboard]"'

    def write(self, result: Result) -> None:
        """Write the numbers of a result, at its step."""
        if self._writer_of is None:
            return
        from tensorboardX.proto import event_pb2, summary_pb2

        # Made from their definitions when they are imported, so that their types are not known.
        Event: Any = vars(event_pb2)["Event"]
        Summary: Any = vars(summary_pb2)["Summary"]
        if self._writer is None:
            # The name by which TensorBoard knows event files, each process's its own.
            own = f"{int(time.time()):010}.{socket.gethostname()}.{os.getpid()}"
            self._writer = self._writer_of(str(self._directory / f"events.out.tfevents.{own}"))
            first = Event(wall_time=time.time(), file_version="brain.Event:2")
            self._writer.write(first.SerializeToString())
        values = [
            Summary.Value(tag=name, simple_value=value) for name, value in result.metrics.items()
        ]
        event = Event(wall_time=result.time, step=result.step, summary=Summary(value=values))
        self._writer.write(event.SerializeToString())
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
