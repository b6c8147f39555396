"""Operations on several elements, or on several inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import InvalidArgumentError
from .. import _ops
from .._elements import batch_size, row, stack
from .._randomness import mix, mix_each
from .._user_functions import blamed, call
from ._base import Item, State, Stream, read, stream
from ._elementwise import Counting


class _BatchStream(Counting):
    def __init__(self, input: Stream, op: _ops.Batch) -> None:
        super().__init__(input)
        self._op = op

    def __next__(self) -> Item:
        items = self._input.take(self._op.size)
        if not items or (self._op.drop_remainder and len(items) < self._op.size):
            raise StopIteration
        batch = stack([element for _, element in items], self._taken)
        self._taken += len(items)
        return items[0][0], batch


@read.register
def _(op: _ops.Batch, epoch: int) -> Stream:
    return _BatchStream(stream(op.input, epoch), op)


class _UnbatchStream(Stream):
    def __init__(self, input: Stream) -> None:
        super().__init__(input)
        self._input = input
        self._before: State = input.get_state()
        self._batch: tuple[int, Any, int] | None = None  # id, batch, size
        self._delivered = 0
        self._count = 0

    def _read(self) -> tuple[int, Any, int]:
        before = self._input.get_state()
        batch_id, batch = next(self._input)
        self._before = before
        self._delivered = 0
        self._count += 1
        self._batch = batch_id, batch, batch_size(batch, f"element {self._count - 1}")
        return self._batch

    def __next__(self) -> Item:
        batch_id, batch, size = self._batch or self._read()
        while self._delivered >= size:
            batch_id, batch, size = self._read()
        self._delivered += 1
        return mix(batch_id, self._delivered), row(batch, self._delivered - 1)

    def get_state(self) -> State:
        return {"input": self._before, "delivered": self._delivered, "count": self._count}

    def set_state(self, state: State) -> None:
        self._input.set_state(state["input"])
        self._before, self._batch, self._count = state["input"], None, state["count"]
        if state["delivered"]:
            self._count -= 1
            self._read()
        self._delivered = state["delivered"]


@read.register
def _(op: _ops.Unbatch, epoch: int) -> Stream:
    return _UnbatchStream(stream(op.input, epoch))


class _SequenceStream(Stream):
    """Streams one after the other, each opened when the one before it has ended."""

    def __init__(self, open_part: Callable[[int], Stream | None]) -> None:
        self._current: Stream | None = None  # until it is known that the first can be read
        super().__init__()
        self._open_part = open_part
        self._enter(0)

    def _enter(self, part: int) -> None:
        self._part = part
        self._current = self._open_part(part)
        self._delivered_any = False

    def __next__(self) -> Item:
        while self._current is not None:
            item = next(self._current, None)
            if item is not None:
                self._delivered_any = True
                element_id, element = item
                return mix(element_id, self._part), element
            self._current.close()
            self._leave()
        raise StopIteration

    def take(self, number: int) -> list[Item]:
        items: list[Item] = []
        while self._current is not None and len(items) < number:
            found = self._current.take(number - len(items))
            self._delivered_any = self._delivered_any or bool(found)
            ids = mix_each(np.array([i for i, _ in found], np.uint64), self._part).tolist()
            items += zip(ids, [element for _, element in found], strict=True)
            if len(items) < number:
                self._current.close()
                self._leave()
        return items

    def _leave(self) -> None:
        self._enter(self._part + 1)

    def get_state(self) -> State:
        current = None if self._current is None else self._current.get_state()
        return {"part": self._part, "current": current, "any": self._delivered_any}

    def set_state(self, state: State) -> None:
        self.close()
        self._enter(state["part"])
        self._delivered_any = state["any"]
        if state["current"] is None:
            self._current = None
        elif self._current is not None:
            self._current.set_state(state["current"])

    def close(self) -> None:
        if self._current is not None:
            self._current.close()


class _RepeatStream(_SequenceStream):
    def _leave(self) -> None:
        if not self._delivered_any:  # it would be empty for ever
            self._current = None
        else:
            super()._leave()


@read.register
def _(op: _ops.Repeat, epoch: int) -> Stream:
    def open_part(repetition: int) -> Stream | None:
        if op.count is not None and repetition >= op.count:
            return None
        return stream(op.input, mix(epoch, repetition))

    return _RepeatStream(open_part)


@read.register
def _(op: _ops.Concatenate, epoch: int) -> Stream:
    def open_part(part: int) -> Stream | None:
        return stream(op.parts[part], mix(epoch, part)) if part < len(op.parts) else None

    return _SequenceStream(open_part)


class _ZipStream(Stream):
    def __init__(self, inputs: Sequence[Stream], op: _ops.Zip) -> None:
        super().__init__(*inputs)
        self._structure = op.structure

    def __next__(self) -> Item:
        items: list[Item] = []
        for input in self._inputs:
            items.append(next(input))
        return items[0][0], self._structure.unflatten([element for _, element in items])

    def get_state(self) -> State:
        return {"inputs": [input.get_state() for input in self._inputs]}

    def set_state(self, state: State) -> None:
        for input, own in zip(self._inputs, state["inputs"], strict=True):
            input.set_state(own)


@read.register
def _(op: _ops.Zip, epoch: int) -> Stream:
    return _ZipStream([stream(part, epoch) for part in op.parts], op)


class _Slot:
    """One of the datasets that are interleaved."""

    def __init__(self, before: State, number: int, element_id: int, opened: Stream) -> None:
        self.before = before  # the state of the input before the element this was made of
        self.number = number
        self.element_id = element_id
        self.stream = opened


class _InterleaveStream(Stream):
    def __init__(self, input: Stream, op: _ops.Interleave, epoch: int) -> None:
        super().__init__(input)
        self._input = input
        self._op = op
        self._epoch = epoch
        self._slots: list[_Slot | None] = [None] * op.cycle_length
        self._opened = self._turn = self._in_block = 0
        self._ended = False

    def _open(self) -> _Slot | None:
        before = self._input.get_state()
        item = next(self._input, None)
        if item is None:
            return None
        element_id, element = item
        number = self._opened
        self._opened += 1
        try:
            made = call(self._op.fn, element)
        except Exception as error:
            raise blamed(error, "interleave", self._op.fn, number) from error.__cause__
        # A dataset that is made anew each time must not draw new seeds each time.
        made = _ops.reseeded(made, mix(self._op.seed, element_id))
        opened = stream(made, mix(self._epoch, element_id))
        return _Slot(before, number, element_id, opened)

    def __next__(self) -> Item:
        idle = 0
        while idle < len(self._slots):
            slot = self._slots[self._turn]
            if slot is None and not self._ended:
                slot = self._slots[self._turn] = self._open()
                self._ended = slot is None
            if slot is None:
                idle += 1
                self._next_turn()
                continue
            item = next(slot.stream, None)
            if item is not None:
                self._in_block += 1
                if self._in_block == self._op.block_length:
                    self._next_turn()
                return mix(slot.element_id, item[0]), item[1]
            slot.stream.close()
            self._slots[self._turn] = None
            self._next_turn()
            idle = 0
        raise StopIteration

    def _next_turn(self) -> None:
        self._turn = (self._turn + 1) % len(self._slots)
        self._in_block = 0

    def get_state(self) -> State:
        return {
            "input": self._input.get_state(),
            "slots": [
                s and {"before": s.before, "number": s.number, "stream": s.stream.get_state()}
                for s in self._slots
            ],
            "opened": self._opened,
            "turn": self._turn,
            "in_block": self._in_block,
            "ended": self._ended,
        }

    def set_state(self, state: State) -> None:
        self._close_slots()
        for turn, saved in enumerate(state["slots"]):
            if saved is None:
                self._slots[turn] = None
                continue
            self._input.set_state(saved["before"])
            self._opened = saved["number"]
            slot = self._slots[turn] = self._open()
            if slot is None:
                raise InvalidArgumentError(
                    "The saved state is beyond the end of the dataset that is interleaved: it has "
                    "fewer elements than when the state was saved."
                )
            slot.stream.set_state(saved["stream"])
        self._input.set_state(state["input"])
        self._opened, self._turn = state["opened"], state["turn"]
        self._in_block, self._ended = state["in_block"], state["ended"]

    def _close_slots(self) -> None:
        for slot in self._slots:
            if slot is not None:
                slot.stream.close()

    def close(self) -> None:
        super().close()
        self._close_slots()


@read.register
def _(op: _ops.Interleave, epoch: int) -> Stream:
    return _InterleaveStream(stream(op.input, epoch), op, epoch)
