"""Elements by position, and how they are found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property, singledispatch
from typing import Any

import numpy as np

from .. import _ops
from .._elements import row, stack
from .._randomness import Ids

Positions = np.ndarray[Any, np.dtype[np.int64]]

ELEMENTS_AT_ONCE = 256


class Rows(ABC):
    """Some elements of a table, which may still have to be computed, and their ids."""

    def __init__(self, ids: Callable[[], Ids]) -> None:
        self._ids = ids

    @cached_property
    def ids(self) -> Ids:
        """The id of each element; often nobody asks."""
        return self._ids()

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Yield each element."""

    def stacked(self, first: int = 0) -> Any:
        """Return all elements as one batch; the first one's number is for messages."""
        return stack(list(self), first)


class StackedRows(Rows):
    """Elements that exist as a batch."""

    def __init__(self, ids: Callable[[], Ids], batch: Any, size: int) -> None:
        super().__init__(ids)
        self._batch = batch
        self._size = size

    def __iter__(self) -> Iterator[Any]:
        return (row(self._batch, index) for index in range(self._size))

    def stacked(self, first: int = 0) -> Any:
        return self._batch


class ComputedRows(Rows):
    """Elements that are computed when they are asked for."""

    def __init__(self, ids: Callable[[], Ids], elements: Callable[[], Iterator[Any]]) -> None:
        super().__init__(ids)
        self._elements = elements

    def __iter__(self) -> Iterator[Any]:
        return self._elements()


class Table(ABC):
    """The elements of one epoch, by position: 0 is the one that is delivered first."""

    size: int | None  # None: without end
    is_stored: bool = True  # an element is looked up, not computed
    elements_at_once: int = ELEMENTS_AT_ONCE  # what a reader of all elements should ask for

    @abstractmethod
    def rows(self, positions: Positions) -> Rows:
        """Return the elements at these positions."""


@singledispatch
def table(op: _ops.Op, epoch: int) -> Table | None:
    """Return the elements of a dataset by position, or None when they have to be streamed."""
    return None
