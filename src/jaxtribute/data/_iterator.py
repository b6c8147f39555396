"""One pass over a dataset."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import grain

from ..tracing import Feeder
from . import _ops
from ._background import Resumable, State
from ._element_spec import element_spec
from ._passes import Passes
from ._randomness import epoch_of_pass
from ._states import (
    check_is_of,
    check_is_state,
    divided_as,
    open_divided,
    refuse_of_function,
    refusing_other_states,
    whole_position,
)
from ._streams import Item, stream

_KEPT_EVERY = 64  # elements, so that few are read again after an error


class DatasetIterator(Feeder, grain.DatasetIterator[Any]):
    """The elements of a dataset, in order; an iterator of Grain, with `get_state` and `set_state`.

    Its state can be restored into an iterator of the same dataset, also in another process, and
    into one of the dataset distributed, and the other way round. An error is raised again when
    asked again, so that no element is left out unnoticed.
    """

    def __init__(self, op: _ops.Op, passes: Passes, go_on_with: Callable[[_ops.Op], None]) -> None:
        # None until it is known that the dataset can be read.
        self._stream: Resumable[Item] | None = None
        super().__init__()
        self._op = op
        self._passes = passes
        self._go_on_with = go_on_with  # tells whoever begins the passes after this one
        self._unread: deque[tuple[Any, State]] = deque()  # elements, and the states before them
        self._error: Exception | None = None
        self._number = passes.begin()
        self._divided: State | None = None  # how workers divided this pass, which began there
        self._begin(stream(op, epoch_of_pass(self._number)), 0)

    def _begin(self, opened: Resumable[Item], done: int) -> None:
        self.close()
        self._stream, self._done = opened, done  # elements before the next one of the stream
        self._kept: State | None = None  # a position from which the present one is found again
        self._is_amid = False  # an operation has taken elements for one that it did not deliver

    @property
    def element_spec(self) -> Any:
        """The structure of the elements; see `Dataset.element_spec`."""
        return element_spec(self._op)

    def read(self) -> Any:
        """Return the next element, wherever this is called; `next` is what users call."""
        if self._unread:
            return self._unread.popleft()[0]
        if self._error is not None:
            raise self._error
        assert self._stream is not None
        if self._kept is None or self._done - self._kept["steps"] >= _KEPT_EVERY:
            self._kept = self.position
        try:
            _, element = next(self._stream)
        except StopIteration:
            raise
        except Exception as error:
            self._error = error
            self._is_amid = True
            raise
        self._done += 1
        return element

    def unread(self, element: Any, before: State) -> None:
        """Put back the element that was read last, before which the position was `before`."""
        self._unread.appendleft((element, before))

    @property
    def position(self) -> State:
        """Where the next element is found."""
        if self._unread:
            return self._unread[0][1]
        if self._is_amid:
            self._go_back()
        assert self._stream is not None
        return {"stream": self._stream.get_state(), "steps": self._done}

    def _go_back(self) -> None:
        """Return to where the element begins that could not be read."""
        assert self._kept is not None
        opened, done = _open(self._op, self._state_at(self._kept)), self._done
        for _ in range(done - self._kept["steps"]):
            next(opened, None)
        self._begin(opened, done)

    def get_state(self) -> State:
        """Return where the next element is found, as a dict that can be written as JSON."""
        return self._state_at(self.position)

    def _state_at(self, position: State) -> State:
        if self._divided is not None:
            position = {
                **self._divided,
                "steps": position["steps"],
                "pipeline": position["stream"],
            }
        return {
            "dataset": _ops.fingerprint(self._op),
            "pass": self._number,
            "seeds": _ops.unset_seeds(self._op),
            **position,
        }

    def set_state(self, state: State) -> None:
        """Go on from a state, also from one of the same dataset distributed.

        The elements that follow are then the global batches that would have followed there.

        Raises:
          InvalidArgumentError: when it is not a state of this dataset.
        """
        check_is_state(state)
        refuse_of_function(state)
        check_is_of(state, _ops.fingerprint(self._op))
        op = _ops.with_unset_seeds(self._op, state["seeds"])
        with refusing_other_states():
            position = whole_position(state)
            self._begin(_open(op, state), (position or state)["steps"])
        self._op, self._number = op, state["pass"]
        self._divided = divided_as(state) if position is None else None
        self._passes.go_on_with(self._number)
        self._go_on_with(op)
        self._unread.clear()
        self._error = None

    def close(self) -> None:
        """Release files and threads."""
        if self._stream is not None:
            self._stream.close()


def _open(op: _ops.Op, state: State) -> Resumable[Item]:
    """Start reading from a state."""
    position = whole_position(state)
    if position is None:
        return open_divided(op, state)
    opened = stream(op, epoch_of_pass(state["pass"]))
    if position["stream"] is not None:
        opened.set_state(position["stream"])
    return opened
