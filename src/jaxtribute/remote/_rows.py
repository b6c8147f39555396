"""Which rows of a table are on which parameter server. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InvalidArgumentError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Distinct:
    """Ids without repetition, in order, and where each of the original ones is among them."""

    ids: Array
    unique: Array
    inverse: Array

    @classmethod
    def of(cls, ids: Array, rows: int, name: str) -> Distinct:
        """Find the distinct ones among the rows that are asked for.

        Raises:
          InvalidArgumentError: when the table has no such row.
        """
        unique, inverse = np.unique(ids, return_inverse=True)
        if unique.size and (unique[0] < 0 or unique[-1] >= rows):
            wrong = unique[(unique < 0) | (unique >= rows)]
            raise InvalidArgumentError(
                f"The table {name!r} has {rows} rows, numbered from 0, and row "
                f"{', '.join(map(str, wrong[:5]))} was asked for."
            )
        return cls(ids, unique.astype(np.int64, copy=False), inverse.reshape(ids.shape))

    def expanded(self, rows: Array) -> Array:
        """Return a row for each of the original ids, given those of the distinct ones."""
        return np.take(rows, self.inverse, axis=0)

    def summed(self, rows: Array) -> Array:
        """Return a row for each distinct id, given those of the original ones."""
        if self.unique.size == self.ids.size:
            summed = np.empty_like(rows)
            summed[self.inverse] = rows
            return summed
        if rows.dtype in (np.float32, np.float64):
            # A product with a sparse matrix of ones needs no sorting: a seventh of the time.
            from scipy.sparse import csc_matrix  # heavy, so not before it is needed

            count = self.ids.size
            matrix = csc_matrix(
                (np.ones(count, rows.dtype), self.inverse, np.arange(count + 1)),
                shape=(self.unique.size, count),
            )
            return (matrix @ rows.reshape(count, -1)).reshape(-1, *rows.shape[1:])
        order = np.argsort(self.inverse, kind="stable")
        starts = np.searchsorted(self.inverse[order], np.arange(self.unique.size))
        return np.add.reduceat(rows[order], starts, axis=0)


def split(unique: Array, sizes: Sequence[int]) -> list[tuple[slice, Array]]:
    """Divide ordered ids between shards of so many rows.

    Returns:
      For each shard, which of the ids are its own, and what they are called there.
    """
    ends = np.cumsum(sizes)
    bounds = np.searchsorted(unique, ends)
    parts: list[tuple[slice, Array]] = []
    first = 0
    for size, end, bound in zip(sizes, ends, bounds, strict=True):
        parts.append((slice(first, int(bound)), unique[first:bound] - (end - size)))
        first = int(bound)
    return parts
