"""Sparse matrices of SciPy, JAX and TensorFlow, of which each batch becomes a dense array.

Replicas compute with dense arrays: parts of a sparse one differ in how many numbers they have, and
a program would be compiled for each.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from jax.experimental import sparse

_JAX = (sparse.BCOO, sparse.BCSR, sparse.COO, sparse.CSR, sparse.CSC)


def is_sparse(leaf: Any) -> bool:
    """Tell whether something is a sparse matrix, or tensor, that `SparseRows` can be made of."""
    return isinstance(leaf, (SparseRows, *_JAX)) or _is_scipy(leaf) or _is_tensorflow(leaf)


def _is_scipy(leaf: Any) -> bool:
    module = sys.modules.get("scipy.sparse")
    return module is not None and module.issparse(leaf)


def _is_tensorflow(leaf: Any) -> bool:
    module = sys.modules.get("tensorflow")
    return module is not None and isinstance(leaf, module.SparseTensor)


def dense(leaf: Any) -> Any:
    """Return a sparse matrix as a dense array, and anything else as it is."""
    if not is_sparse(leaf):
        return leaf
    rows = SparseRows.of(leaf)
    return rows.take(np.arange(len(rows)))


def sliceable(leaf: Any) -> Any:
    """Return a sparse matrix as something that has rows, and anything else as it is."""
    return SparseRows.of(leaf) if is_sparse(leaf) else leaf


class SparseRows:
    """The rows of a sparse array in memory, each of which becomes dense when it is taken.

    Args:
      rows: the row of each number, in order.
      places: where each is in its row, as the position in a flat one.
      values: the numbers.
      shape: the shape of the whole.
    """

    def __init__(self, rows: Any, places: Any, values: Any, shape: tuple[int, ...]) -> None:
        self._rows = rows
        self._places = places
        self._values = values
        self.shape = shape
        self.ndim = len(shape)
        self.dtype = values.dtype

    @classmethod
    def of(cls, leaf: Any) -> SparseRows:
        """Make it from a sparse matrix of any library."""
        if isinstance(leaf, cls):
            return leaf
        indices, values, shape = _coordinates(leaf)
        # JAX fills up with indices that are out of bounds.
        inside = (indices < np.array(shape)).all(axis=1)
        indices, values = indices[inside], values[inside]
        order = np.argsort(indices[:, 0], kind="stable")
        indices, values = indices[order], values[order]
        width = shape[1:]
        places = (
            np.ravel_multi_index(tuple(indices[:, 1:].T), width) if width else indices[:, 0] * 0
        )
        return cls(indices[:, 0], places, values, shape)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """The size of the rows once they are dense."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __getitem__(self, span: slice) -> SparseRows:
        start, stop, _ = span.indices(len(self))
        begin, end = np.searchsorted(self._rows, [start, stop])
        own = slice(begin, end)
        shape = (max(stop - start, 0), *self.shape[1:])
        return SparseRows(self._rows[own] - start, self._places[own], self._values[own], shape)

    def astype(self, dtype: Any) -> SparseRows:
        """Return the same numbers in another type."""
        return SparseRows(self._rows, self._places, self._values.astype(dtype), self.shape)

    def take(self, positions: Any, axis: int = 0) -> Any:
        """Return some rows as a dense array."""
        starts, stops = (np.searchsorted(self._rows, positions, side) for side in ("left", "right"))
        counts = stops - starts
        target = np.repeat(np.arange(len(positions)), counts)
        # The numbers of one row follow each other.
        within = np.arange(len(target)) - np.repeat(np.cumsum(counts) - counts, counts)
        found = np.repeat(starts, counts) + within
        taken = np.zeros((len(positions), math.prod(self.shape[1:])), self.dtype)
        np.add.at(taken, (target, self._places[found]), self._values[found])  # some may be twice
        return taken.reshape(len(positions), *self.shape[1:])


def _coordinates(leaf: Any) -> tuple[Any, Any, tuple[int, ...]]:
    """Return where the numbers of a sparse matrix are, one row for each, the numbers, the shape."""
    if _is_scipy(leaf):
        matrix = leaf.tocoo()
        return np.stack(matrix.coords, axis=1), matrix.data, tuple(matrix.shape)
    if _is_tensorflow(leaf):
        shape = tuple(int(size) for size in leaf.dense_shape)
        return leaf.indices.numpy(), leaf.values.numpy(), shape
    if not isinstance(leaf, (sparse.BCOO, sparse.BCSR)):
        leaf = sparse.BCOO.fromdense(leaf.todense())
    matrix = leaf.to_bcoo() if isinstance(leaf, sparse.BCSR) else leaf
    matrix = sparse.bcoo_update_layout(matrix, n_batch=0, n_dense=0, on_inefficient=None)
    return np.asarray(matrix.indices), np.asarray(matrix.data), tuple(matrix.shape)
