"""The content of one variable on a parameter server.

Contents are immutable and replaced as a whole, so that a reply can be sent without copying while
the next update already happens. Where single rows change, that would copy the whole table each
time: from its first such change on, a cell owns its array, changes it in place and gives out copies
of what is asked for.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgumentError, ResourceExhaustedError
from ..rpc import ArrayType, as_array

Array = npt.NDArray[Any]
Content = tuple[Array | None, jax.Array | None, bool, int]


class Cell:
    """A named array that changes, and a version that counts the changes.

    Args:
      name: the name, for messages.
      array: what it holds; it belongs to the cell, which changes it if it is writable.
      is_slot: whether programs take over its memory, as those of an optimizer do with its state.
    """

    __slots__ = ("_device", "_host", "_is_table", "dtype", "is_slot", "name", "shape", "version")

    def __init__(self, name: str, array: Array, *, is_slot: bool = False, version: int = 0) -> None:
        self.name = name
        self.shape = array.shape
        self.dtype = array.dtype
        self.is_slot = is_slot
        self.version = version
        # What an optimizer computed stays with the device; the host sees it when it has to.
        self._host: Array | None = array
        self._device: jax.Array | None = None
        self._is_table = False

    @property
    def nbytes(self) -> int:
        """How much memory the content takes."""
        return math.prod(self.shape) * self.dtype.itemsize

    # --- Reading ---------------------------------------------------------------------------

    def peek(self) -> Array:
        """Return the content, to be looked at only before the next change."""
        if self._host is not None:
            return self._host
        seen = np.asarray(self._device)
        if not self.is_slot:  # a view that is kept keeps the next program from taking the memory
            self._host = seen
        return seen

    def share(self) -> Array:
        """Return the content as it is now, which never changes any more."""
        content = self.peek()
        if self._is_table or self._host is None:
            return content.copy()
        content.flags.writeable = False
        return content

    def span(self, start: int, stop: int) -> Array:
        """Return some rows as they are now; a part is no reason to give up owning the rest."""
        part = self.peek()[start:stop]
        return part.copy() if self._host is None or part.flags.writeable else part

    def rows(self, indices: Array, padded_to: int = 0) -> Array:
        """Return a copy of rows, followed by rows of zeros up to `padded_to`."""
        content, count = self.peek(), len(indices)
        rows = aligned((max(count, padded_to), *self.shape[1:]), self.dtype)
        # The indices were checked: without `clip`, `take` would gather to a buffer first.
        np.take(content, indices, axis=0, out=rows[:count], mode="clip")
        rows[count:] = 0
        return rows

    def for_program(self) -> Array | jax.Array:
        """Return the content where a compiled program takes it from without copying, if it can."""
        return self.peek() if self._device is None else self._device

    # --- Changing --------------------------------------------------------------------------

    def replace(self, content: Array | jax.Array) -> None:
        """Put an array in the place of the content; nobody changes it afterwards but this cell."""
        on_device = isinstance(content, jax.Array)
        self._host, self._device = (None, content) if on_device else (content, None)
        self._is_table = False
        self.version += 1

    def write_span(self, start: int, rows: Array) -> None:
        """Replace consecutive rows."""
        self._own()[start : start + len(rows)] = rows
        self.version += 1

    def write_rows(self, indices: Array, rows: Array) -> None:
        """Replace rows in place; no index occurs twice."""
        self._own()[indices] = rows
        self._is_table = True
        self.version += 1

    def _own(self) -> Array:
        content = self.peek()
        if self._host is None or not content.flags.writeable:
            content = content.copy()
        self._host, self._device = content, None
        return content

    # --- Undoing ---------------------------------------------------------------------------

    def content(self) -> Content:
        """Return what `reset` takes, apart from rows that change in place."""
        return self._host, self._device, self._is_table, self.version

    def reset(self, content: Content) -> None:
        """Go back to what `content` returned."""
        self._host, self._device, self._is_table, self.version = content


class Change(NamedTuple):
    """How to undo one change of a cell; `rows` are those that were replaced in place."""

    cell: Cell
    before: Content
    indices: Array | None = None
    rows: Array | None = None

    def undo(self) -> None:
        """Make the cell as it was before the change, provided that later ones were undone."""
        if self.indices is not None and self.rows is not None:
            self.cell.write_rows(self.indices, self.rows)
        self.cell.reset(self.before)


def replaced(cell: Cell, content: Array | jax.Array) -> Change:
    """Replace the content of a cell."""
    change = Change(cell, cell.content())
    cell.replace(content)
    return change


def rows_replaced(cell: Cell, indices: Array, old: Array, new: Array) -> Change:
    """Replace rows of a cell, which were `old`."""
    change = Change(cell, cell.content(), indices, old)
    cell.write_rows(indices, new)
    return change


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an array of anything, that compiled programs read where it is, without copying it."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


_ALIGNMENT = 64


def zeros(type: ArrayType) -> Array:
    """Return an array of zeros, which takes no memory until it is written to.

    Raises:
      InvalidArgumentError: when there is no such array.
      ResourceExhaustedError: when there is no room for it.
    """
    dtype = as_array(ArrayType(type.dtype, (0,)), b"").dtype
    try:
        return np.zeros(type.shape, dtype)
    except ValueError as error:
        raise InvalidArgumentError(f"There is no array of shape {type.shape}: {error}.") from error
    except MemoryError as error:
        raise ResourceExhaustedError(
            f"There is no memory for an array of shape {type.shape} and type {type.dtype}. Divide "
            "it over more parameter servers, with a partitioner."
        ) from error
