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

import google_crc32c
import numpy as np

from .. import _tree
from ..errors import DataLossError, FailedPreconditionError
from ._elements import copied

_MAGIC = b"jaxtribute cache 2\n"
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")


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
    reading a file that somebody else wrote executes nothing. Each record, and the index at the end,
    is followed by its checksum.
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
            raise self._damaged(error) from error
        self.complete = True

    def _damaged(self, why: object) -> DataLossError:
        return DataLossError(
            f"{str(self._path)!r} is not, or no longer, a complete file of Dataset.cache "
            f"({why}). Remove it, or choose another file name."
        )

    def _read_offsets(self) -> list[int]:
        assert self._file is not None
        if self._file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("it begins differently, or was written by an earlier version")
        self._file.seek(-_LENGTH.size - _CHECKSUM.size, os.SEEK_END)
        end = self._file.tell()
        last = self._file.read()
        (start,) = _LENGTH.unpack(last[: _LENGTH.size])
        if not len(_MAGIC) <= start <= end:
            raise ValueError("its end is missing")
        self._file.seek(start)
        index = self._file.read(end - start)
        checksum = google_crc32c.value(index + last[: _LENGTH.size])
        if checksum != _CHECKSUM.unpack(last[_LENGTH.size :])[0]:
            raise ValueError("its index is damaged")
        return json.loads(index)

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
        """Return an element that is kept.

        Raises:
          DataLossError: when the file is damaged there.
        """
        assert self._file is not None
        self._file.seek(self._offsets[position])
        try:
            record = _Record(self._file)
            (length,) = _LENGTH.unpack(record.read(_LENGTH.size))
            header = record.read(length)
            _check(self._file, google_crc32c.value(header))
            element_id, structure, leaves = json.loads(header)
            element = _rebuild(structure, [_read_leaf(record, *leaf) for leaf in leaves])
            _check(self._file, record.checksum)
        except (ValueError, OSError, struct.error) as error:
            raise self._damaged(f"element {position}: {error}") from error
        return element_id, element

    def append(self, element_id: int, element: Any) -> None:
        """Keep the next element."""
        outline = _outline(element)
        leaves, _ = _tree.flatten(element)
        described = [_describe(leaf) for leaf in leaves]
        header = json.dumps([element_id, outline, [what for what, _ in described]]).encode()
        beginning = _LENGTH.pack(len(header)) + header
        rest = b"".join(data for _, data in described)
        checksums = google_crc32c.value(header), google_crc32c.value(beginning + rest)
        file = self._begun()
        self._offsets.append(file.tell())
        file.write(beginning + _CHECKSUM.pack(checksums[0]) + rest + _CHECKSUM.pack(checksums[1]))

    def finish(self) -> None:
        """Note that all elements are kept, and give the file its name."""
        file = self._begun()
        start = file.tell()
        index = json.dumps(self._offsets).encode() + _LENGTH.pack(start)
        file.write(index + _CHECKSUM.pack(google_crc32c.value(index)))
        file.flush()
        os.replace(self._partial, self._path)
        self.complete = True


class _Record:
    """Reads from a file, and takes the checksum of it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self.checksum = 0

    def read(self, size: int) -> bytes:
        """Return the next bytes.

        Raises:
          ValueError: when the file ends before.
        """
        if size > self._size - self._file.tell():  # asked first, as it may be any number
            raise ValueError("it ends too early")
        data = self._file.read(size)
        self.checksum = google_crc32c.extend(self.checksum, data)
        return data


def _check(file: IO[bytes], checksum: int) -> None:
    """Compare a checksum with the one that comes next in a file.

    Raises:
      ValueError: when they differ.
    """
    if _CHECKSUM.unpack(file.read(_CHECKSUM.size))[0] != checksum:
        raise ValueError("its checksum is another")


def _read_leaf(record: _Record, kind: str, shape: list[int], sizes: list[int]) -> Any:
    if kind == "bytes":
        return record.read(sizes[0])
    if kind == "text":
        array = np.empty(len(sizes), object)
        array[:] = [record.read(size) for size in sizes]
        return array.reshape(shape)
    data = bytearray(record.read(sizes[0]))  # which can be written to, unlike bytes
    array = np.frombuffer(data, np.dtype(kind)).reshape(shape)
    return array if shape else array[()]


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
