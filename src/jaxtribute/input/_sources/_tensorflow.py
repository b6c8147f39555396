"""Datasets of tf.data."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from ... import _tree
from ..._specs import TensorSpec
from ...data import AutoShardPolicy, Options, _ops
from ...errors import InvalidArgumentError
from ._iterables import as_numpy


def from_tensorflow(value: Any) -> _ops.Op | None:
    tf = sys.modules.get("tensorflow")
    if tf is None or not isinstance(value, tf.data.Dataset):
        return None
    policy = AutoShardPolicy[value.options().experimental_distribute.auto_shard_policy.name]
    if policy in (AutoShardPolicy.FILE, AutoShardPolicy.HINT):
        raise InvalidArgumentError(
            f"The tf.data.Dataset asks for AutoShardPolicy.{policy.name}, which needs to look "
            "inside it. Use DATA or OFF, a jt.data.Dataset, or divide it yourself with `shard` in "
            "distribute_datasets_from_function."
        )
    options = Options()
    options.experimental_distribute.auto_shard_policy = policy
    return _ops.WithOptions(_ops.External(_TensorFlowSource(value)), options)


class _TensorFlowSource:
    """A dataset of tf.data, read as NumPy arrays."""

    name = "the tf.data.Dataset"

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.size = int(dataset.cardinality())
        self.spec = _tree.map_leaves(_from_tensorflow_spec, dataset.element_spec)

    def open(self) -> Iterator[Any]:
        """Start reading."""
        return _TensorFlowIterator(self._dataset)


def _from_tensorflow_spec(spec: Any) -> TensorSpec:
    if type(spec).__name__ != "TensorSpec":
        raise InvalidArgumentError(
            f"The tf.data.Dataset has elements of the type {type(spec).__name__}, of which JAX has "
            "no counterpart. Convert them to dense tensors in a `map` first."
        )
    dtype = np.dtype(object) if spec.dtype.name == "string" else spec.dtype.as_numpy_dtype
    return TensorSpec(spec.shape.as_list() if spec.shape.rank is not None else None, dtype)


class _TensorFlowIterator:
    """The elements of a dataset of tf.data; a state is their number."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._taken = 0
        self._elements: Any = None  # not made yet: each new one has another order after `shuffle`

    def __iter__(self) -> _TensorFlowIterator:
        return self

    def __next__(self) -> Any:
        if self._elements is None:
            self.set_state({"taken": 0})
            assert self._elements is not None
        element = next(self._elements)
        self._taken += 1
        return _tree.map_leaves(as_numpy, element)

    def get_state(self) -> dict[str, Any]:
        return {"taken": self._taken}

    def set_state(self, state: dict[str, Any]) -> None:
        self._taken = state["taken"]
        rest = self._dataset.skip(self._taken) if self._taken else self._dataset
        self._elements = rest.as_numpy_iterator()
