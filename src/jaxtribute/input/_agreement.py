"""Workers go through equally many steps, whoever ends first, and fail together."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from threading import Event
from typing import Any, Protocol

from ..data._background import State
from ..errors import AbortedError, InvalidArgumentError
from ._place import Pieces
from ._placed import PlacedSteps
from ._steps import Step

_GOES_ON = "goes on "  # followed by the fingerprint of a batch, or nothing
_ENDED = "ended "
_TYPES = "|"  # followed by what each replica gets
_CANNOT_GO_ON = "ended, and cannot go on without data: "
_FAILED = "failed: "


class Peers(Protocol):
    """The other workers."""

    def exchange(self, about: str, report: str, cancelled: Event) -> Sequence[str]:
        """Send a short report to all workers, and return those of all, by worker.

        Called from threads that read ahead, so it must not be a computation on the devices, and
        what workers ask must be told apart by what it is about.

        Raises:
          CancelledError: when `cancelled` is set before all have reported.
        """
        ...


class AgreedElements:
    """The elements of one worker, with empty ones while only others have something left.

    An error on one worker is raised on all of them, in the step in which it occurred.
    """

    def __init__(
        self,
        elements: PlacedSteps,
        peers: Peers,
        about: Callable[[], str],
        nothing: Callable[[], Step],
    ) -> None:
        self._elements = elements
        self._peers = peers
        self._new_name = about
        self._about = ""
        self._nothing = nothing
        self._asked = 0
        self._cancelled = Event()

    def begin(self) -> None:
        """Give what is asked from now on a name; called when the first element is asked for."""
        self._about = self._about or self._new_name()

    def __next__(self) -> Any:
        if self._asked and self._elements.known_to_all:
            return next(self._elements)
        own, pieces, error = self._read()
        self._asked += 1
        about = f"{self._about}/{self._asked}"
        reports = self._peers.exchange(about, own, self._cancelled)
        if error is not None and own.startswith(_FAILED):
            raise error
        _check("failed", _FAILED, reports)
        if not any(report.startswith(_GOES_ON) for report in reports):
            raise StopIteration
        _check_same_batches(reports)
        if error is not None:
            raise error
        _check("has nothing left and cannot make an empty element", _CANNOT_GO_ON, reports)
        if own.startswith(_ENDED):
            self._elements.count_empty()
        assert pieces is not None
        types = [json.loads(report.partition(_TYPES)[2]) for report in reports]
        _check_same_structure(types)
        return self._elements.place(pieces, types)

    def _read(self) -> tuple[str, Pieces | None, Exception | None]:
        try:
            pieces = self._elements.read()
            return _report(_GOES_ON + self._elements.fingerprint, pieces), pieces, None
        except StopIteration:
            pass
        except Exception as error:
            return _FAILED + _text(error), None, error
        try:
            pieces = self._elements.take_apart(self._nothing())
            return _report(_ENDED, pieces), pieces, None
        except Exception as error:  # it matters only if somebody goes on
            return _CANNOT_GO_ON + _text(error), None, error

    def get_state(self) -> State:
        """Return where the next element is found."""
        return self._elements.get_state()

    def set_state(self, state: State) -> None:
        """Go on from a state."""
        self._elements.set_state(state)

    def cancel(self) -> None:
        """Wait for the others no longer: this worker has left the pass."""
        self._cancelled.set()

    def close(self) -> None:
        """Release files and threads."""
        self._elements.close()


def _check(what: str, kind: str, reports: Sequence[str]) -> None:
    for worker, report in enumerate(reports):
        if report.startswith(kind):
            raise AbortedError(
                f"The input of worker {worker} {what}, so no worker can go on: "
                f"{report.removeprefix(kind)}"
            )


def _check_same_batches(reports: Sequence[str]) -> None:
    seen = {
        worker: report.removeprefix(_GOES_ON).partition(_TYPES)[0]
        for worker, report in enumerate(reports)
        if report.startswith(_GOES_ON)
    }
    other = next((worker for worker, batch in seen.items() if batch != seen[min(seen)]), None)
    if other is not None:
        raise InvalidArgumentError(
            f"Worker {min(seen)} and worker {other} read different batches, although each is to "
            "take its part of the same ones, so that examples would be lost and repeated. An order "
            "that each process draws by itself needs a seed, the same on all of them. If they are "
            "meant to read different data, use distribute_datasets_from_function."
        )


def _report(what: str, pieces: Pieces) -> str:
    return what + _TYPES + json.dumps(pieces.types())


def _check_same_structure(types: Sequence[Sequence[Any]]) -> None:
    """Refuse elements of which workers have another number of components, or others' types."""
    kinds = [[parts[0] and parts[0][1] for parts in worker] for worker in types]
    other = next((worker for worker, own in enumerate(kinds) if own != kinds[0]), None)
    if other is not None:
        raise InvalidArgumentError(
            f"The elements of worker 0 and worker {other} are built differently: their components "
            f"are of the types {kinds[0]} and {kinds[other]}. All workers have to read elements of "
            "the same structure and types."
        )


def _text(error: Exception) -> str:
    notes = " ".join(getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {error} {notes}".strip()
