"""What the launcher was asked to do, and the files it keeps of it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ._display import Display

__all__ = ["Job"]


@dataclass(frozen=True)
class Job:
    """What the launcher was asked to do."""

    command: Sequence[str]
    """What comes after `python`."""
    workers: int
    servers: int
    """How many parameter servers; with one or more there is a chief as well."""
    devices_per_worker: int | None
    max_restarts: int | None
    """None if nothing was said about it."""
    log_dir: Path | None
    grace_seconds: float
    evaluator: bool = False
    """Whether there is one beside the other tasks."""

    def log_file(self, task: str) -> Path | None:
        """Return the file for what a task prints, if there is to be one."""
        return None if self.log_dir is None else self.log_dir / f"{task.replace(':', '-')}.log"

    def clear_logs(self, tasks: Sequence[str]) -> None:
        """Begin anew with each job; its restarts are appended."""
        for task in tasks:
            if (log := self.log_file(task)) is not None:
                log.write_bytes(b"")

    def say_start(self, display: Display, tasks: str) -> None:
        """Tell what is started, and what that replaces."""
        display.say(f"starting {tasks}: python {shlex.join(self.command)}")
        if "TF_CONFIG" in os.environ:
            display.say("TF_CONFIG is set here, and is replaced by that of the local cluster")
