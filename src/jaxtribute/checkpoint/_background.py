"""Checkpoints on their way to the disk while training goes on."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

_log = logging.getLogger("jaxtribute")

_lock = threading.Lock()
_running: dict[Path, list[Writing]] = {}  # by the directory the checkpoints are in


class Writing:
    """A checkpoint that is being written, in a thread that the program waits for before it ends.

    Args:
      path: the checkpoint.
      work: writes it.
    """

    def __init__(self, path: str | os.PathLike[str], work: Callable[[], None]) -> None:
        self.path = os.fspath(path)
        self._work = work
        self._error: Exception | None = None
        self._directory = _directory_of(path)
        self._thread = threading.Thread(
            target=self._run, name=f"checkpoint {Path(path).name}", daemon=False
        )
        with _lock:
            _running.setdefault(self._directory, []).append(self)
        self._thread.start()

    def wait(self) -> None:
        """Wait until it is complete.

        Raises:
          Exception: what went wrong.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error

    def join(self) -> None:
        """Wait until it is complete or has failed."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            # Raised by whoever waits; the program may end before anybody does.
            self._error = error
            _log.error("The checkpoint %r could not be saved: %s", self.path, error)
        finally:
            del self._work  # which has the values
            with _lock:
                own = _running[self._directory]
                own.remove(self)
                if not own:
                    del _running[self._directory]


def finish(directory: str | os.PathLike[str]) -> None:
    """Wait for everything that this process is writing to a directory of checkpoints."""
    with _lock:
        running = list(_running.get(Path(os.path.realpath(directory)), ()))
    for each in running:
        each.join()


def finish_beside(path: str | os.PathLike[str]) -> None:
    """Wait for what this process is writing next to a checkpoint, and for that itself."""
    finish(_directory_of(path))


def _directory_of(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.realpath(path)).parent
