"""Descriptions of arrays: shape and type, without the values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._tree import Leaf

__all__ = ["PerReplicaSpec", "TensorSpec"]


class TensorSpec(Leaf):
    """The shape and type of an array; a dimension that may vary is None, or has a name.

    >>> spec = jt.TensorSpec([None, 3], jnp.float32)
    >>> spec
    TensorSpec(shape=(None, 3), dtype=float32, name=None)
    >>> spec.is_compatible_with(np.ones((5, 3), np.float32))
    True

    Args:
      shape: the size of each dimension, or None where it may vary; None for any rank. In models
        that are saved, dimensions of the same name, such as "batch", have the same size.
      dtype: the type of the elements.
      name: what the array is, for messages.
    """

    def __init__(
        self,
        shape: Sequence[int | str | None] | None,
        dtype: Any = jnp.float32,
        name: str | None = None,
    ) -> None:
        self.shape = None if shape is None else tuple(shape)
        self.dtype = jnp.dtype(dtype)
        self.name = name

    @classmethod
    def from_tensor(cls, tensor: Any, name: str | None = None) -> TensorSpec:
        """Return the description of an array."""
        return cls(np.shape(tensor), jnp.result_type(tensor), name)

    def is_compatible_with(self, value: Any) -> bool:
        """Tell whether an array, or a narrower description, fits this one."""
        if isinstance(value, TensorSpec):
            return self.dtype == value.dtype and _fits(self.shape, value.shape)
        if not hasattr(value, "shape") and not isinstance(value, (bool, int, float, complex)):
            return False
        # An array on the host fits as it is, and as what it becomes on a device.
        own = getattr(value, "dtype", None)
        is_text = isinstance(own, np.dtype) and own.kind in "OSU"
        fits = own == self.dtype or (not is_text and jnp.result_type(value) == self.dtype)
        return fits and _fits(self.shape, np.shape(value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorSpec) and (
            (self.shape, self.dtype, self.name) == (other.shape, other.dtype, other.name)
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype, self.name))

    def __repr__(self) -> str:
        return f"TensorSpec(shape={self.shape}, dtype={self.dtype}, name={self.name!r})"


class PerReplicaSpec(Leaf):
    """The descriptions of the components of a `PerReplica` value, replica by replica.

    >>> jt.PerReplicaSpec(jt.TensorSpec([None]), jt.TensorSpec([None]))
    PerReplicaSpec(TensorSpec(shape=(None,), dtype=float32, name=None), \
TensorSpec(shape=(None,), dtype=float32, name=None))
    """

    def __init__(self, *value_specs: TensorSpec) -> None:
        self.value_specs = value_specs

    def is_compatible_with(self, value: Any) -> bool:
        """Tell whether a per-replica value, or a narrower description, fits this one."""
        if isinstance(value, PerReplicaSpec):
            parts: Any = value.value_specs
        else:
            parts = getattr(value, "values", None)  # of a distributed value
        if not isinstance(parts, tuple):
            return False
        return len(parts) == len(self.value_specs) and all(
            spec.is_compatible_with(part)
            for spec, part in zip(self.value_specs, parts, strict=True)
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PerReplicaSpec) and self.value_specs == other.value_specs

    def __hash__(self) -> int:
        return hash(self.value_specs)

    def __repr__(self) -> str:
        return f"PerReplicaSpec({', '.join(map(repr, self.value_specs))})"


_Shape = tuple[int | str | None, ...]


def as_tensor_spec(spec: Any) -> Any:
    """Return a description of JAX's as one of ours, and everything else as it is."""
    return TensorSpec(spec.shape, spec.dtype) if isinstance(spec, jax.ShapeDtypeStruct) else spec


def _fits(wide: _Shape | None, narrow: _Shape | None) -> bool:
    if wide is None:
        return True
    if narrow is None or len(wide) != len(narrow):
        return False
    return all(w is None or isinstance(w, str) or w == n for w, n in zip(wide, narrow, strict=True))
