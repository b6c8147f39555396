"""Operations on several elements, or on several inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from .. import _ops
from .._elements import Array, concatenate, pick
from .._randomness import mix, mix_each
from ._base import ComputedRows, Positions, Rows, StackedRows, Table, table
from ._selection import ViewTable


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
        return ViewTable(first, 0, lambda positions: positions)
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
        if all(isinstance(part, StackedRows) for part in rows):
            batch = self._structure.unflatten([part.stacked() for part in rows])
            return StackedRows(lambda: rows[0].ids, batch, len(positions))
        return ComputedRows(
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
        return ComputedRows(
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
