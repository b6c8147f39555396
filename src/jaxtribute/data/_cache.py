"""Where `Dataset.cache` keeps elements: in memory, or in a file."""

from __future__ import annotations

import json
import os
import secrets
import struct
import threading
import weakref
from pathlib import Path
from typing import IO, Any

import numpy as np

from .. import _tree
from ..errors import DataLossError, FailedPreconditionError
from ._elements import copied

_MAGIC = b"jaxtribute cache 1\n"
_LENGTH = struct.Struct("<Q")


class MemoryStore:
    """Keeps elements in memory."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.complete = False
        self._items: dict[int, tuple[int, Any]] = {}

    def emptied(self) -> MemoryStore:
        """Return a store for other elements."""
        return MemoryStore()

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, position: int) -> bool:
        return position in self._items

    def get(self, position: int) -> tuple[int, Any]:
        """Return an element that is kept, in memory of its own."""
        element_id, element = self._items[position]
        return element_id, copied(element)

    def append(self, element_id: int, element: Any) -> None:
        """Keep the next element."""
        self.put(len(self._items), element_id, element)

    def put(self, position: int, element_id: int, element: Any) -> None:
        """Keep the element at any position."""
        self._items[position] = element_id, copied(element)

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
        self._partial = self._path.with_name(f"{self._path.name}.{secrets.token_hex(4)}.partial")
        self._offsets: list[int] = []
        self._file: IO[bytes] | None = None
        if self._path.exists():
            self._open_complete()

    def emptied(self) -> FileStore:
        """Return this store: what is in the file stays."""
        return self

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, position: int) -> bool:
        return position < len(self._offsets)

    def _open_complete(self) -> None:
        self._keep_open(self._path.open("rb"))
        try:
            self._offsets = self._read_offsets()
        except (ValueError, OSError, struct.error) as error:
            raise DataLossError(
                f"{str(self._path)!r} is not, or no longer, a complete file of Dataset.cache "
                f"({error}). Remove it, or choose another file name."
            ) from error
        self.complete = True

    def _read_offsets(self) -> list[int]:
        assert self._file is not None
        if self._file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("it begins differently")
        self._file.seek(-_LENGTH.size, os.SEEK_END)
        end = self._file.tell()
        (start,) = _LENGTH.unpack(self._file.read())
        if not len(_MAGIC) <= start <= end:
            raise ValueError("its end is missing")
        self._file.seek(start)
        offsets = json.loads(self._file.read(end - start))
        if not isinstance(offsets, list) or any(not 0 < offset < start for offset in offsets):
            raise ValueError("its index is damaged")
        return offsets

    def _keep_open(self, file: IO[bytes]) -> IO[bytes]:
        self._file = file
        self._discard = weakref.finalize(self, _discard, file, self._partial)
        return file

    def _begun(self) -> IO[bytes]:
        """Return the file to write to, and begin it if that is not done."""
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._keep_open(self._partial.open("w+b")).write(_MAGIC)
            assert self._file is not None
        self._file.seek(0, os.SEEK_END)
        return self._file

    def put(self, position: int, element_id: int, element: Any) -> None:
        """Keep the next element; others cannot be kept in a file."""
        assert position == len(self)
        self.append(element_id, element)

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
        data = bytearray(self._file.read(sizes[0]))  # which can be written to, unlike bytes
        array = np.frombuffer(data, np.dtype(kind)).reshape(shape)
        return array if shape else array[()]

    def append(self, element_id: int, element: Any) -> None:
        """Keep the next element."""
        outline = _outline(element)
        leaves, _ = _tree.flatten(element)
        described = [_describe(leaf) for leaf in leaves]
        header = json.dumps([element_id, outline, [what for what, _ in described]]).encode()
        file = self._begun()
        self._offsets.append(file.tell())
        file.write(_LENGTH.pack(len(header)) + header + b"".join(data for _, data in described))

    def finish(self) -> None:
        """Note that all elements are kept, and give the file its name."""
        file = self._begun()
        start = file.tell()
        file.write(json.dumps(self._offsets).encode() + _LENGTH.pack(start))
        file.flush()
        os.replace(self._partial, self._path)
        self.complete = True


def _discard(file: IO[bytes], partial: Path) -> None:
    file.close()
    partial.unlink(missing_ok=True)  # there only if it was never completed


def _describe(leaf: Any) -> tuple[tuple[str, tuple[int, ...], list[int]], bytes]:
    if isinstance(leaf, bytes):
        return ("bytes", (), [len(leaf)]), leaf
    array = np.asarray(leaf)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)  # which names do not tell
    if array.dtype == object:
        texts = list(array.flat)
        return ("text", array.shape, [len(text) for text in texts]), b"".join(texts)
    data = array.tobytes()
    return (array.dtype.name, array.shape, [len(data)]), data


def _outline(element: Any) -> Any:
    """Return the structure of an element in JSON: tuples are lists, leaves None."""
    if type(element) is tuple:
        return [_outline(part) for part in element]
    if type(element) is dict and all(isinstance(key, str) for key in element):
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
