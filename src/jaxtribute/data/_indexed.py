"""Datasets whose elements can be fetched by position, many at once.

Everything that starts from arrays in memory stays here as long as positions can be computed:
shuffling, repeating and cutting work on positions, and a batch is one indexing of the arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, singledispatch
from itertools import repeat
from typing import Any

import numpy as np

from . import _ops
from ._elements import Array, concatenate, pick, row, stack
from ._randomness import Ids, mix, mix_each, window_order
from ._user_functions import CALLS_A_THREAD, Mapped, map_in_threads

Positions = np.ndarray[Any, np.dtype[np.int64]]

_ELEMENTS_AT_ONCE = 256
_BYTES_AT_ONCE = 1 << 20


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


class Table(ABC):
    """The elements of one epoch, by position: 0 is the one that is delivered first."""

    size: int | None  # None: without end
    is_stored: bool = True  # an element is looked up, not computed
    elements_at_once: int = _ELEMENTS_AT_ONCE  # what a reader of all elements should ask for

    @abstractmethod
    def rows(self, positions: Positions) -> Rows:
        """Return the elements at these positions."""


@singledispatch
def table(op: _ops.Op, epoch: int) -> Table | None:
    """Return the elements of a dataset by position, or None when they have to be streamed."""
    return None


# --- Sources ---------------------------------------------------------------------------------


class _StackedRows(Rows):
    """Elements that exist as a batch."""

    def __init__(self, ids: Callable[[], Ids], batch: Any, size: int) -> None:
        super().__init__(ids)
        self._batch = batch
        self._size = size

    def __iter__(self) -> Iterator[Any]:
        return (row(self._batch, index) for index in range(self._size))

    def stacked(self, first: int = 0) -> Any:
        return self._batch


class _SlicesTable(Table):
    def __init__(self, op: _ops.Slices) -> None:
        self._op = op
        self.size = op.size
        row_bytes = sum(column[:1].nbytes for column in op.columns)
        fitting = _BYTES_AT_ONCE // max(row_bytes, 1)
        self.elements_at_once = max(1, min(_ELEMENTS_AT_ONCE, fitting))

    def rows(self, positions: Positions) -> Rows:
        columns = [column.take(positions, axis=0) for column in self._op.columns]
        batch = self._op.structure.unflatten(columns)
        return _StackedRows(lambda: positions.astype(np.uint64), batch, len(positions))


class _RangeTable(Table):
    def __init__(self, op: _ops.Range) -> None:
        self._op = op
        self.size = len(op.numbers)

    def rows(self, positions: Positions) -> Rows:
        numbers = self._op.numbers.start + positions * self._op.numbers.step
        batch = numbers.astype(self._op.dtype)
        return _StackedRows(lambda: positions.astype(np.uint64), batch, len(positions))


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

        return _StackedRows(ids, self._names[positions], len(positions))


@table.register
def _(op: _ops.FileNames, epoch: int) -> Table:
    return _FileNamesTable(op)


# --- Element by element ----------------------------------------------------------------------


class _ComputedRows(Rows):
    """Elements that are computed when they are asked for."""

    def __init__(self, ids: Callable[[], Ids], elements: Callable[[], Iterator[Any]]) -> None:
        super().__init__(ids)
        self._elements = elements

    def __iter__(self) -> Iterator[Any]:
        return self._elements()


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

        return _ComputedRows(lambda: rows.ids, elements)


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
        return _ComputedRows(
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


# --- Which elements, and in which order ------------------------------------------------------


class _ViewTable(Table):
    """Elements of another table, found at other positions."""

    def __init__(
        self, input: Table, size: int | None, locate: Callable[[Positions], Positions]
    ) -> None:
        self._input = input
        self._locate = locate
        self.size = size
        self.is_stored = input.is_stored
        self.elements_at_once = input.elements_at_once

    def rows(self, positions: Positions) -> Rows:
        return self._input.rows(self._locate(positions))


@table.register
def _(op: _ops.Take, epoch: int) -> Table | None:
    input = table(op.input, epoch)
    if input is None:
        return None
    size = op.count if input.size is None else min(op.count, input.size)
    return _ViewTable(input, size, lambda positions: positions)


@table.register
def _(op: _ops.Skip, epoch: int) -> Table | None:
    input = table(op.input, epoch)
    if input is None:
        return None
    size = None if input.size is None else max(0, input.size - op.count)
    return _ViewTable(input, size, lambda positions: positions + op.count)


@table.register
def _(op: _ops.Shard, epoch: int) -> Table | None:
    _ops.check_shard(op)
    input = table(op.input, epoch)
    if input is None:
        return None
    size = None if input.size is None else len(range(op.index, input.size, op.num_shards))
    return _ViewTable(input, size, lambda positions: positions * op.num_shards + op.index)


@table.register
def _(op: _ops.Shuffle, epoch: int) -> Table | None:
    input = table(op.input, epoch)
    if input is None:
        return None
    size = input.size
    window = op.buffer_size if size is None else min(op.buffer_size, size)
    seed = mix(op.seed, epoch) if op.reshuffle else op.seed

    @lru_cache(maxsize=2)  # a batch may reach into the next window
    def order(number: int) -> Positions:
        start = number * window
        return start + window_order(
            seed, number, window if size is None else min(window, size - start)
        )

    def locate(positions: Positions) -> Positions:
        if window == size:
            return order(0)[positions]
        numbers = positions // max(window, 1)
        located = np.empty_like(positions)
        for number in np.unique(numbers).tolist():
            own = numbers == number
            located[own] = order(number)[positions[own] - number * window]
        return located

    return _ViewTable(input, size, locate)


# --- Several elements, several inputs --------------------------------------------------------


class _JoinedRows(Rows):
    """Elements of several rows, in an order that takes from each its first remaining one."""

    def __init__(self, parts: Sequence[Rows], part_of_each: Array) -> None:
        super().__init__(lambda: np.concatenate([part.ids for part in parts])[self._order])
        self._parts = parts
        self._part_of_each = part_of_each
        by_part = np.argsort(part_of_each, kind="stable")
        self._order = np.argsort(by_part, kind="stable")

    def __iter__(self) -> Iterator[Any]:
        iterators = [iter(part) for part in self._parts]
        return (next(iterators[part]) for part in self._part_of_each.tolist())

    def stacked(self, first: int = 0) -> Any:
        joined = concatenate([part.stacked(first) for part in self._parts], first)
        in_order = bool((self._order[:-1] < self._order[1:]).all())
        return joined if in_order else pick(joined, self._order)


class _RelabelledRows(Rows):
    """Elements under other ids, to tell them from those of the input they are joined with."""

    def __init__(self, rows: Rows, label: int) -> None:
        super().__init__(lambda: mix_each(rows.ids, label))
        self._rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def stacked(self, first: int = 0) -> Any:
        return self._rows.stacked(first)


def _joined(
    positions: Positions, part_of_each: Array, rows_of: Callable[[int, Positions], Rows]
) -> Rows:
    """Return the rows of positions that lie in different parts."""
    first = int(part_of_each[0]) if len(part_of_each) else 0
    if bool((part_of_each == first).all()):
        return rows_of(first, positions)
    parts, indices = np.unique(part_of_each, return_inverse=True)
    rows = [rows_of(part, positions[part_of_each == part]) for part in parts.tolist()]
    return _JoinedRows(rows, indices)


class _RepeatTable(Table):
    def __init__(self, first: Table, count: int | None, of_repetition: Callable[[int], Table]):
        assert first.size is not None
        self._length = first.size
        self._of_repetition = lru_cache(maxsize=2)(of_repetition)
        self.size = 0 if not first.size else None if count is None else count * first.size
        self.is_stored = first.is_stored
        self.elements_at_once = first.elements_at_once

    def rows(self, positions: Positions) -> Rows:
        length = max(self._length, 1)

        def of_repetition(repetition: int, positions: Positions) -> Rows:
            rows = self._of_repetition(repetition).rows(positions - repetition * length)
            return _RelabelledRows(rows, repetition)

        return _joined(positions, positions // length, of_repetition)


@table.register
def _(op: _ops.Repeat, epoch: int) -> Table | None:
    def of_repetition(repetition: int) -> Any:
        return table(op.input, mix(epoch, repetition))

    first = of_repetition(0)
    if first is not None and op.count == 0:
        return _ViewTable(first, 0, lambda positions: positions)
    if first is None or first.size is None:  # what has no end is not repeated
        return first
    return _RepeatTable(first, op.count, of_repetition)


class _ConcatenateTable(Table):
    def __init__(self, parts: Sequence[Table]) -> None:
        self._parts = parts
        sizes = [part.size for part in parts]
        finite = [size for size in sizes if size is not None]
        self._starts = np.cumsum([0, *finite])
        self.size = None if len(finite) < len(sizes) else sum(finite)
        self.is_stored = all(part.is_stored for part in parts)
        self.elements_at_once = min(part.elements_at_once for part in parts)

    def rows(self, positions: Positions) -> Rows:
        def of_part(part: int, positions: Positions) -> Rows:
            return _RelabelledRows(self._parts[part].rows(positions - self._starts[part]), part)

        last = len(self._parts) - 1
        parts = np.searchsorted(self._starts, positions, side="right") - 1
        return _joined(positions, np.minimum(parts, last), of_part)


@table.register
def _(op: _ops.Concatenate, epoch: int) -> Table | None:
    parts: list[Table] = []
    for number, part in enumerate(op.parts):
        found = table(part, mix(epoch, number))
        if found is None:
            return None
        parts.append(found)
        if found.size is None:  # what follows is never reached
            break
    return _ConcatenateTable(parts)


class _ZipTable(Table):
    def __init__(self, parts: Sequence[Table], op: _ops.Zip) -> None:
        self._parts = parts
        self._structure = op.structure
        self.size = min((p.size for p in parts if p.size is not None), default=None)
        self.is_stored = all(part.is_stored for part in parts)
        self.elements_at_once = min(part.elements_at_once for part in parts)

    def rows(self, positions: Positions) -> Rows:
        rows = [part.rows(positions) for part in self._parts]
        if all(isinstance(part, _StackedRows) for part in rows):
            batch = self._structure.unflatten([part.stacked() for part in rows])
            return _StackedRows(lambda: rows[0].ids, batch, len(positions))
        return _ComputedRows(
            lambda: rows[0].ids, lambda: map(self._structure.unflatten, zip(*rows, strict=True))
        )


@table.register
def _(op: _ops.Zip, epoch: int) -> Table | None:
    parts = [table(part, epoch) for part in op.parts]
    known = [part for part in parts if part is not None]
    return _ZipTable(known, op) if len(known) == len(parts) else None


class BatchTable(Table):
    """Batches, of which parts can be fetched alone."""

    elements_at_once = 1

    def __init__(self, input: Table, op: _ops.Batch) -> None:
        self._input = input
        self.batch_size = op.size
        if input.size is None:
            self.size = None
        else:
            self.size = input.size // op.size if op.drop_remainder else -(-input.size // op.size)
        self.is_stored = input.is_stored

    def size_of(self, position: int) -> int:
        """Return how many examples one batch holds."""
        if self._input.size is None:
            return self.batch_size
        return min(self.batch_size, self._input.size - position * self.batch_size)

    def part(self, position: int, indices: Positions) -> Any:
        """Return some examples of one batch, as a batch."""
        start = position * self.batch_size
        return self._input.rows(start + indices).stacked(start + int(indices[0]))

    def rows(self, positions: Positions) -> Rows:
        batches = [self._whole(position) for position in positions.tolist()]
        starts = positions * self.batch_size
        return _ComputedRows(
            lambda: np.array([rows.ids[0] for rows in batches], np.uint64),
            lambda: (rows.stacked(i) for i, rows in zip(starts.tolist(), batches, strict=True)),
        )

    def _whole(self, position: int) -> Rows:
        start = position * self.batch_size
        return self._input.rows(np.arange(start, start + self.size_of(position)))


@table.register
def _(op: _ops.Batch, epoch: int) -> Table | None:
    input = table(op.input, epoch)
    return input and BatchTable(input, op)
