"""Arrays in files, written and read by TensorStore.

Each process that writes has a place of its own, a directory with a database (OCDBT) of any number
of arrays in a few files. Each chunk of an array (Zarr 3) is followed by its checksum, which is
verified when it is read. The rows of one array may be in several places; any process reads all of
them, or some rows.

Files that are whole may still be those of another time or another array, put in the place of the
right ones. So whoever writes keeps checksums of the values elsewhere, and gives them to who reads.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google_crc32c
import jax.numpy as jnp
import msgspec
import numpy as np

from .errors import DataLossError

Array = np.ndarray[Any, Any]

_CHUNK = 1 << 22
"""About how many bytes have a checksum of their own, and are read at least."""
_AT_ONCE = 1 << 28
"""How many bytes are on their way to or from the disk, at most."""
_EVERYWHERE = "biufc"  # the kinds of types that all programs know


class DamagedArray(DataLossError):
    """An array cannot be read from its files."""


def can_store(dtype: Any) -> bool:
    """Tell whether arrays of a type can be written."""
    dtype = np.dtype(dtype)
    return dtype.kind in _EVERYWHERE or jnp.issubdtype(dtype, np.number)


def plain_dtype(dtype: Any) -> np.dtype[Any]:
    """Return a type of the same size that all programs know: plain bits for others."""
    dtype = np.dtype(dtype)
    return dtype if dtype.kind in _EVERYWHERE else np.dtype(f"u{dtype.itemsize}")


# --- Writing -------------------------------------------------------------------------------


def write(place: Path, parts: Iterable[tuple[str, int, Any]]) -> None:
    """Write arrays, which are on the disk when this returns.

    Args:
      place: a directory that nobody else writes to.
      parts: names, and of each all rows or some, from which row on; nobody changes them meanwhile.

    Raises:
      OSError: when files cannot be written.
    """
    import tensorstore as ts  # heavy, so not before it is needed

    context = ts.Context()
    for group in _groups(parts):
        # So that each group is written at one go, and not array by array.
        transaction = ts.Transaction()
        opened = [
            ts.open(
                _spec(place, key) | {"metadata": _metadata(bits)},
                create=True,
                context=context,
                transaction=transaction,
            )
            for key, bits in group
        ]
        writing = [
            store.result().write(bits, can_reference_source_data_indefinitely=True)
            for store, (_, bits) in zip(opened, group, strict=True)
        ]
        try:
            for each in writing:
                each.copy.result()
            transaction.commit_async().result()
        except ValueError as error:  # what TensorStore makes of a full disk, and all the like
            raise OSError(f"Arrays could not be written to {place}: {error}") from error


def _groups(parts: Iterable[tuple[str, int, Any]]) -> Iterator[list[tuple[str, Array]]]:
    """Divide arrays into groups of a limited size."""
    group: list[tuple[str, Array]] = []
    size = 0
    for name, start, array in parts:
        bits = _as_bits(np.asarray(array))
        if not bits.size:  # described by its shape
            continue
        if group and size + bits.nbytes > _AT_ONCE:
            yield group
            group, size = [], 0
        group.append((_key(name, start), bits))
        size += bits.nbytes
    if group:
        yield group


def _key(name: str, start: int) -> str:
    return f"{name}@{start}"


def _spec(place: Path, key: str) -> dict[str, Any]:
    base = {"driver": "file", "path": f"{place.absolute()}/"}
    return {"driver": "zarr3", "kvstore": {"driver": "ocdbt", "base": base, "path": f"{key}/"}}


def _rows_of_chunks(array: Array) -> int:
    """Return how many rows have a checksum of their own; an array without axes has one."""
    if not array.shape:
        return 1
    # All of about the same size, as the last one is stored as if it had all rows.
    chunks = min(array.shape[0], math.ceil(array.nbytes / _CHUNK))
    return math.ceil(array.shape[0] / chunks)


def _metadata(array: Array) -> dict[str, Any]:
    rows = (_rows_of_chunks(array),) if array.shape else ()
    return {
        "shape": array.shape,
        "data_type": str(array.dtype),
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": (*rows, *array.shape[1:])},
        },
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
    }


def _as_bits(array: Array) -> Array:
    """Return what is written of an array: the small types of machine learning as plain bits."""
    return array if array.dtype == jnp.bfloat16 else array.view(plain_dtype(array.dtype))


# --- Checksums -----------------------------------------------------------------------------


class Checksums(msgspec.Struct, array_like=True, frozen=True):
    """What tells some rows of an array from all others, also from those of another time."""

    rows: int
    """How many rows each is of."""
    values: list[int]


def checksums(array: Any) -> Checksums:
    """Return the checksums of an array as it is written."""
    bits = _as_bits(np.asarray(array))
    if not bits.size:
        return Checksums(0, [])
    rows = _rows_of_chunks(bits)
    return Checksums(rows, _computed(bits, rows))


def _computed(array: Array, rows: int) -> list[int]:
    if not array.shape:
        array = array.reshape(1)
    chunks = [array[start : start + rows] for start in range(0, array.shape[0], rows)]
    # The function takes arrays of bytes as they are, although it says otherwise.
    bits: Any = [np.ascontiguousarray(chunk).reshape(-1).view(np.uint8) for chunk in chunks]
    return [google_crc32c.value(each) for each in bits]


# --- Reading -------------------------------------------------------------------------------


class Part(msgspec.Struct, frozen=True):
    """Where some rows of an array are; an array without axes has one."""

    place: str
    start: int
    stop: int
    checksums: Checksums | None = None
    """None for what was written by a version that kept none."""


class Stored(msgspec.Struct, frozen=True):
    """An array in files, and which part of it is wanted."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    parts: tuple[Part, ...]
    rows: tuple[int, int] | None = None
    """The first row, and the one after the last; None is for all."""

    @property
    def wanted_shape(self) -> tuple[int, ...]:
        """The shape of what is read."""
        return self.shape if self.rows is None else (self.rows[1] - self.rows[0], *self.shape[1:])

    @property
    def nbytes(self) -> int:
        """The size of what is read."""
        return math.prod(self.wanted_shape) * jnp.dtype(self.dtype).itemsize


def read(directory: Path, arrays: Sequence[Stored]) -> Generator[Array]:
    """Read arrays one after the other, those that come next already while one is used.

    Args:
      directory: in which the places are.
      arrays: which ones.

    Yields:
      An array for each, which belongs to the caller.

    Raises:
      DamagedArray: when one is not there or damaged, naming it.
    """
    import tensorstore as ts

    context = ts.Context()  # of its own: another one may know what a file held before
    # All are looked up before the first is read, as that would have to wait for what is read then.
    opened = [(array, _opened(directory, array, context)) for array in arrays]
    begun: deque[tuple[Stored, list[_Piece]]] = deque()
    size = 0
    for array, pieces in opened:
        for piece in pieces:
            piece.begin()
        begun.append((array, pieces))
        size += array.nbytes
        while size > _AT_ONCE:
            size -= begun[0][0].nbytes
            yield _finish(*begun.popleft())
    while begun:
        yield _finish(*begun.popleft())


def verify(directory: Path, arrays: Sequence[Stored]) -> None:
    """Read arrays, of any size, and let go of them.

    Args:
      directory: in which the places are.
      arrays: which ones.

    Raises:
      DamagedArray: when one is not there or damaged, naming it.
    """
    blocks: list[Stored] = []
    for array in arrays:
        if not array.shape or array.nbytes <= _CHUNK:
            blocks.append(array)
            continue
        rows = max(1, array.shape[0] * 8 * _CHUNK // array.nbytes)
        for start in range(0, array.shape[0], rows):
            stop = min(start + rows, array.shape[0])
            blocks.append(msgspec.structs.replace(array, rows=(start, stop)))
    for _ in read(directory, blocks):
        pass


class _Piece:
    """Rows of an array on their way from one place."""

    def __init__(self, directory: Path, array: Stored, part: Part, context: Any) -> None:
        import tensorstore as ts

        self._name = array.name
        self._place = directory / part.place
        first, last = array.rows or (part.start, part.stop)
        self.start, self.stop = max(first, part.start), min(last, part.stop)
        self._part = part
        # What is read: from the first row of a chunk to the last of one, to compare its checksum.
        chunk = part.checksums.rows if part.checksums is not None else 1
        self._first = (self.start - part.start) // chunk * chunk
        self._last = min(-((part.start - self.stop) // chunk) * chunk, part.stop - part.start)
        rows = (part.stop - part.start,) if array.shape else ()
        self._stored_shape = (*rows, *array.shape[1:])
        spec = _spec(self._place, _key(array.name, part.start))
        self._opened = ts.open(spec, open=True, read=True, context=context)
        self._reading: Any = None

    @contextmanager
    def _naming(self) -> Generator[None]:
        try:
            yield
        except (ValueError, OSError) as error:  # whatever TensorStore makes of a damaged file
            why = str(error).partition(" [tensorstore_spec=")[0]
            raise DamagedArray(f"{self._name!r} in {self._place} cannot be read: {why}.") from error

    def begin(self) -> None:
        with self._naming():
            store = self._opened.result()
            if store.shape != self._stored_shape:  # of what is not covered by a checksum
                raise ValueError(f"it has shape {store.shape} there, not {self._stored_shape}")
            wanted = store[self._first : self._last] if self._stored_shape else store
            self._reading = wanted.read()

    def result(self) -> Array:
        with self._naming():
            read = self._reading.result()
            if self._part.checksums is not None:
                self._compare(read, self._part.checksums)
        if not self._stored_shape:
            return read
        first = self._part.start + self._first
        return read[self.start - first : self.stop - first]

    def _compare(self, read: Array, expected: Checksums) -> None:
        begin = self._first // expected.rows
        found = _computed(read, expected.rows)
        if found != expected.values[begin : begin + len(found)]:
            raise ValueError("the values there are others than those that were saved")


def _opened(directory: Path, array: Stored, context: Any) -> list[_Piece]:
    """Begin to look up an array in all places where rows of it are."""
    if array.nbytes == 0:
        return []
    first, last = array.rows or (0, array.shape[0] if array.shape else 1)
    pieces = [
        _Piece(directory, array, part, context)
        for part in array.parts
        if part.start < last and part.stop > first
    ]
    covered = sum(piece.stop - piece.start for piece in pieces)
    if covered != last - first:
        raise DamagedArray(
            f"{array.name!r} in {directory} has {covered} of the rows {first} to {last}."
        )
    return pieces


def _finish(array: Stored, pieces: list[_Piece]) -> Array:
    dtype = np.dtype(jnp.dtype(array.dtype))
    if len(pieces) == 1:
        return pieces[0].result().view(dtype)
    whole = np.empty(array.wanted_shape, dtype)
    first = array.rows[0] if array.rows else 0
    while pieces:
        piece = pieces.pop(0)
        whole[piece.start - first : piece.stop - first] = piece.result().view(dtype)
    return whole
