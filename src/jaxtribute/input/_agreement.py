"""Workers that read different data go through equally many steps, whoever ends first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..data._background import State
from ..data._elements import nothing_like
from ..errors import AbortedError
from ._steps import Step, Steps

_GOES_ON, _ENDED, _FAILED = "goes on", "ended", "failed: "


class Peers(Protocol):
    """The other workers."""

    def exchange(self, report: str) -> Sequence[str]:
        """Send a short report to all workers, and return those of all, by worker."""
        ...


class AgreedSteps(Steps):
    """The steps of one worker, with empty ones while only others have something left.

    An error on one worker is raised on all of them, in the step in which it occurred.
    """

    def __init__(
        self, steps: Steps, peers: Peers, replicas: int, example: Callable[[], Any]
    ) -> None:
        self._steps = steps
        self._peers = peers
        self._replicas = replicas
        self._example = example

    def __next__(self) -> Step:
        step, error = None, None
        try:
            step = next(self._steps, None)
        except Exception as raised:
            error = raised
        own = _ENDED if step is None else _GOES_ON
        reports = self._peers.exchange(own if error is None else _FAILED + _text(error))
        if error is not None:
            raise error
        for worker, report in enumerate(reports):
            if report.startswith(_FAILED):
                raise AbortedError(
                    f"The input of worker {worker} failed, so no worker can go on: "
                    f"{report.removeprefix(_FAILED)}"
                )
        if _GOES_ON not in reports:
            raise StopIteration
        if step is not None:
            return step
        return Step(elements=(nothing_like(self._example()),) * self._replicas)

    def get_state(self) -> State:
        return self._steps.get_state()

    def set_state(self, state: State) -> None:
        self._steps.set_state(state)

    def close(self) -> None:
        self._steps.close()


def _text(error: Exception) -> str:
    notes = " ".join(getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {error} {notes}".strip()
