"""One pass over a dataset."""

from __future__ import annotations

from typing import Any

import grain

from . import _ops
from ._randomness import epoch_of_pass
from ._streams import State, stream


class DatasetIterator(grain.DatasetIterator[Any]):
    """The elements of a dataset, in order; an iterator of Grain, with `get_state` and `set_state`.

    Its state can be restored into an iterator of the same dataset, also in another process.
    """

    def __init__(self, op: _ops.Op, number: int) -> None:
        super().__init__()
        self._op = op
        self._start(number)

    def _start(self, number: int) -> None:
        self._number = number
        self._stream = stream(self._op, epoch_of_pass(number))

    def __next__(self) -> Any:
        return next(self._stream)[1]

    def get_state(self) -> State:
        """Return where the next element is found."""
        return {
            "pass": self._number,
            "seeds": _ops.unset_seeds(self._op),
            "stream": self._stream.get_state(),
        }

    def set_state(self, state: State) -> None:
        """Go on from a state."""
        self._stream.close()
        self._op = _ops.with_unset_seeds(self._op, state["seeds"])
        self._start(state["pass"])
        self._stream.set_state(state["stream"])

    def close(self) -> None:
        """Release files and threads."""
        self._stream.close()
