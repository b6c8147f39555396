"""One pass over a dataset."""

from __future__ import annotations

from collections import deque
from typing import Any

import grain

from ..tracing import Feeder
from . import _ops
from ._background import State
from ._element_spec import element_spec
from ._passes import Passes
from ._randomness import epoch_of_pass
from ._states import check_is_of, check_is_state, refusing_other_states
from ._streams import Stream, stream


class DatasetIterator(Feeder, grain.DatasetIterator[Any]):
    """The elements of a dataset, in order; an iterator of Grain, with `get_state` and `set_state`.

    Its state can be restored into an iterator of the same dataset, also in another process. An
    error is raised again when asked again, so that no element is left out unnoticed.
    """

    def __init__(self, op: _ops.Op, passes: Passes) -> None:
        self._stream: Stream | None = None  # until it is known that the dataset can be read
        super().__init__()
        self._op = op
        self._passes = passes
        self._unread: deque[tuple[Any, State]] = deque()  # elements, and the states before them
        self._error: Exception | None = None
        self._number = passes.begin()
        self._stream = stream(op, epoch_of_pass(self._number))

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
        try:
            return next(self._stream)[1]
        except StopIteration:
            raise
        except Exception as error:
            self._error = error
            raise

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
            "dataset": _ops.fingerprint(self._op),
            "pass": self._number,
            "seeds": _ops.unset_seeds(self._op),
            "stream": self.position,
        }

    def set_state(self, state: State) -> None:
        """Go on from a state.

        Raises:
          InvalidArgumentError: when it is not a state of this dataset.
        """
        check_is_state(state)
        check_is_of(state, _ops.fingerprint(self._op))
        op = _ops.with_unset_seeds(self._op, state["seeds"])
        restored = stream(op, epoch_of_pass(state["pass"]))
        with refusing_other_states():
            restored.set_state(state["stream"])
        self.close()
        self._op, self._stream, self._number = op, restored, state["pass"]
        self._passes.go_on_with(self._number)
        self._unread.clear()
        self._error = None

    def close(self) -> None:
        """Release files and threads."""
        if self._stream is not None:
            self._stream.close()
