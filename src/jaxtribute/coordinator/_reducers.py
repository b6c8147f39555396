"""How things are pickled that would not be, or not well, by themselves."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..data._cache import FileStore, MemoryStore
from ..data._passes import Passes
from ..values import DistributedValues, PerReplica
from ..variables import Variable

__all__ = ["reduced", "register"]

Reducer = Callable[[Any], Any]

_registered: list[Reducer] = []

# Imported once the library is, by which a program shows that it may have objects of it.
_OWN = {"flax.nnx": f"{__package__}._nnx"}


def register(reducer: Reducer) -> None:
    """Ask a function about things of another library, before they pickle by themselves.

    Args:
      reducer: returns what `__reduce__` would, or NotImplemented for what is none of its business.
    """
    _registered.append(reducer)


def reduced(value: Any) -> Any:
    """Return what `__reduce__` would, or NotImplemented for what pickles by itself.

    Raises:
      TypeError: when it cannot be sent to another process.
    """
    if isinstance(value, jax.Array):
        return _reduced_array(value)
    if isinstance(value, Variable) and type(value).__reduce__ is Variable.__reduce__:
        raise TypeError(
            f"the variable {value.name!r} was created outside of the strategy's scope, so it "
            "exists on the coordinator only. Create it inside `with strategy.scope():`, which puts "
            "it on the parameter servers, or pass its value."
        )
    if isinstance(value, DistributedValues) and not isinstance(value, Variable):
        return PerReplica, (value.values,)
    if isinstance(value, (Passes, MemoryStore)):
        return type(value), ()
    if isinstance(value, FileStore):
        return FileStore, (str(vars(value)["_path"]),)
    for library, module in _OWN.items():
        if library in sys.modules and module not in sys.modules:
            importlib.import_module(module)
    for reducer in _registered:
        found = reducer(value)
        if found is not NotImplemented:
            return found
    return NotImplemented


def _reduced_array(array: Any) -> Any:
    if isinstance(array, Tracer):
        raise TypeError(
            f"{array} exists only while JAX traces the function that calls `schedule`. Call "
            "`schedule` outside of jt.function and jax.jit."
        )
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        data = np.asarray(jax.random.key_data(array))
        return _as_key, (data, str(jax.random.key_impl(array)))
    weak = bool(getattr(array, "weak_type", False)) and array.ndim == 0
    return _as_array, (np.asarray(array), weak)


def _as_array(array: Any, weak: bool) -> jax.Array:
    return jnp.asarray(array.item() if weak else array)  # only numbers of Python's are weakly typed


def _as_key(data: Any, implementation: str) -> jax.Array:
    return jax.random.wrap_key_data(jnp.asarray(data), impl=implementation)
