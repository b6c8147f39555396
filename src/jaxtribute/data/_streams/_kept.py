"""Operations that keep elements: from one epoch to the next, or until they are asked for."""

from __future__ import annotations

from collections.abc import Callable

from .. import _ops
from .._background import Background
from ._base import Item, State, Stream, read, stream


class _CacheStream(Stream):
    """Reads what a cache keeps, and fills it with what is missing."""

    def __init__(self, store: _ops.Store, open_input: Callable[[], Stream]) -> None:
        super().__init__()
        self._store = store
        self._open_input = open_input
        self._input: Stream | None = None
        self._read_from_input = 0
        self._position = 0

    def __next__(self) -> Item:
        with self._store.lock:  # several iterators may fill the cache together
            while self._position >= len(self._store):
                if self._store.complete:
                    raise StopIteration
                self._fill()
            item = self._store.get(self._position)
        self._position += 1
        return item

    def _fill(self) -> None:
        if self._input is None:
            self._input = self._open_input()
        item = next(self._input, None)
        self._read_from_input += 1
        if item is None:
            self._store.finish()
            self.close()
        elif self._read_from_input > len(self._store):  # others may be further
            self._store.append(*item)

    def get_state(self) -> State:
        return {"position": self._position}

    def set_state(self, state: State) -> None:
        self._position = state["position"]

    def close(self) -> None:
        if self._input is not None:
            self._input.close()
            self._input = None
            self._read_from_input = 0


@read.register
def _(op: _ops.Cache, epoch: int) -> Stream:
    return _CacheStream(op.store, lambda: stream(op.input, 0))


class _PrefetchStream(Stream):
    def __init__(self, input: Stream, buffer_size: int) -> None:
        super().__init__()
        self._ahead = Background(input, buffer_size)

    def __next__(self) -> Item:
        return next(self._ahead)

    def get_state(self) -> State:
        return self._ahead.get_state()

    def set_state(self, state: State) -> None:
        self._ahead.set_state(state)

    def close(self) -> None:
        self._ahead.close()


@read.register
def _(op: _ops.Prefetch, epoch: int) -> Stream:
    input = stream(op.input, epoch)
    return _PrefetchStream(input, op.buffer_size) if op.buffer_size else input


@read.register
def _(op: _ops.WithOptions, epoch: int) -> Stream:
    return stream(op.input, epoch)
