"""The one-by-one reading of a dataset, and how it is started."""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch
from itertools import islice
from typing import Any

import grain
import numpy as np

from .. import _ops
from .._background import State
from .._tables import Table, table

__all__ = ["Item", "State", "Stream", "read", "stream"]

Item = tuple[int, Any]  # id, element


class Stream(grain.DatasetIterator[Item]):
    """The elements of a dataset, in order, each with its id."""

    def __init__(self, *inputs: Stream) -> None:
        super().__init__()
        self._inputs = inputs

    def take(self, number: int) -> list[Item]:
        """Return the next elements, fewer at the end; faster than one by one for some."""
        return list(islice(self, number))

    def close(self) -> None:
        for input in self._inputs:
            input.close()


def stream(op: _ops.Op, epoch: int) -> Stream:
    """Start reading a dataset."""
    by_position = table(op, epoch)
    return read(op, epoch) if by_position is None else TableStream(by_position)


@singledispatch
def read(op: _ops.Op, epoch: int) -> Stream:
    """Start reading an operation whose elements cannot be found by position."""
    raise TypeError(f"{type(op).__name__} cannot be read.")


class TableStream(Stream):
    """The elements of a table."""

    def __init__(self, of: Table) -> None:
        super().__init__()
        self._table = of
        self._position = 0
        self._fetched: Iterator[Item] = iter(())

    def __next__(self) -> Item:
        try:
            item = next(self._fetched, None)
            if item is None:
                item = next(self._fetch())
        except Exception:
            self._fetched = iter(())  # the elements after it are to be computed again
            raise
        self._position += 1
        return item

    def _fetch(self) -> Iterator[Item]:
        stop = self._position + self._table.elements_at_once
        if self._table.size is not None:
            stop = min(stop, self._table.size)
        if stop > self._position:
            rows = self._table.rows(np.arange(self._position, stop, dtype=np.int64))
            self._fetched = zip(rows.ids.tolist(), rows, strict=True)
        return self._fetched

    def close(self) -> None:
        self._fetched = iter(())  # with which the threads end that compute elements

    def get_state(self) -> State:
        return {"position": self._position}

    def set_state(self, state: State) -> None:
        self._position = state["position"]
        self._fetched = iter(())
