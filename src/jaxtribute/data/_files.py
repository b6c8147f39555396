"""Reading files: lines of text, and TFRecords."""

from __future__ import annotations

import glob
import gzip
import io
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c

from ..errors import DataLossError, InvalidArgumentError, NotFoundError

_HEADER = struct.Struct("<QI")  # length, its checksum
_CHECKSUM = struct.Struct("<I")

_BYTES_AT_ONCE = 1 << 24

_File = io.BufferedIOBase


def matching(patterns: str | os.PathLike[str] | Sequence[Any]) -> tuple[bytes, ...]:
    """Return the names of the files that match any of the patterns, sorted.

    Raises:
      NotFoundError: when a pattern matches no file.
    """
    if isinstance(patterns, (str, bytes, os.PathLike)):
        patterns = [patterns]
    names: set[str] = set()
    for pattern in patterns:
        found = glob.glob(os.fsdecode(pattern))
        if not found:
            raise NotFoundError(f"No file matches the pattern {os.fsdecode(pattern)!r}.")
        names.update(found)
    return tuple(os.fsencode(name) for name in sorted(names))


def open_file(path: str, compression: str) -> _File:
    """Open a file, decompressing it.

    Raises:
      NotFoundError: when there is no such file.
    """
    try:
        if compression == "ZLIB":
            return io.BytesIO(zlib.decompress(Path(path).read_bytes()))
        return gzip.open(path, "rb") if compression == "GZIP" else open(path, "rb")
    except FileNotFoundError:
        raise NotFoundError(f"The dataset reads the file {path!r}, which does not exist.") from None
    except IsADirectoryError:
        raise InvalidArgumentError(
            f"The dataset reads {path!r}, which is a directory; list its files, for example with "
            f"Dataset.list_files({os.path.join(path, '*')!r})."
        ) from None
    except zlib.error as error:
        raise _damaged(path, 0, f"it is not compressed with ZLIB ({error})") from error


def check_compression(compression: str | None) -> str:
    """Return the name of a compression that can be read."""
    if (compression or "") not in ("", "GZIP", "ZLIB"):
        raise InvalidArgumentError(
            f"compression_type must be '', 'GZIP' or 'ZLIB', got {compression!r}."
        )
    return compression or ""


def _go_to(file: _File, path: str, offset: int) -> None:
    # Whether there is anything at that place is tried by going there from one byte before.
    if offset and (file.seek(offset - 1) != offset - 1 or not file.read(1)):
        raise _damaged(path, offset, "it ends before the place where reading was to go on")


def _damaged(path: str, offset: int, why: str) -> DataLossError:
    return DataLossError(f"The file {path!r} is damaged at byte {offset}: {why}.")


@dataclass(frozen=True)
class TextLines:
    """Reads the lines of a file, without their ends."""

    compression: str

    def open(self, path: str, offset: int) -> Iterator[tuple[bytes, int]]:
        """Yield each line, and the offset of the next."""
        with open_file(path, self.compression) as file:
            try:
                _go_to(file, path, offset)
                for line in file:
                    offset += len(line)
                    yield line.rstrip(b"\n").removesuffix(b"\r"), offset
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise _damaged(path, offset, f"it cannot be decompressed ({error})") from error


@dataclass(frozen=True)
class TFRecords:
    """Reads the records of a TFRecord file, and checks their checksums."""

    compression: str

    def open(self, path: str, offset: int) -> Iterator[tuple[bytes, int]]:
        """Yield each record, and the offset of the next."""
        with open_file(path, self.compression) as file:
            try:
                _go_to(file, path, offset)
                while header := file.read(_HEADER.size):
                    record = _record(file, header, path, offset)
                    offset += _HEADER.size + len(record) + _CHECKSUM.size
                    yield record, offset
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise _damaged(path, offset, f"it cannot be decompressed ({error})") from error


def _record(file: _File, header: bytes, path: str, offset: int) -> bytes:
    if len(header) < _HEADER.size:
        raise _damaged(path, offset, "it ends within the header of a record")
    length, checksum = _HEADER.unpack(header)
    if _masked_crc(header[:8]) != checksum:
        raise _damaged(path, offset, "the checksum of a record's length is wrong")
    record = _read(file, length)
    end = file.read(_CHECKSUM.size)
    if len(end) < _CHECKSUM.size:
        raise _damaged(path, offset, f"it ends within a record of {length} bytes")
    if _masked_crc(record) != _CHECKSUM.unpack(end)[0]:
        raise _damaged(path, offset, f"the checksum of a record of {length} bytes is wrong")
    return record


def _read(file: _File, length: int) -> bytes:
    """Read at most `length` bytes, for which memory is taken as they come."""
    if length <= _BYTES_AT_ONCE:
        return file.read(length)
    parts: list[bytes] = []
    while length and (part := file.read(min(length, _BYTES_AT_ONCE))):
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _masked_crc(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
