"""What other libraries saved, as something to restore from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from ...errors import InvalidArgumentError
from .._sources import ARRAYS, EMPTY
from ._keras_files import KerasFile, is_keras_file
from ._tensorflow import TensorFlowCheckpoint, prefix_of

Array = np.ndarray[Any, Any]
Type = tuple[tuple[int, ...], np.dtype[Any]]


class Foreign(Protocol):
    """What another library saved. Reading raises DataLossError where it is damaged."""

    path: str
    save_counter: int | None

    @property
    def stored(self) -> Mapping[str, tuple[tuple[int, ...], np.dtype[Any] | None]]:
        """The shape and type of all there is, by its name in the file."""
        ...

    def verify(self) -> None:
        """Compare everything with the checksums there are."""
        ...

    def read_stored(self, name: str) -> Array:
        """Read something by its name in the file."""
        ...

    @property
    def arrays(self) -> Mapping[str, Type]:
        """The shape and type of each array, by the name it has here."""
        ...

    def find(self, name: str) -> str | None:
        """Return which of the arrays a program calls `name`."""
        ...

    def read(self, names: Iterable[str]) -> dict[str, Array]:
        """Read some of the arrays."""
        ...

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Read some rows of an array."""
        ...


def locate(path: str) -> str | None:
    """Return the path of what TensorFlow or Keras saved; None if it is nothing of theirs.

    Args:
      path: that, or a directory in which TensorFlow saves checkpoints, for the newest.

    Raises:
      NotFoundError: when a file of it is missing.
    """
    return path if is_keras_file(path) else prefix_of(path)


def open_foreign(path: str) -> Foreign | None:
    """Open what TensorFlow or Keras saved to a path; None if it is nothing of theirs.

    Raises:
      NotFoundError: when a file of it is missing.
      DataLossError: when one is damaged.
    """
    found = locate(path)
    if found is None:
        return None
    return KerasFile(found) if is_keras_file(found) else TensorFlowCheckpoint(found)


def open_source(path: str) -> ForeignSource | None:
    """Open what TensorFlow or Keras saved to a path, to restore from; else as `open_foreign`."""
    foreign = open_foreign(path)
    if foreign is None:
        return None
    foreign.verify()  # before anything is changed
    return ForeignSource(foreign)


class ForeignSource:
    """What another library saved, with types that JAX has.

    Other libraries count with integers of 64 bits, and JAX usually has 32; where the numbers fit
    they are the same ones.
    """

    def __init__(self, foreign: Foreign) -> None:
        self._foreign = foreign
        self.path = foreign.path
        self.find = foreign.find
        arrays = {
            name: {"shape": list(shape), "dtype": str(_type_here(dtype))}
            for name, (shape, dtype) in foreign.arrays.items()
        }
        self.index: dict[str, Any] = {**EMPTY, ARRAYS: arrays}
        if foreign.save_counter is not None:
            self.index["save_counter"] = foreign.save_counter

    def load(self, names: Iterable[str]) -> dict[str, Array]:
        """Read some arrays.

        Raises:
          DataLossError: when one is damaged.
          InvalidArgumentError: when JAX has no integers that are large enough.
        """
        return {name: self._here(name, a) for name, a in self._foreign.read(names).items()}

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Read some rows of an array; else as `load`."""
        return self._here(name, self._foreign.rows(name, start, stop))

    def _here(self, name: str, array: Array) -> Array:
        here = _type_here(array.dtype)
        as_here = array.astype(here, copy=False)
        if here != array.dtype and not np.array_equal(as_here, array):
            raise InvalidArgumentError(
                f"{name!r} of {self.path!r} has integers that do not fit into {here}. Let JAX have "
                "larger ones: set the environment variable JAX_ENABLE_X64=1."
            )
        return as_here


def _type_here(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype)) if dtype.kind in "iu" else dtype
