"""Bags of ids of different sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..values._arithmetic import operand

__all__ = ["RaggedIds"]


@jax.tree_util.register_pytree_node_class
class RaggedIds:
    """Several ids for each example, of any number, for `embedding_lookup` with a combiner.

    It is an argument like an array for `jt.function` and `run`. What comes after the last bag is
    not looked at, so that `values` can be padded to few different lengths.

    >>> ids = jt.nn.RaggedIds.from_lists([[0, 3], [], [1]])
    >>> ids.values.tolist(), ids.row_splits.tolist(), ids.num_bags
    ([0, 3, 1], [0, 2, 2, 3], 3)

    Args:
      values: the ids of all bags, one after the other.
      row_splits: where each bag begins in `values`, and where the last one ends.

    Raises:
      ValueError: when these do not have one axis, or do not describe bags.
      TypeError: when they are not whole numbers.
    """

    def __init__(self, values: Any, row_splits: Any) -> None:
        self.values = whole_numbers("values", values)
        self.row_splits = whole_numbers("row_splits", row_splits)
        if self.values.ndim != 1 or self.row_splits.ndim != 1 or not self.row_splits.size:
            raise ValueError(
                "RaggedIds needs values with one axis, and row_splits with one axis and at least "
                f"one element, got the shapes {self.values.shape} and {self.row_splits.shape}."
            )
        if isinstance(self.row_splits, Tracer):
            return
        splits = np.asarray(self.row_splits)
        if splits[0] != 0 or (np.diff(splits) < 0).any() or splits[-1] > self.values.size:
            raise ValueError(
                "row_splits must begin with 0, never go down, and end within the "
                f"{self.values.size} values; got {splits.tolist()}."
            )

    @classmethod
    def from_lists(cls, bags: Iterable[Sequence[int]]) -> RaggedIds:
        """Return the ids of a list for each example."""
        bags = [list(bag) for bag in bags]
        values = np.array(list(itertools.chain(*bags)), np.int32 if not any(bags) else None)
        return cls(values, np.array([0, *itertools.accumulate(map(len, bags))], np.int32))

    @property
    def num_bags(self) -> int:
        """How many bags there are."""
        return self.row_splits.shape[0] - 1

    def bag_of_each(self) -> Any:
        """Return the number of the bag each id is in; that of no bag for what comes after."""
        places = np.arange(self.values.shape[0], dtype=np.int32)
        if isinstance(self.row_splits, Tracer):
            return jnp.searchsorted(self.row_splits, places, side="right") - 1
        return np.searchsorted(np.asarray(self.row_splits), places, side="right") - 1

    def tree_flatten(self) -> tuple[tuple[Any, Any], None]:
        """Take apart, for JAX."""
        return (self.values, self.row_splits), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any, Any]) -> RaggedIds:
        """Put together, for JAX."""
        self = cls.__new__(cls)
        self.values, self.row_splits = children
        return self

    def __repr__(self) -> str:
        return f"RaggedIds(values={self.values!r}, row_splits={self.row_splits!r})"


def whole_numbers(what: str, value: Any) -> Any:
    """Return `value` as an array: a NumPy one where it is known, a tracer where it is not.

    Raises:
      TypeError: when it holds anything but whole numbers.
      ValueError: for lists of different lengths.
    """
    value = operand(value)
    if isinstance(value, Tracer):
        array = value
    else:
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise ValueError(
                f"{what} must be an array. For bags of different sizes use "
                "jt.nn.RaggedIds.from_lists, or pad them with -1."
            ) from error
        if not array.size and not isinstance(value, (np.ndarray, jax.Array)):
            array = array.astype(np.int32)  # an empty list
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"{what} must be whole numbers, got dtype {array.dtype}.")
    return array
