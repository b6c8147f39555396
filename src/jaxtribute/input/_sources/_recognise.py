"""What can be distributed, as operations of ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from ... import _tree
from ...data import Dataset, _ops
from ...values import DistributedValues
from ._grain import from_grain
from ._iterables import IterableSource
from ._tensorflow import from_tensorflow
from ._torch import from_torch


def as_op(value: Any) -> _ops.Op:
    """Return the operations that read `value`.

    Raises:
      TypeError: when it is nothing that can be read, or can be read only once.
    """
    if isinstance(value, Dataset):
        return value.op
    for recognise in (from_grain, from_tensorflow, from_torch):
        op = recognise(value)
        if op is not None:
            return op
    if isinstance(value, (Distributed, DistributedValues)):
        raise TypeError(f"{value!r} is distributed already. Pass the dataset it was made from.")
    if isinstance(value, Iterator):
        raise TypeError(
            f"{value!r} can be read only once, so there could be no second epoch. Pass what it was "
            "made from, or Dataset.from_generator with the function that makes it."
        )
    if _is_structure_of_arrays(value):
        return Dataset.from_tensors(value).op
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise TypeError(
            f"Expected a dataset, got {value!r}: a jt.data.Dataset, an iterable of (nested) arrays "
            "that can be read again, arrays, a dataset of Grain or tf.data, or a DataLoader of "
            "PyTorch."
        )
    return _ops.External(IterableSource(value))


class Distributed:
    """Marks what is divided between replicas already."""


def _is_structure_of_arrays(value: Any) -> bool:
    if isinstance(value, list):  # of elements
        return False
    leaves, _ = _tree.flatten(value)
    return bool(leaves) and all(isinstance(leaf, (np.ndarray, jax.Array)) for leaf in leaves)
