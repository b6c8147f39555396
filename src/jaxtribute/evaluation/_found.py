"""Complete checkpoints in a directory, oldest first."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..checkpoint import _files

__all__ = ["Found", "find_checkpoints", "find_files", "in_order"]


@dataclass(frozen=True)
class Found:
    """A checkpoint that was complete when it was looked for."""

    path: str
    id: str
    """Another one if something else was saved to the same path later."""
    saved_at: float

    @property
    def name(self) -> str:
        """The last part of the path."""
        return os.path.basename(self.path)


def find_checkpoints(directory: Path) -> list[Found]:
    """Return what `jt.train.Checkpoint` has saved, in the order in which it was completed."""
    found: list[Found] = []
    latest = 0.0
    for known in _files.complete(directory):
        # The clock may go back, and their order does not.
        latest = max(latest, known.commit.saved_at)
        name = os.path.basename(known.path)
        found.append(Found(known.path, f"{name}:{known.commit.data}", latest))
    return found


def find_files(directory: Path, endings: tuple[str, ...]) -> list[Found]:
    """Return the files of some kinds, in the order in which they were written.

    Those whose names begin with a dot are still being written.
    """
    found: list[Found] = []
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:  # training has not begun
        return []
    for entry in entries:
        if entry.name.startswith(".") or not entry.name.endswith(endings):
            continue
        try:
            status = entry.stat()
        except FileNotFoundError:  # deleted meanwhile
            continue
        token = f"{status.st_mtime_ns:x}-{status.st_size:x}"
        found.append(Found(entry.path, f"{entry.name}:{token}", status.st_mtime_ns / 1e9))
    return in_order(found)


def in_order(found: Iterable[Found]) -> list[Found]:
    """Return checkpoints of several kinds, oldest first."""
    return sorted(found, key=lambda each: each.saved_at)
