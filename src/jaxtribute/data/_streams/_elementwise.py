"""Operations on one element at a time."""

from __future__ import annotations

from itertools import count

import numpy as np

from .. import _ops
from .._randomness import mix
from .._user_functions import Mapped, blamed, call
from ._base import Item, State, Stream, read, stream
from ._windows import ParallelMapStream


class Counting(Stream):
    """A stream over one input, which counts what it takes from it."""

    def __init__(self, input: Stream) -> None:
        super().__init__(input)
        self._input = input
        self._taken = 0

    def get_state(self) -> State:
        return {"taken": self._taken, "input": self._input.get_state()}

    def set_state(self, state: State) -> None:
        self._taken = state["taken"]
        self._input.set_state(state["input"])


class _MapStream(Counting):
    def __init__(self, input: Stream, mapped: Mapped) -> None:
        super().__init__(input)
        self._mapped = mapped

    def __next__(self) -> Item:
        element_id, element = next(self._input)
        self._taken += 1
        return element_id, self._mapped(self._taken - 1, element_id, element)

    def take(self, number: int) -> list[Item]:
        items = self._input.take(number)
        first, self._taken = self._taken, self._taken + len(items)
        ids, elements = [i for i, _ in items], [element for _, element in items]
        return list(zip(ids, self._mapped.each(count(first), ids, elements), strict=True))


@read.register
def _(op: _ops.Map, epoch: int) -> Stream:
    input = stream(op.input, epoch)
    mapped = Mapped(op.fn, None if op.seed is None else mix(op.seed, epoch))
    if op.parallel_calls > 1:
        return ParallelMapStream(input, mapped, op.parallel_calls)
    return _MapStream(input, mapped)


class _FilterStream(Counting):
    def __init__(self, input: Stream, op: _ops.Filter) -> None:
        super().__init__(input)
        self._predicate = op.predicate

    def __next__(self) -> Item:
        while True:
            element_id, element = next(self._input)
            self._taken += 1
            try:
                kept = bool(call(self._predicate, element))
            except Exception as error:
                number = self._taken - 1
                raise blamed(error, "filter", self._predicate, number) from error.__cause__
            if kept:
                return element_id, element


@read.register
def _(op: _ops.Filter, epoch: int) -> Stream:
    return _FilterStream(stream(op.input, epoch), op)


class _EnumerateStream(Counting):
    def __init__(self, input: Stream, start: int) -> None:
        super().__init__(input)
        self._start = start

    def __next__(self) -> Item:
        element_id, element = next(self._input)
        self._taken += 1
        return element_id, (np.int64(self._start + self._taken - 1), element)


@read.register
def _(op: _ops.Enumerate, epoch: int) -> Stream:
    return _EnumerateStream(stream(op.input, epoch), op.start)
