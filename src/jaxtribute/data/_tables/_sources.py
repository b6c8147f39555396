"""Arrays in memory, numbers, and names of files."""

from __future__ import annotations

import numpy as np

from .. import _ops
from .._randomness import Ids
from ._base import ELEMENTS_AT_ONCE, Positions, Rows, StackedRows, Table, table

BYTES_AT_ONCE = 1 << 20


class _SlicesTable(Table):
    def __init__(self, op: _ops.Slices) -> None:
        self._op = op
        self.size = op.size
        row_bytes = sum(column[:1].nbytes for column in op.columns)
        fitting = BYTES_AT_ONCE // max(row_bytes, 1)
        self.elements_at_once = max(1, min(ELEMENTS_AT_ONCE, fitting))

    def rows(self, positions: Positions) -> Rows:
        columns = [column.take(positions, axis=0) for column in self._op.columns]
        batch = self._op.structure.unflatten(columns)
        return StackedRows(lambda: positions.astype(np.uint64), batch, len(positions))


class _RangeTable(Table):
    def __init__(self, op: _ops.Range) -> None:
        self._op = op
        self.size = len(op.numbers)

    def rows(self, positions: Positions) -> Rows:
        numbers = self._op.numbers.start + positions * self._op.numbers.step
        batch = numbers.astype(self._op.dtype)
        return StackedRows(lambda: positions.astype(np.uint64), batch, len(positions))


@table.register
def _(op: _ops.Slices, epoch: int) -> Table:
    return _SlicesTable(op)


@table.register
def _(op: _ops.Range, epoch: int) -> Table:
    return _RangeTable(op)


class _FileNamesTable(Table):
    def __init__(self, op: _ops.FileNames) -> None:
        self._op = op
        self._names = np.empty(len(op.names), object)
        self._names[:] = op.names
        self.size = len(op.names)

    def rows(self, positions: Positions) -> Rows:
        def ids() -> Ids:
            return (self._op.first + positions * self._op.step).astype(np.uint64)

        return StackedRows(ids, self._names[positions], len(positions))


@table.register
def _(op: _ops.FileNames, epoch: int) -> Table:
    return _FileNamesTable(op)
