"""How many shards a variable is divided into, and which rows each gets. Numbers only."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__all__ = [
    "FixedShardsPartitioner",
    "MaxSizePartitioner",
    "MinSizePartitioner",
    "Partitioner",
]


class Partitioner(ABC):
    """Decides into how many shards a new variable is divided.

    Given to `ParameterServerStrategy`, it is called with the shape and dtype of each variable that
    is created. Any function of these arguments will do as well.

    >>> class OneShardPerHundredRows(jt.experimental.partitioners.Partitioner):
    ...     def __call__(self, shape, dtype, axis=0):
    ...         return [max(1, shape[0] // 100), *(1 for _ in shape[1:])]
    >>> OneShardPerHundredRows()((250, 8), jnp.float32)
    [2, 1]
    """

    @abstractmethod
    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """Return how many parts each axis is divided into.

        Args:
          shape: the shape of the variable.
          dtype: the type of its elements.
          axis: the axis to divide; all others are left whole.

        Returns:
          A number for each axis, 1 for those left whole.
        """


class FixedShardsPartitioner(Partitioner):
    """Divides every variable into the same number of shards.

    >>> partitioner = jt.experimental.partitioners.FixedShardsPartitioner(num_shards=2)
    >>> partitioner((10, 3), jnp.float32), partitioner((1,), jnp.float32)
    ([2, 1], [1])

    Args:
      num_shards: how many; a variable with fewer rows gets one for each row.

    Raises:
      ValueError: when `num_shards` is not positive.
    """

    def __init__(self, num_shards: int) -> None:
        self._num_shards = _positive("num_shards", num_shards)

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        _check_axis(shape, axis)
        return _along(axis, shape, min(self._num_shards, shape[axis]))


class MinSizePartitioner(Partitioner):
    """Divides variables into as many shards as a least size of shards allows.

    The number is rounded up, so shards may be a little smaller.

    >>> partitioner = jt.experimental.partitioners.MinSizePartitioner(256 << 10, max_shards=4)
    >>> partitioner((1000, 100), jnp.float32)
    [2, 1]

    Args:
      min_shard_bytes: the size of a shard to aim at, at least.
      max_shards: the most shards a variable is divided into.
      bytes_per_string: how much a string counts for.

    Raises:
      ValueError: when one of them is not positive, or, later, for a scalar.
    """

    def __init__(
        self, min_shard_bytes: int = 256 << 10, max_shards: int = 1, bytes_per_string: int = 16
    ) -> None:
        self._min_shard_bytes = _positive("min_shard_bytes", min_shard_bytes)
        self._max_shards = _positive("max_shards", max_shards)
        self._bytes_per_string = _positive("bytes_per_string", bytes_per_string)

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        _check_axis(shape, axis)
        total = math.prod(shape) * _element_bytes(dtype, self._bytes_per_string)
        allowed = _ceil_div(total, self._min_shard_bytes)
        return _along(axis, shape, min(shape[axis], self._max_shards, allowed))


class MaxSizePartitioner(Partitioner):
    """Divides variables into as many shards as a greatest size of shards requires.

    >>> partitioner = jt.experimental.partitioners.MaxSizePartitioner(max_shard_bytes=1000)
    >>> partitioner((100, 9), jnp.float32)
    [4, 1]

    Args:
      max_shard_bytes: the greatest size of a shard; a row is never divided, however large.
      max_shards: the most shards a variable is divided into, even if they get larger; any number
        by default.
      bytes_per_string: how much a string counts for.

    Raises:
      ValueError: when one of them is not positive, or, later, for a scalar.
    """

    def __init__(
        self, max_shard_bytes: int, max_shards: int | None = None, bytes_per_string: int = 16
    ) -> None:
        self._max_shard_bytes = _positive("max_shard_bytes", max_shard_bytes)
        # 0 means no limit, as in the reference.
        self._max_shards = _positive("max_shards", max_shards) if max_shards else None
        self._bytes_per_string = _positive("bytes_per_string", bytes_per_string)

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        _check_axis(shape, axis)
        others = math.prod(size for i, size in enumerate(shape) if i != axis)
        row_bytes = others * _element_bytes(dtype, self._bytes_per_string)
        rows = max(1, self._max_shard_bytes // row_bytes if row_bytes else shape[axis])
        shards = _ceil_div(shape[axis], rows)
        return _along(axis, shape, min(shards, self._max_shards or shards))


def number_of_shards(partitioner: Callable[..., Any], shape: Sequence[int], dtype: Any) -> int:
    """Ask a partitioner, and check its answer.

    Returns:
      How many shards a variable is to have; 1 if it is not to be divided.

    Raises:
      ValueError: when the partitioner returned something that is no division of the first axis.
    """
    if not shape:
        return 1
    answer = partitioner(shape=tuple(shape), dtype=dtype)
    try:
        parts = [int(part) for part in answer]
    except (TypeError, ValueError):
        parts = []
    if not parts or parts[0] < 1 or any(part != 1 for part in parts[1:]):
        raise ValueError(
            f"variable_partitioner {partitioner!r} returned {answer!r} for a variable of shape "
            f"{tuple(shape)}. It must return a number for each axis: at least 1 for the first, "
            f"which is divided into that many shards, and 1 for all others, such as "
            f"{_along(0, shape, 2)}."
        )
    return min(parts[0], max(1, shape[0]))


def div_sizes(rows: int, shards: int) -> list[int]:
    """Return how many rows each shard gets: as even as possible, the first ones one more.

    With fewer rows than shards, there is a shard for each row.
    """
    shards = max(1, min(rows, shards))
    size, left_over = divmod(rows, shards)
    return [size + (shard < left_over) for shard in range(shards)]


def offsets(sizes: Sequence[int]) -> list[int]:
    """Return the first row of each shard, and the number of rows of all."""
    return [0, *itertools.accumulate(sizes)]


def _along(axis: int, shape: Sequence[int], parts: int) -> list[int]:
    return [max(1, parts) if i == axis else 1 for i in range(len(shape))]


def _check_axis(shape: Sequence[int], axis: int) -> None:
    if not 0 <= axis < len(shape):
        raise ValueError(
            f"A variable of shape {tuple(shape)} has no axis {axis} to divide it along. Axes are "
            "counted from 0, and a scalar has none."
        )


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name} must be positive, got {value!r}.")
    return int(value)


def _ceil_div(amount: int, size: int) -> int:
    return -(-amount // size)


def _element_bytes(dtype: Any, bytes_per_string: int) -> int:
    kind = np.dtype(dtype)
    return bytes_per_string if kind.kind in "USOT" else kind.itemsize
