"""One pass over a dataset."""

from __future__ import annotations

from collections import deque
from typing import Any

import grain

from ..tracing import Feeder
from . import _ops
from ._background import State
from ._element_spec import element_spec
from ._randomness import epoch_of_pass
from ._streams import Stream, stream


class DatasetIterator(Feeder, grain.DatasetIterator[Any]):
    """The elements of a dataset, in order; an iterator of Grain, with `get_state` and `set_state`.

    Its state can be restored into an iterator of the same dataset, also in another process.
    """

    def __init__(self, op: _ops.Op, number: int) -> None:
        self._stream: Stream | None = None  # until it is known that the dataset can be read
        super().__init__()
        self._op = op
        self._unread: deque[tuple[Any, State]] = deque()  # elements, and the states before them
        self._start(number)

    def _start(self, number: int) -> Stream:
        self._number = number
        self._stream = stream(self._op, epoch_of_pass(number))
        return self._stream

    @property
    def element_spec(self) -> Any:
        """The structure of the elements; see `Dataset.element_spec`."""
        return element_spec(self._op)

    def read(self) -> Any:
        """Return the next element, wherever this is called; `next` is what users call."""
        if self._unread:
            return self._unread.popleft()[0]
        assert self._stream is not None
        return next(self._stream)[1]

    def unread(self, element: Any, before: State) -> None:
        """Put back the element that was read last, before which the position was `before`."""
        self._unread.appendleft((element, before))

    @property
    def position(self) -> State:
        """Where the next element is found."""
        assert self._stream is not None
        return self._unread[0][1] if self._unread else self._stream.get_state()

    def get_state(self) -> State:
        """Return where the next element is found, as a dict that can be written as JSON."""
        return {
            "pass": self._number,
            "seeds": _ops.unset_seeds(self._op),
            "stream": self.position,
        }

    def set_state(self, state: State) -> None:
        """Go on from a state."""
        self.close()
        self._unread.clear()
        self._op = _ops.with_unset_seeds(self._op, state["seeds"])
        self._start(state["pass"]).set_state(state["stream"])

    def close(self) -> None:
        """Release files and threads."""
        if self._stream is not None:
            self._stream.close()
