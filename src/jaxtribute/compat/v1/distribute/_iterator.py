"""Iterators that are started by a call, and started again by the same call."""

from __future__ import annotations

from typing import Any

from ....errors import OutOfRangeError
from ....input import DistributedDataset, DistributedIterator
from ....tracing import leave_trace

__all__ = ["InputIterator"]


class InputIterator(DistributedIterator):
    """A `DistributedIterator` that can be started again.

    Made by `make_dataset_iterator` and `make_input_fn_iterator` of `jt.compat.v1` strategies.

    >>> strategy = jt.compat.v1.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> iterator = strategy.make_dataset_iterator(jt.data.Dataset.range(8).batch(4))
    >>> for _ in range(2):
    ...     _ = iterator.initialize()
    ...     print(strategy.experimental_local_results(iterator.get_next()))
    (Array([0, 1], dtype=int32), Array([2, 3], dtype=int32))
    (Array([0, 1], dtype=int32), Array([2, 3], dtype=int32))

    In a new iterator nothing has been read, so it can be used before `initialize` is called.
    """

    def __init__(self, dataset: DistributedDataset) -> None:
        self._is_new = True
        super().__init__(dataset)

    def read(self) -> Any:
        """Return the next element, wherever this is called; `get_next` is what users call."""
        self._is_new = False
        return super().read()

    def get_next(self) -> Any:
        """Return the next element.

        Raises:
          OutOfRangeError: at the end.
          ValueError: inside a replica, for the elements of all replicas.
        """
        try:
            return super().get_next()
        except OutOfRangeError:
            raise OutOfRangeError(
                "The iterator has no more elements. Call iterator.initialize() for the next pass, "
                "or `repeat` the dataset."
            ) from None

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on exactly after the element before which, or with which, a state was saved."""
        super().set_state(state)
        self._is_new = False

    def initialize(self) -> list[Any]:
        """Start a new pass over the dataset; what was read ahead is forgotten.

        All workers have to call it.

        Returns:
          The operations that a session has to run: none.
        """
        self.check_place("initialize")
        leave_trace()
        if not self._is_new:
            self.close()
            self.__init__(self._dataset)
        return []
