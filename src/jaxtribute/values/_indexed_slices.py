"""Some rows of an array, such as the gradient of a lookup."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._ids import check_in_range, or_past_the_last
from .._wide import asarray

__all__ = ["IndexedSlices"]


@jax.tree_util.register_pytree_node_class
class IndexedSlices:
    """Rows of an array whose other rows are zero; a row named twice is added up.

    >>> slices = jt.IndexedSlices(
    ...     values=jnp.array([[1.0, 2.0]]), indices=jnp.array([1]), dense_shape=(3, 2)
    ... )
    >>> slices.to_dense()
    Array([[0., 0.],
           [1., 2.],
           [0., 0.]], dtype=float32)

    Args:
      values: the rows.
      indices: the index of each row.
      dense_shape: the shape of the whole array, where it is known.
    """

    def __init__(
        self, values: Any, indices: Any, dense_shape: tuple[int, ...] | None = None
    ) -> None:
        self.values = values
        self.indices = indices
        self.dense_shape = None if dense_shape is None else tuple(int(d) for d in dense_shape)

    @property
    def dtype(self) -> Any:
        """The type of the rows."""
        return jnp.asarray(self.values).dtype

    def to_dense(self, shape: tuple[int, ...] | None = None) -> jax.Array:
        """Return the whole array.

        Inside compiled functions, where indices are known too late, those out of range are left
        out.

        Raises:
          ValueError: when no shape is known, or an index is out of range, negative ones included.
        """
        shape = shape or self.dense_shape
        if shape is None:
            raise ValueError(
                "These slices do not know the shape of the whole array: pass dense_shape=... to "
                "IndexedSlices, or the shape to to_dense."
            )
        if not isinstance(self.indices, Tracer):
            check_in_range(f"the array of shape {shape}", shape[0], np.asarray(self.indices))
        indices = or_past_the_last(self.indices, shape[0])
        values = asarray(self.values, "IndexedSlices")
        return jnp.zeros(shape, self.dtype).at[indices].add(values, mode="drop")

    def __jax_array__(self) -> jax.Array:
        return self.to_dense()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.to_dense(), dtype=dtype)

    def tree_flatten(self) -> tuple[tuple[Any, Any], tuple[int, ...] | None]:
        """Take apart, for JAX."""
        return (self.values, self.indices), self.dense_shape

    @classmethod
    def tree_unflatten(
        cls, dense_shape: tuple[int, ...] | None, children: tuple[Any, Any]
    ) -> IndexedSlices:
        """Put together, for JAX."""
        self = cls.__new__(cls)
        self.values, self.indices = children
        self.dense_shape = dense_shape
        return self

    def __repr__(self) -> str:
        return (
            f"IndexedSlices(indices={self.indices!r}, values={self.values!r}, "
            f"dense_shape={self.dense_shape})"
        )
