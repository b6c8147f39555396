"""Where `Dataset.cache` keeps elements: in memory, or in a file."""

from __future__ import annotations

import json
import os
import struct
import threading
from pathlib import Path
from typing import IO, Any

import numpy as np

from .. import _tree
from ..errors import DataLossError, FailedPreconditionError

_MAGIC = b"jaxtribute cache 1\n"
_LENGTH = struct.Struct("<Q")


class MemoryStore:
    """Keeps elements in memory."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.complete = False
        self._items: list[tuple[int, Any]] = []

    def __len__(self) -> int:
        return len(self._items)

    def get(self, position: int) -> tuple[int, Any]:
        """Return an element that is kept."""
        return self._items[position]

    def append(self, element_id: int, element: Any) -> None:
        """Keep the next element."""
        self._items.append((element_id, element))

    def finish(self) -> None:
        """Note that all elements are kept."""
        self.complete = True


class FileStore:
    """Keeps elements in a file, which later processes find again.

    Until all elements are kept the file has a name of its own, so that an interrupted epoch leaves
    nothing that could be mistaken for a complete one. Records are raw arrays behind a JSON header:
    reading a file that somebody else wrote executes nothing.
    """

    def __init__(self, filename: str) -> None:
        self.lock = threading.RLock()
        self.complete = False
        self._path = Path(filename)
        self._partial = self._path.with_name(f"{self._path.name}.{os.getpid()}.partial")
        self._offsets: list[int] = []
        self._file: IO[bytes] | None = None
        if self._path.exists():
            self._open_complete()

    def __len__(self) -> int:
        return len(self._offsets)

    def _open_complete(self) -> None:
        self._file = file = self._path.open("rb")
        file.seek(-_LENGTH.size, os.SEEK_END)
        (start,) = _LENGTH.unpack(file.read(_LENGTH.size))
        file.seek(0)
        if file.read(len(_MAGIC)) != _MAGIC or start >= self._path.stat().st_size:
            raise DataLossError(
                f"{str(self._path)!r} was not written by Dataset.cache. Remove it, or choose "
                "another file name."
            )
        file.seek(start)
        self._offsets = json.loads(file.read()[: -_LENGTH.size])
        self.complete = True

    def get(self, position: int) -> tuple[int, Any]:
        """Return an element that is kept."""
        assert self._file is not None
        self._file.seek(self._offsets[position])
        (length,) = _LENGTH.unpack(self._file.read(_LENGTH.size))
        element_id, structure, leaves = json.loads(self._file.read(length))
        return element_id, _rebuild(structure, [self._read_leaf(*leaf) for leaf in leaves])

    def _read_leaf(self, kind: str, shape: list[int], sizes: list[int]) -> Any:
        assert self._file is not None
        if kind == "bytes":
            return self._file.read(sizes[0])
        if kind == "text":
            array = np.empty(len(sizes), object)
            array[:] = [self._file.read(size) for size in sizes]
            return array.reshape(shape)
        array = np.frombuffer(self._file.read(sizes[0]), np.dtype(kind)).reshape(shape)
        return array if shape else array[()]

    def append(self, element_id: int, element: Any) -> None:
        """Keep the next element."""
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._partial.open("w+b")
            self._file.write(_MAGIC)
        leaves, _ = _tree.flatten(element)
        described, data = zip(*[_describe(leaf) for leaf in leaves], strict=True)
        header = json.dumps([element_id, _outline(element), described]).encode()
        self._file.seek(0, os.SEEK_END)
        self._offsets.append(self._file.tell())
        self._file.write(_LENGTH.pack(len(header)) + header + b"".join(data))

    def finish(self) -> None:
        """Note that all elements are kept, and give the file its name."""
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._partial.open("w+b")
            self._file.write(_MAGIC)
        self._file.seek(0, os.SEEK_END)
        start = self._file.tell()
        self._file.write(json.dumps(self._offsets).encode() + _LENGTH.pack(start))
        self._file.flush()
        os.replace(self._partial, self._path)
        self.complete = True


def _describe(leaf: Any) -> tuple[tuple[str, tuple[int, ...], list[int]], bytes]:
    if isinstance(leaf, bytes):
        return ("bytes", (), [len(leaf)]), leaf
    array = np.asarray(leaf)
    if array.dtype == object:
        texts = list(array.flat)
        return ("text", array.shape, [len(text) for text in texts]), b"".join(texts)
    data = array.tobytes()
    return (array.dtype.name, array.shape, [len(data)]), data


def _outline(element: Any) -> Any:
    """Return the structure of an element in JSON: tuples are lists, leaves None."""
    if type(element) is tuple:
        return [_outline(part) for part in element]
    if type(element) is dict:
        return {key: _outline(element[key]) for key in sorted(element)}
    if isinstance(element, (np.ndarray, np.generic, bytes)):
        return None
    raise FailedPreconditionError(
        f"Dataset.cache can write tuples, dicts with text keys and arrays to a file, not "
        f"{type(element).__name__}. Cache in memory instead, with cache()."
    )


def _rebuild(outline: Any, leaves: list[Any]) -> Any:
    remaining = iter(leaves)

    def build(part: Any) -> Any:
        if part is None:
            return next(remaining)
        if isinstance(part, list):
            return tuple([build(inner) for inner in part])
        return {key: build(inner) for key, inner in part.items()}

    return build(outline)
