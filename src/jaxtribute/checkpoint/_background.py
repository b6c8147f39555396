"""Checkpoints on their way to the disk while training goes on.

What goes wrong is raised by whoever waits for it. If nobody does before the program ends, the
program says so then, and its exit code is not 0.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import DataLossError

_log = logging.getLogger("jaxtribute")

_lock = threading.Lock()
_running: dict[Path, list[Writing]] = {}  # by the directory the checkpoints are in
_failed: list[Writing] = []  # and nobody has been told by an exception


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
        if threading.main_thread().is_alive():
            atexit.unregister(_tell_of_failures)
            atexit.register(_tell_of_failures)
            self._thread.start()
        else:  # Python is ending, and waits for no thread any more
            self._run()
            _tell_of_failures()

    def wait(self) -> None:
        """Wait until it is complete.

        Raises:
          Exception: what went wrong.
        """
        self.join()
        if self._error is not None:
            with _lock:
                if self in _failed:
                    _failed.remove(self)
            raise self._error

    def failure(self) -> DataLossError:
        """Return what went wrong, with what it is about."""
        error = self._error
        failure = DataLossError(
            f"The checkpoint {self.path!r} could not be saved: {type(error).__name__}: {error}"
        )
        failure.__cause__ = error
        return failure

    def join(self) -> None:
        """Wait until it is complete or has failed."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            # Raised by whoever waits; the program may end before anybody does.
            self._error = error
            if error.__traceback__ is not None:
                traceback.clear_frames(error.__traceback__.tb_next)  # which have the values
            error.add_note(f"The checkpoint {self.path!r} could not be saved.")
            with _lock:
                _failed.append(self)
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


def finish_all() -> None:
    """Wait for everything that this process is writing.

    Raises:
      DataLossError: when a checkpoint could not be saved, and nobody has been told.
    """
    with _lock:
        running = [each for own in _running.values() for each in own]
    for each in running:
        each.join()
    with _lock:
        failed, _failed[:] = list(_failed), []
    if failed:
        raise failed[0].failure()


def finish_beside(path: str | os.PathLike[str]) -> None:
    """Wait for what this process is writing next to a checkpoint, and for that itself."""
    finish(_directory_of(path))


def _directory_of(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.realpath(path)).parent


# --- When the program ends -----------------------------------------------------------------


def _tell_of_failures() -> None:
    """Say which checkpoints could not be saved, and have the exit code say so as well.

    Python calls this when the threads that write have ended.
    """
    failed, _failed[:] = list(_failed), []
    if not failed:
        return
    if _exit.is_decided or _is_failing():  # and what is written last tells why
        for writing in failed:
            print(f"jaxtribute: {writing.failure()}", file=sys.stderr)
        return
    for writing in failed:
        traceback.print_exception(writing.failure())
    sys.stderr = _Failing(sys.stderr)


class _Exit:
    is_decided = False


_exit = _Exit()


def keep_exit_code() -> None:
    """Have the exit code be what the program is about to make it, also if a save fails."""
    _exit.is_decided = True


def _is_failing() -> bool:
    """Tell whether the program ends as an exception was not caught; in consoles none ends it."""
    is_console = hasattr(sys, "ps1") or sys.flags.interactive
    return hasattr(sys, "last_value") and not is_console


class _Failing:
    """Stands for `sys.stderr` when Python ends, and fails when Python flushes it.

    That is how a program that is over still gets another exit code: Python makes it 120 for all
    that goes wrong while it ends. To call `os._exit` instead would keep others from tidying up.
    """

    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def flush(self) -> None:
        self._stream.flush()
        try:
            sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        except ValueError:  # nobody has called this but Python itself
            raise OSError("A checkpoint could not be saved.") from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
