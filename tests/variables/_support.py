"""What the tests of variables and compiled functions share."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import jaxtribute as jt

NONE = jt.VariableAggregation.NONE
SUM = jt.VariableAggregation.SUM
MEAN = jt.VariableAggregation.MEAN
FIRST = jt.VariableAggregation.ONLY_FIRST_REPLICA

AUTO = jt.VariableSynchronization.AUTO
ON_WRITE = jt.VariableSynchronization.ON_WRITE
ON_READ = jt.VariableSynchronization.ON_READ

both_ways = pytest.mark.parametrize("way", ["eager", "compiled"])


@functools.cache
def mirrored(replicas: int = 2) -> jt.MirroredStrategy:
    return jt.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


@functools.cache
def one_device(name: str = "CPU:0") -> jt.OneDeviceStrategy:
    return jt.OneDeviceStrategy(name)


def run(way: str, strategy: Any, fn: Callable[..., Any], args: Sequence[Any] = ()) -> Any:
    """Call `fn` on each replica, as Python or as one program."""
    if way == "eager":
        return strategy.run(fn, args=args)
    return jt.function(lambda *a: strategy.run(fn, args=a))(*args)


def call(way: str, fn: Callable[..., Any], *args: Any) -> Any:
    """Call `fn`, as Python or compiled."""
    return fn(*args) if way == "eager" else jt.function(fn)(*args)


def replica_id() -> Any:
    return jt.get_replica_context().replica_id_in_sync_group


def create(strategy: Any, *args: Any, **kwargs: Any) -> Any:
    with strategy.scope():
        return jt.Variable(*args, **kwargs)


def components(variable: Any) -> list[Any]:
    """Return the value on each replica, as Python numbers and lists."""
    copies = variable.distribute_strategy.experimental_local_results(variable)
    return [np.asarray(copy.value()).tolist() for copy in copies]


def local(strategy: Any, value: Any) -> list[Any]:
    """Return the components of a result, as Python numbers and lists."""
    return [np.asarray(v).tolist() for v in strategy.experimental_local_results(value)]


def aligned(values: Any, dtype: Any = np.float32) -> np.ndarray:
    """Return a NumPy array that JAX can use without copying, as its memory is aligned."""
    source = np.asarray(values, dtype)
    memory = np.zeros(source.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64
    array = memory[start : start + source.nbytes].view(dtype).reshape(source.shape)
    array[...] = source
    return array
