"""The tensors of a TensorFlow checkpoint, read without TensorFlow.

`ckpt-1.index` is a table (`_tables`) that says of each tensor its type, its shape and where it is
in `ckpt-1.data-00000-of-00001` and the like. A partitioned variable has an entry of its own, and
one for each of its slices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import ml_dtypes
import numpy as np

from ...errors import InvalidArgumentError, NotFoundError
from ._messages import Message, varint
from ._tables import damaged, masked, read_table

Array = np.ndarray[Any, Any]

_AT_ONCE = 1 << 24
_STRING = np.dtype(object)
# The numbers of `tensorflow::DataType`.
_TYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.float32),
    2: np.dtype(np.float64),
    3: np.dtype(np.int32),
    4: np.dtype(np.uint8),
    5: np.dtype(np.int16),
    6: np.dtype(np.int8),
    7: _STRING,
    8: np.dtype(np.complex64),
    9: np.dtype(np.int64),
    10: np.dtype(np.bool_),
    14: np.dtype(ml_dtypes.bfloat16),
    17: np.dtype(np.uint16),
    18: np.dtype(np.complex128),
    19: np.dtype(np.float16),
    22: np.dtype(np.uint32),
    23: np.dtype(np.uint64),
    24: np.dtype(ml_dtypes.float8_e5m2),
    25: np.dtype(ml_dtypes.float8_e4m3fn),
}


@dataclass(frozen=True)
class Entry:
    """What the index says of a tensor, or of a slice of one."""

    type_number: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    slices: tuple[tuple[slice, ...], ...]
    """Which parts there are of a tensor that is not stored as a whole."""
    slice_keys: tuple[bytes, ...]

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The type; None for one that is no array, such as a variant."""
        return _TYPES.get(self.type_number)


class Bundle:
    """The tensors of a checkpoint, by the names TensorFlow gives them.

    Args:
      prefix: the path of the checkpoint, without `.index`.

    Raises:
      NotFoundError: when one of its files is missing.
      DataLossError: when one of them is damaged or too short.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._index = index = Path(f"{prefix}.index")
        table = read_table(index)
        try:
            header = Message(table.pop(b""))
            entries = {key: _entry(key, value) for key, value in table.items()}
        except (KeyError, ValueError) as error:
            raise damaged(index, f"an entry of it makes no sense ({error})") from error
        if header.integer(2):
            raise damaged(index, "it was written by a machine with the bytes in another order")
        self._shards = header.integer(1)
        self._entries = entries
        self._verified: set[bytes] = set()
        self._keys = {key.decode(): key for key in entries if not key.startswith(b"\0")}
        self._check_files()

    @property
    def tensors(self) -> dict[str, Entry]:
        """What is known of each tensor."""
        return {name: self._entries[key] for name, key in self._keys.items()}

    def read(self, name: str) -> Array:
        """Return a tensor; one of strings as an array of bytes objects.

        Raises:
          DataLossError: when it is damaged.
          InvalidArgumentError: when it is no array.
        """
        entry = self._entries[self._keys[name]]
        if entry.dtype == _STRING:
            return self._strings(name, entry)
        rows = self.rows(name, 0, entry.shape[0] if entry.shape else 1)
        return rows.reshape(entry.shape)

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Return some rows of a tensor, after its checksum was verified.

        Raises:
          DataLossError: when it is damaged.
          InvalidArgumentError: when it is no array.
        """
        key = self._keys[name]
        entry = self._entries[key]
        if not entry.slices:
            return self._rows(key, name, start, stop)
        result = np.empty((stop - start, *entry.shape[1:]), self._dtype(name, entry))
        for where, part in zip(entry.slices, entry.slice_keys, strict=True):
            first, last = max(start, where[0].start), min(stop, where[0].stop)
            if first < last:
                rows = self._rows(part, name, first - where[0].start, last - where[0].start)
                result[(slice(first - start, last - start), *where[1:])] = rows
        return result

    def verify(self) -> None:
        """Read everything once, and compare it with the checksums.

        Raises:
          DataLossError: when something is damaged.
        """
        names = {key: name for name, key in self._keys.items()}
        for key, entry in self._entries.items():
            name = names.get(key, "a part of a variable")
            if entry.dtype == _STRING:
                self._strings(name, entry)
            elif entry.dtype is not None and not entry.slices:
                self._verify(key, name)

    # --- Files -----------------------------------------------------------------------------

    def _file(self, shard: int) -> Path:
        return Path(f"{self._prefix}.data-{shard:05d}-of-{self._shards:05d}")

    def _check_files(self) -> None:
        """Look at everything before anything is restored."""
        needed: dict[int, int] = {}
        for key, entry in self._entries.items():
            end = entry.offset + entry.size
            needed[entry.shard] = max(needed.get(entry.shard, 0), end)
            if entry.slices:
                self._check_slices(entry)
            elif entry.dtype not in (None, _STRING):
                expected = math.prod(entry.shape) * np.dtype(entry.dtype).itemsize
                if entry.size != expected:
                    why = f"{key!r} has {entry.size} bytes and a shape of {expected}"
                    raise damaged(self._index, why)
        for shard, size in sorted(needed.items()):
            path = self._file(shard)
            if not path.is_file():
                raise NotFoundError(
                    f"The file '{path}' is missing, one of {self._shards} with the values of the "
                    f"TensorFlow checkpoint {self._prefix!r}. Nothing was restored. Copy all files "
                    f"that begin with '{Path(self._prefix).name}.' together."
                )
            if path.stat().st_size < size:
                why = f"it has {path.stat().st_size} bytes, and needs {size}"
                raise damaged(path, why)

    def _check_slices(self, entry: Entry) -> None:
        """A tensor is read slice by slice, so they have to make up all of it."""
        covered = 0
        for where, key in zip(entry.slices, entry.slice_keys, strict=True):
            shape = tuple(part.stop - part.start for part in where)
            if key not in self._entries or self._entries[key].shape != shape:
                raise damaged(self._index, f"a slice of shape {shape} is not there")
            covered += math.prod(shape)
        if covered != math.prod(entry.shape):
            raise damaged(self._index, f"slices do not make up a tensor of shape {entry.shape}")

    def _dtype(self, name: str, entry: Entry) -> np.dtype[Any]:
        if entry.dtype is None or entry.dtype == _STRING:
            raise InvalidArgumentError(
                f"{name!r} of the TensorFlow checkpoint {self._prefix!r} is no array of numbers: "
                f"it has the type with number {entry.type_number}."
            )
        return entry.dtype

    def _rows(self, key: bytes, name: str, start: int, stop: int) -> Array:
        entry = self._entries[key]
        dtype = self._dtype(name, entry)
        self._verify(key, name)
        row = math.prod(entry.shape[1:]) * dtype.itemsize
        data = bytearray()
        for part in _parts(
            self._file(entry.shard), entry.offset + start * row, (stop - start) * row
        ):
            data += part
        return np.frombuffer(data, dtype).reshape(stop - start, *entry.shape[1:])

    def _verify(self, key: bytes, name: str) -> None:
        if key in self._verified:
            return
        entry = self._entries[key]
        crc = 0
        for part in _parts(self._file(entry.shard), entry.offset, entry.size):
            crc = google_crc32c.extend(crc, part)
        self._compare(name, entry, crc)
        self._verified.add(key)

    def _strings(self, name: str, entry: Entry) -> Array:
        data = b"".join(_parts(self._file(entry.shard), entry.offset, entry.size))
        sizes: list[int] = []
        position = crc = 0
        try:
            for _ in range(math.prod(entry.shape)):
                size, position = varint(data, position)
                sizes.append(size)
                in_memory = size.to_bytes(4 if size < 1 << 32 else 8, "little")
                crc = google_crc32c.extend(crc, in_memory)
        except (IndexError, OverflowError) as error:
            raise damaged(self._file(entry.shard), f"{name!r} has no sizes of texts") from error
        self._compare(name, entry, google_crc32c.extend(crc, data[position:]))
        position += 4  # the checksum of the sizes alone
        result = np.empty(len(sizes), _STRING)
        for i, size in enumerate(sizes):
            result[i] = data[position : position + size]
            position += size
        return result.reshape(entry.shape)

    def _compare(self, name: str, entry: Entry, crc: int) -> None:
        if masked(crc) != entry.checksum:
            raise damaged(self._file(entry.shard), f"the checksum of {name!r} is wrong")


def _parts(path: Path, offset: int, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(offset)
        while size and (part := file.read(min(size, _AT_ONCE))):
            yield part
            size -= len(part)
    if size:
        raise damaged(path, "it became shorter while it was read")


# --- The index -----------------------------------------------------------------------------


def _entry(key: bytes, value: bytes) -> Entry:
    message = Message(value)
    shapes = message.messages(2)
    shape = tuple(dim.integer(1) for dim in shapes[0].messages(2)) if shapes else ()
    if min(shape, default=0) < 0:
        raise ValueError(f"{key!r} has the shape {shape}")
    extents = [each.messages(1) for each in message.messages(7)]
    return Entry(
        message.integer(1),
        shape,
        message.integer(3),
        message.integer(4),
        message.integer(5),
        message.integer(6),
        tuple(tuple(map(_slice, extent, shape)) for extent in extents),
        tuple(_slice_key(key, extent) for extent in extents),
    )


def _slice(extent: Message, size: int) -> slice:
    start = extent.integer(1)
    return slice(start, start + extent.integer(2)) if extent.has(2) else slice(0, size)


def _slice_key(name: bytes, extents: list[Message]) -> bytes:
    """Return the key of a slice: bytes that sort as the name and the numbers do."""
    parts = [b"\0", name, b"\0\1", _ordered_count(len(extents))]
    for extent in extents:
        length = extent.integer(2) if extent.has(2) else -1
        parts += [_ordered(extent.integer(1)), _ordered(length)]
    return b"".join(parts)


def _ordered_count(number: int) -> bytes:
    size = (number.bit_length() + 7) // 8
    return bytes([size]) + number.to_bytes(size, "big")


def _ordered(number: int) -> bytes:
    """Return a number in one to ten bytes, of which the first bits say how many there are."""
    bits = (~number if number < 0 else number).bit_length() + 1  # with the sign
    size = -(-bits // 7)
    leading = ((1 << size) - 1) << (10 * 8 - size)  # as many ones as bytes
    encoded = (number & ((1 << (8 * size)) - 1)) ^ (leading >> (8 * (10 - size)))
    return encoded.to_bytes(size, "big")
