"""Operations that choose among the elements, or change their order."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from .. import _ops
from .._randomness import mix, window_order
from ._base import Positions, Rows, Table, table


class ViewTable(Table):
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
    return ViewTable(input, size, lambda positions: positions)


@table.register
def _(op: _ops.Skip, epoch: int) -> Table | None:
    input = table(op.input, epoch)
    if input is None:
        return None
    size = None if input.size is None else max(0, input.size - op.count)
    return ViewTable(input, size, lambda positions: positions + op.count)


@table.register
def _(op: _ops.Shard, epoch: int) -> Table | None:
    _ops.check_shard(op)
    input = table(op.input, epoch)
    if input is None:
        return None
    size = None if input.size is None else len(range(op.index, input.size, op.num_shards))
    return ViewTable(input, size, lambda positions: positions * op.num_shards + op.index)


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

    return ViewTable(input, size, locate)
