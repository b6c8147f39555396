"""What parameter servers write to checkpoints and read from them, all at the same time."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import ps
from .._array_files import Checksums, DamagedArray, Stored
from ..errors import AbortedError, FailedPreconditionError
from ._variable import RemoteVariable

_ASK_AGAIN = 0.01  # seconds


def place_of(variable: RemoteVariable) -> str:
    """Return where in a checkpoint the server of a variable writes it."""
    return f"ps-{variable.described.task}"


class _Job:
    """Something servers do with files, each in a thread of its own."""

    def __init__(self, session: Any, what: str) -> None:
        self._session = session
        self._what = what
        self._name = secrets.token_hex(8)
        self._tasks: list[int] = []

    def _begin(self, requests: Mapping[int, Any]) -> None:
        self._tasks = list(requests)
        self._ask(requests)

    def _ask(self, requests: Mapping[int, Any]) -> dict[int, Any]:
        asked = {task: (message, ()) for task, message in requests.items()}
        return {t: body for t, (body, _) in self._session.ask(asked, self._what).items()}

    def wait(self) -> None:
        """Wait until all servers are done, also if one has failed: files may be deleted then.

        Raises:
          DamagedArray: when what one of them reads is damaged.
          FailedPreconditionError: when one cannot do it.
          AbortedError: when one was started again meanwhile.
          PSUnavailableError: when one is lost.
        """
        self._wait()

    def _wait(self) -> dict[int, ps.Files]:
        """Wait, and return what each server said at the end."""
        waiting = set(self._tasks)
        done: dict[int, ps.Files] = {}
        failure: Exception | None = None
        while waiting:
            question = ps.AskFiles(self._session.origin, self._name)
            for task, files in self._ask(dict.fromkeys(waiting, question)).items():
                failure = failure or _failure(task, files)
                if files.is_done:
                    waiting.discard(task)
                    done[task] = files
            if waiting:
                time.sleep(_ASK_AGAIN)
        if failure is not None:
            raise failure
        return done


def _failure(task: int, files: ps.Files) -> Exception | None:
    if files.failure is None:
        return None
    if files.is_lost:
        return AbortedError(
            f"ps:{task} was started again before it was done with its part of a checkpoint."
        )
    kind = DamagedArray if files.is_damage else FailedPreconditionError
    return kind(f"ps:{task}: {files.failure}")


class Saving(_Job):
    """Variables on their way from servers to the disk; what they hold is taken at once.

    Args:
      session: the way to the servers.
      directory: in which each server makes a directory of its own.
      parts: the names of arrays, the first row of each part, and the variables that hold them.
    """

    def __init__(
        self, session: Any, directory: Path, parts: Sequence[tuple[str, int, RemoteVariable]]
    ) -> None:
        super().__init__(session, "a checkpoint to be written")
        own: dict[int, list[tuple[str, int, RemoteVariable]]] = {}
        for part in parts:
            own.setdefault(part[2].described.task, []).append(part)
        self._parts = own
        self.checksums: dict[tuple[str, int], Checksums] = {}
        """Those of all parts, by name and first row, once they are written."""
        self._places = {task: directory.absolute() / place_of(own[task][0][2]) for task in own}
        self._begin(
            {
                task: ps.SaveArrays(
                    session.origin,
                    self._name,
                    str(self._places[task]),
                    [ps.SavedArray(v.number, name, start) for name, start, v in own[task]],
                )
                for task in own
            }
        )

    def wait(self) -> None:
        """Wait until all servers have written; else as for other jobs."""
        for task, files in self._wait().items():
            parts = zip(self._parts[task], files.checksums, strict=True)
            self.checksums |= {(name, start): sums for (name, start, _), sums in parts}
        for task, place in self._places.items():
            if not place.is_dir():
                raise FailedPreconditionError(
                    f"ps:{task} has written to {place}, and this process does not see it. The "
                    "directory of checkpoints has to be on a file system that parameter servers "
                    "and the coordinator share."
                )


class Loading(_Job):
    """Values on their way from the disk to variables of servers, which change at the end.

    Args:
      session: the way to the servers.
      directory: in which the files are.
      arrays: variables, and what is to become their value.
    """

    def __init__(
        self, session: Any, directory: Path, arrays: Sequence[tuple[RemoteVariable, Stored]]
    ) -> None:
        super().__init__(session, "a checkpoint to be read")
        own: dict[int, list[ps.LoadedArray]] = {}
        for variable, stored in arrays:
            loaded = ps.LoadedArray(variable.number, stored)
            own.setdefault(variable.described.task, []).append(loaded)
        self._begin(
            {
                task: ps.LoadArrays(session.origin, self._name, str(directory.absolute()), arrays)
                for task, arrays in own.items()
            }
        )

    def end(self, is_used: bool) -> None:
        """Have variables take the values that all servers have read, or have these forgotten.

        Raises:
          AbortedError: when a server was started again, and does not have them.
        """
        message = ps.EndLoading(self._session.origin, self._name, is_used)
        answers = self._ask(dict.fromkeys(self._tasks, message))
        self._session.bump_epoch()
        if not is_used:
            return
        for task, files in answers.items():
            if files.is_lost:
                raise AbortedError(
                    f"ps:{task} was started again before it took the values of a checkpoint, which "
                    "other variables have by now. Restore it once more."
                )
