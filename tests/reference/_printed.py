"""Comparing arrays with the way the reference documents print tensors."""

from typing import Any

import jax
import numpy as np

import jaxtribute as jt


def assert_tensor(array: Any, shape: tuple[int, ...], dtype: str, numpy: Any) -> None:
    """Hold `array` against `<tf.Tensor: shape=..., dtype=..., numpy=...>`."""
    assert isinstance(array, jax.Array)
    assert array.shape == shape
    assert array.dtype == dtype
    np.testing.assert_array_equal(np.asarray(array), np.asarray(numpy))


def assert_per_replica(value: Any, *tensors: tuple[tuple[int, ...], str, Any]) -> None:
    """Hold `value` against `PerReplica:{0: <tf.Tensor: ...>, 1: ...}`."""
    assert isinstance(value, jt.PerReplica)
    assert len(value.values) == len(tensors)
    for component, (shape, dtype, numpy) in zip(value.values, tensors, strict=True):
        assert_tensor(component, shape, dtype, numpy)
