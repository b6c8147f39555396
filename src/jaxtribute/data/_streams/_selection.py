"""Operations that choose among the elements."""

from __future__ import annotations

from .. import _ops
from ._base import Item, Stream, read, stream
from ._elementwise import Counting


class _TakeStream(Counting):
    def __init__(self, input: Stream, count: int) -> None:
        super().__init__(input)
        self._count = count

    def __next__(self) -> Item:
        if self._taken >= self._count:
            raise StopIteration
        item = next(self._input)
        self._taken += 1
        return item


@read.register
def _(op: _ops.Take, epoch: int) -> Stream:
    return _TakeStream(stream(op.input, epoch), op.count)


class _SkipStream(Counting):
    def __init__(self, input: Stream, count: int) -> None:
        super().__init__(input)
        self._count = count

    def __next__(self) -> Item:
        while self._taken < self._count:
            next(self._input)
            self._taken += 1
        return next(self._input)


@read.register
def _(op: _ops.Skip, epoch: int) -> Stream:
    return _SkipStream(stream(op.input, epoch), op.count)


class _ShardStream(Counting):
    def __init__(self, input: Stream, op: _ops.Shard) -> None:
        super().__init__(input)
        self._op = op

    def __next__(self) -> Item:
        while True:
            item = next(self._input)
            self._taken += 1
            if (self._taken - 1) % self._op.num_shards == self._op.index:
                return item


@read.register
def _(op: _ops.Shard, epoch: int) -> Stream:
    _ops.check_shard(op)
    return _ShardStream(stream(op.input, epoch), op)
