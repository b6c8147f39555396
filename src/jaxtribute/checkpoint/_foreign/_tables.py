"""Sorted tables of bytes, in which TensorFlow keeps what its checkpoints consist of.

The format is LevelDB's: blocks of keys and values, a block that says where those are, and a footer
that says where that one is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import google_crc32c

from ...errors import DataLossError
from ._messages import varint

_FOOTER = 48
_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_NOT_COMPRESSED = 0


def read_table(path: Path) -> dict[bytes, bytes]:
    """Return the keys and values of a table, whose checksums are verified.

    Raises:
      OSError: when the file cannot be read.
      DataLossError: when it is damaged, or no such table.
    """
    data = path.read_bytes()
    if data[-len(_MAGIC) :] != _MAGIC:
        raise damaged(path, "it does not end as a table of TensorFlow does")
    try:
        footer = data[-_FOOTER:]
        further, position = _handle(footer, 0)
        index, _ = _handle(footer, position)
        _block(path, data, further)  # has nothing in it, and may be damaged as the others
        blocks = [_handle(value, 0)[0] for _, value in _entries(_block(path, data, index))]
        return {
            key: value for block in blocks for key, value in _entries(_block(path, data, block))
        }
    except (IndexError, struct.error) as error:
        raise damaged(path, "a block of it ends too early") from error


def masked(crc: int) -> int:
    """Return a CRC-32C in the form in which it is stored beside what it is of."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def damaged(path: Path, why: str) -> DataLossError:
    """Return the error for a file that cannot be read."""
    return DataLossError(
        f"The file '{path}' of a TensorFlow checkpoint cannot be read: {why}. Nothing was "
        "restored. Copy it again from where it was written, or use another checkpoint."
    )


def _handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    """Return where a block is and how long, and where in `data` this ends."""
    offset, position = varint(data, position)
    size, position = varint(data, position)
    return (offset, size), position


def _block(path: Path, data: bytes, handle: tuple[int, int]) -> bytes:
    offset, size = handle
    stored = data[offset : offset + size + 1]  # with the byte that says how it is compressed
    (checksum,) = struct.unpack_from("<I", data, offset + size + 1)
    if masked(google_crc32c.value(stored)) != checksum:
        raise damaged(path, "the checksum of a block is wrong")
    if stored[-1] != _NOT_COMPRESSED:
        raise damaged(path, "it is compressed, which TensorFlow's own are not")
    return stored[:-1]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values; of each key there is only what differs from the one before."""
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    end = len(block) - 4 * (restarts + 1)
    position, key = 0, b""
    while position < end:
        shared, position = varint(block, position)
        own, position = varint(block, position)
        size, position = varint(block, position)
        key = key[:shared] + block[position : position + own]
        position += own
        yield key, block[position : position + size]
        position += size
