"""Reading what is not ours, and files."""

from __future__ import annotations

import os
from itertools import islice
from typing import Any

import numpy as np

from ...errors import InvalidArgumentError
from .. import _ops
from .._elements import copied
from .._randomness import mix, mix_with_each
from ._base import Item, State, Stream, read, stream


class _ExternalStream(Stream):
    """Elements of something else, which may be able to go on from a state of its own."""

    def __init__(self, source: _ops.Source) -> None:
        super().__init__()
        self._source = source
        self._iterator: Any = None
        self._taken = 0

    def __next__(self) -> Item:
        if self._iterator is None:
            self._iterator = self._source.open()
        element = copied(next(self._iterator))  # whose memory may be filled anew for the next
        self._taken += 1
        return self._taken - 1, element

    def get_state(self) -> State:
        state: State = {"taken": self._taken}
        if self._iterator is not None and hasattr(self._iterator, "get_state"):
            state["source"] = self._iterator.get_state()
        return state

    def set_state(self, state: State) -> None:
        self._iterator = self._source.open()
        self._taken = state["taken"]
        if "source" in state:
            self._iterator.set_state(state["source"])
            return
        for number in range(self._taken):
            try:
                next(self._iterator)
            except StopIteration:
                raise InvalidArgumentError(
                    f"The saved state is after element {self._taken} of {self._source.name}, which "
                    f"has only {number} now."
                ) from None

    def close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()


@read.register
def _(op: _ops.External, epoch: int) -> Stream:
    return _ExternalStream(op.source)


class _ReadFilesStream(Stream):
    """The records of files; a record's id is made of its file's id and its number in it."""

    def __init__(self, names: Stream, reader: _ops.Reader) -> None:
        super().__init__(names)
        self._names = names
        self._reader = reader
        self._leave()

    def _leave(self) -> None:
        self._before = self._names.get_state()
        self._records: Any = None
        self._offset = self._count = 0

    def _open(self) -> Any:
        self._file, name = next(self._names)
        self._records = self._reader.open(_path(name), self._offset)
        return self._records

    def __next__(self) -> Item:
        while True:
            records = self._open() if self._records is None else self._records
            found = next(records, None)
            if found is not None:
                record, self._offset = found
                self._count += 1
                return mix(self._file, self._count), record
            self._leave()

    def take(self, number: int) -> list[Item]:
        items: list[Item] = []
        while len(items) < number:
            try:
                items.append(next(self))
                found = list(islice(self._records, number - len(items)))
            except StopIteration:
                break
            if found:
                first = self._count + 1
                self._count += len(found)
                self._offset = found[-1][1]
                ids = mix_with_each(self._file, np.arange(first, self._count + 1, dtype=np.uint64))
                items += zip(ids.tolist(), [record for record, _ in found], strict=True)
        return items

    def get_state(self) -> State:
        return {"names": self._before, "offset": self._offset, "count": self._count}

    def set_state(self, state: State) -> None:
        self.close()
        self._names.set_state(state["names"])
        self._leave()
        if state["count"]:
            self._offset, self._count = state["offset"], state["count"]
            self._open()

    def close(self) -> None:
        super().close()
        if self._records is not None:
            self._records.close()


def _path(name: Any) -> str:
    if not isinstance(name, bytes):
        raise InvalidArgumentError(f"Expected the name of a file, got the element {name!r}.")
    return os.fsdecode(name)


@read.register
def _(op: _ops.ReadFiles, epoch: int) -> Stream:
    return _ReadFilesStream(stream(op.names, epoch), op.reader)
