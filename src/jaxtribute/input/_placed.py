"""The elements a worker's replicas get, one after the other, on their devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..data._background import State
from ._place import Pieces, Placement
from ._steps import Step, Steps


class PlacedSteps:
    """Steps, opened when the first is asked for, and brought to the devices."""

    def __init__(
        self,
        open_steps: Callable[[], Steps],
        placement: Placement,
        done: int = 0,
        state: State | None = None,
    ) -> None:
        self._open_steps = open_steps
        self._placement = placement
        self._done = done
        self._state = state  # of the steps, from which to go on; None from the start
        self._steps: Steps | None = None

    def open(self) -> Steps:
        """Start reading, if not yet done."""
        if self._steps is None:
            self._steps = self._open_steps()
            if self._state is not None:
                self._steps.set_state(self._state)
        return self._steps

    def begin(self) -> None:
        """Take note that the first element is asked for."""

    def __next__(self) -> Any:
        element = self._placement(next(self.open()), self._done)
        self._done += 1
        return element

    def read(self) -> Pieces:
        """Return the next element before it is brought to the devices."""
        pieces = self.take_apart(next(self.open()))
        self._done += 1
        return pieces

    def take_apart(self, step: Step) -> Pieces:
        """Return the element of a step before it is brought to the devices."""
        return self._placement.take_apart(step, self._done)

    def place(self, pieces: Pieces, types: Sequence[Sequence[Any]]) -> Any:
        """Bring an element to the devices, knowing what all workers have."""
        return self._placement.place(pieces, types)

    @property
    def known_to_all(self) -> bool:
        """Whether each worker knows what all of them get in each step."""
        return self._steps is not None and self._steps.known_to_all

    @property
    def fingerprint(self) -> str:
        """That of the batch the last step was cut from, where workers are to compare it."""
        return "" if self._steps is None else self._steps.fingerprint

    def count_empty(self) -> None:
        """Take note that a step without data of this worker was delivered."""
        self._done += 1

    def get_state(self) -> State:
        """Return where the next step is found."""
        steps = self._state if self._steps is None else self._steps.get_state()
        return {"steps": steps, "number": self._done}

    def set_state(self, state: State) -> None:
        """Go on from a state."""
        self.close()
        self._state, self._done = state["steps"], state["number"]

    def close(self) -> None:
        """Release files and threads."""
        if self._steps is not None:
            self._steps.close()
            self._state, self._steps = self._steps.get_state(), None
