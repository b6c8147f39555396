"""Weights on disk: one `.npy` file for each variable, written and read without a second copy.

Types that NumPy does not know, such as bfloat16, are stored as unsigned integers of the same bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .._array_files import can_store, plain_dtype
from .._durable import written_durably
from ..errors import DataLossError, InvalidArgumentError

Array = np.ndarray[Any, Any]


def stored_dtype(dtype: Any, name: str) -> np.dtype[Any]:
    """Return the type in which elements are written.

    Raises:
      InvalidArgumentError: for elements that are no numbers.
    """
    if not can_store(dtype):
        raise InvalidArgumentError(
            f"The variable {name!r} has dtype {np.dtype(dtype)}, and a saved model keeps numbers "
            "only."
        )
    return plain_dtype(dtype)


def write(
    path: Path, name: str, shape: tuple[int, ...], dtype: Any, pieces: Iterable[Array]
) -> str:
    """Write an array that arrives as consecutive pieces of its rows; return the SHA-256 of it."""
    stored = stored_dtype(dtype, name)
    digest = hashlib.sha256()
    with written_durably(path) as file:
        header: dict[str, Any] = {
            "descr": np.lib.format.dtype_to_descr(stored),
            "fortran_order": False,
            "shape": shape,
        }
        writer = _Hashing(file, digest)
        np.lib.format.write_array_header_1_0(writer, header)  # pyright: ignore[reportArgumentType]
        written = 0
        for piece in pieces:
            # Of the memory as it is, whatever the type: a buffer of bfloat16 has no format.
            data: Any = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
            writer.write(data.data)
            written += data.nbytes
    assert written == int(np.prod(shape, dtype=np.int64)) * stored.itemsize, name
    return digest.hexdigest()


def read(path: Path, name: str, record: Mapping[str, Any]) -> Array:
    """Return an array whose file was verified; its memory is the file's.

    Raises:
      DataLossError: when it is not what the index says.
    """
    shape, dtype = tuple(record["shape"]), np.dtype(record["dtype"])
    # Never pickled objects. An empty file cannot be mapped.
    mode = "r" if 0 not in shape else None
    try:
        array = np.load(path, mmap_mode=mode, allow_pickle=False)
    except ValueError as error:
        raise DataLossError(
            f"The weights of the variable {name!r}, {str(path)!r}, are no array of numbers: {error}"
        ) from error
    if array.shape != shape or array.dtype != stored_dtype(dtype, name):
        raise DataLossError(
            f"The weights of the variable {name!r}, {str(path)!r}, are an array of shape "
            f"{array.shape} and dtype {array.dtype}, and should be {shape} and {dtype}."
        )
    return array.view(dtype)


class _Hashing:
    """A file of which a digest is taken while it is written."""

    def __init__(self, file: Any, digest: Any) -> None:
        self._file = file
        self._digest = digest

    def write(self, data: Any) -> int:
        self._digest.update(data)
        return self._file.write(data)
