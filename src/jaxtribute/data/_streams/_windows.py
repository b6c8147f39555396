"""Operations that read several elements before they deliver one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import count
from typing import Any

from .. import _ops
from .._randomness import mix, window_order
from .._user_functions import CALLS_A_THREAD, Mapped, map_in_threads
from ._base import Item, State, Stream, read, stream


class _Windowed(Stream):
    """A stream that reads several elements of its input at once.

    Its state is that of the input before them, and how many of them were delivered.
    """

    def __init__(self, input: Stream, length: int) -> None:
        super().__init__(input)
        self._input = input
        self._length = length
        self._number = 0
        self._empty()

    def _empty(self) -> None:
        self._before: State | None = None
        self._window: Sequence[Item | Exception] = []
        self._delivered = 0

    @abstractmethod
    def _prepared(self, items: list[Item]) -> Sequence[Item | Exception]:
        """Return what to deliver, or to raise, for the elements of one window."""

    def _fill(self) -> None:
        self._before = self._input.get_state()
        items: list[Item] = []
        while len(items) < self._length and (item := next(self._input, None)) is not None:
            items.append(item)
        self._window = self._prepared(items)
        self._delivered = 0

    def __next__(self) -> Item:
        if self._delivered == len(self._window):
            self._number += bool(self._window)
            self._fill()
            if not self._window:
                raise StopIteration
        item = self._window[self._delivered]
        if isinstance(item, Exception):
            raise item
        self._delivered += 1
        return item

    def get_state(self) -> State:
        before = self._input.get_state() if self._before is None else self._before
        return {"input": before, "delivered": self._delivered, "window": self._number}

    def set_state(self, state: State) -> None:
        self._input.set_state(state["input"])
        self._number = state["window"]
        self._empty()
        if state["delivered"]:
            self._fill()
            self._delivered = state["delivered"]


class _ShuffleStream(_Windowed):
    def __init__(self, input: Stream, op: _ops.Shuffle, seed: int) -> None:
        super().__init__(input, op.buffer_size)
        self._seed = seed

    def _prepared(self, items: list[Item]) -> list[Item]:
        return [items[i] for i in window_order(self._seed, self._number, len(items))]


@read.register
def _(op: _ops.Shuffle, epoch: int) -> Stream:
    seed = mix(op.seed, epoch) if op.reshuffle else op.seed
    return _ShuffleStream(stream(op.input, epoch), op, seed)


class ParallelMapStream(_Windowed):
    """The results of a function that several threads call at once."""

    def __init__(self, input: Stream, mapped: Mapped, parallel_calls: int) -> None:
        super().__init__(input, CALLS_A_THREAD * parallel_calls)
        self._mapped = mapped
        self._parallel_calls = parallel_calls

    def _prepared(self, items: list[Item]) -> Sequence[Item | Exception]:
        first = self._number * self._length
        ids, elements = [i for i, _ in items], [element for _, element in items]
        return list(map_in_threads(self._result, self._parallel_calls, count(first), ids, elements))

    def _result(self, number: int, element_id: int, element: Any) -> Item | Exception:
        try:
            return element_id, self._mapped(number, element_id, element)
        except Exception as error:  # raised when its turn has come
            return error
