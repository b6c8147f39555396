"""Operations on one element at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import numpy as np

from .. import _ops
from .._randomness import mix
from .._user_functions import CALLS_A_THREAD, Mapped, map_in_threads
from ._base import ComputedRows, Positions, Rows, Table, table


class _MapTable(Table):
    is_stored = False

    def __init__(self, input: Table, op: _ops.Map, epoch: int) -> None:
        self._input = input
        self._mapped = Mapped(op.fn, None if op.seed is None else mix(op.seed, epoch))
        self.size = input.size
        self.elements_at_once = input.elements_at_once
        self._parallel_calls = op.parallel_calls
        if op.parallel_calls > 1:
            self.elements_at_once = CALLS_A_THREAD * op.parallel_calls

    def rows(self, positions: Positions) -> Rows:
        rows = self._input.rows(positions)

        def elements() -> Iterator[Any]:
            ids = rows.ids.tolist() if self._mapped.is_random else repeat(0)
            numbered = (positions.tolist(), ids, rows)
            if self._parallel_calls > 1:
                return map_in_threads(self._mapped, self._parallel_calls, *numbered)
            return self._mapped.each(*numbered)

        return ComputedRows(lambda: rows.ids, elements)


@table.register
def _(op: _ops.Map, epoch: int) -> Table | None:
    input = table(op.input, epoch)
    return input and _MapTable(input, op, epoch)


class _EnumerateTable(Table):
    def __init__(self, input: Table, start: int) -> None:
        self._input = input
        self._start = start
        self.size = input.size
        self.is_stored = input.is_stored
        self.elements_at_once = input.elements_at_once

    def rows(self, positions: Positions) -> Rows:
        rows = self._input.rows(positions)
        return ComputedRows(
            lambda: rows.ids, lambda: zip(positions + self._start, rows, strict=True)
        )


@table.register
def _(op: _ops.Enumerate, epoch: int) -> Table | None:
    input = table(op.input, epoch)
    return input and _EnumerateTable(input, op.start)


class _CacheTable(Table):
    """Computes each element once, for all epochs and iterators."""

    def __init__(self, input: Table, store: _ops.Store) -> None:
        self._input = input
        self._store = store
        self.size = input.size
        self.elements_at_once = input.elements_at_once

    def rows(self, positions: Positions) -> Rows:
        return _CachedRows(positions, self._input, self._store)


class _CachedRows(Rows):
    def __init__(self, positions: Positions, input: Table, store: _ops.Store) -> None:
        super().__init__(lambda: input.rows(positions).ids)
        self._positions = positions
        self._input = input
        self._store = store

    def __iter__(self) -> Iterator[Any]:
        for position in self._positions.tolist():
            with self._store.lock:
                if position not in self._store:
                    rows = self._input.rows(np.array([position]))
                    (element,) = rows
                    self._store.put(position, int(rows.ids[0]), element)
                _, element = self._store.get(position)
            yield element


@table.register
def _(op: _ops.Cache, epoch: int) -> Table | None:
    input = table(op.input, 0)  # the elements of all epochs are those of one
    if input is None or op.filename:
        return None
    return input if input.is_stored else _CacheTable(input, op.store)


@table.register
def _(op: _ops.Prefetch, epoch: int) -> Table | None:
    input = table(op.input, epoch)
    return input if input is not None and input.is_stored else None  # else it needs its thread


@table.register
def _(op: _ops.WithOptions, epoch: int) -> Table | None:
    return table(op.input, epoch)
