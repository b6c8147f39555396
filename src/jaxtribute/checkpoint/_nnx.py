"""Flax NNX in checkpoints: modules, optimizers, metrics, and variables wherever they are.

Names are those of attributes, so a module has the same as the state that `nnx.split` makes of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .. import _tree
from .._jax_compat import is_tracing
from ..variables import _awaited
from . import _objects
from ._adapters import Adapter, Array, OtherVariable, Parts, register

_OF_NNX_ITSELF = "_pytree__"  # what its attributes begin with


class _Kept(OtherVariable):
    """Something that holds an array, a random key or a number, and can be given another one."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._data().shape)

    @property
    def dtype(self) -> Any:
        return self._data().dtype

    def value(self) -> Array:
        return np.asarray(self._data())

    def _data(self) -> Any:
        held = self.share()
        if _objects.is_random_key(held):
            return jax.random.key_data(held)
        return held if isinstance(held, jax.Array) else np.asarray(held)

    def converted(self, value: Array) -> Any:
        old = self.share()
        if _objects.is_random_key(old):
            return jax.random.wrap_key_data(jnp.array(value), impl=jax.random.key_impl(old))
        if isinstance(old, jax.Array):
            return jax.device_put(value, old.sharding) if old.committed else jnp.array(value)
        return np.array(value) if isinstance(old, np.ndarray) else np.asarray(value).item()


class _Variable(_Kept):
    def __init__(self, variable: Any) -> None:
        self._variable = variable

    def share(self) -> Any:
        return self._variable.get_value()

    def store(self, data: Any, shared: bool = False) -> None:
        self._variable.set_value(data)


class _Attribute(_Kept):
    """An array that an attribute of a module holds without a variable around it."""

    def __init__(self, module: Any, name: str, position: int) -> None:
        self._module = module
        self._name = name
        self._position = position

    def share(self) -> Any:
        return _leaves(getattr(self._module, self._name))[self._position][1]

    def store(self, data: Any, shared: bool = False) -> None:
        held = getattr(self._module, self._name)
        leaves, structure = jax.tree_util.tree_flatten(held, is_leaf=_is_leaf)
        leaves[self._position] = data
        setattr(self._module, self._name, jax.tree_util.tree_unflatten(structure, leaves))


def _as_variable(variable: Any) -> _Variable:
    value = variable.get_value()
    if not _objects.is_plain(value) or isinstance(value, str):
        raise ValueError(
            f"A checkpoint keeps NNX variables that hold an array, a random key or a number, and a "
            f"{type(variable).__name__} here holds {value!r}. Of a state that `run` returned, take "
            "the first replica's: strategy.experimental_local_results(state)[0]."
        )
    return _Variable(variable)


def _parts(module: Any) -> Parts:
    for name, held in sorted(vars(module).items()):
        if name.startswith(_OF_NNX_ITSELF):
            continue
        for position, (keys, leaf) in enumerate(_leaves(held)):
            way = (name, *(jax.tree_util.keystr((key,), simple=True) for key in keys))
            if isinstance(leaf, (jax.Array, np.ndarray)):
                yield way, _Attribute(module, name, position)
            else:
                yield way, leaf


def _leaves(held: Any) -> list[tuple[tuple[Any, ...], Any]]:
    return jax.tree_util.tree_flatten_with_path(held, is_leaf=_is_leaf)[0]


def _is_leaf(value: Any) -> bool:
    return isinstance(value, (nnx.Variable, nnx.Pytree, _tree.Leaf))


# --- Objects that come into being later ----------------------------------------------------


def _telling(own: Callable[[Any, str, Any], None]) -> Callable[[Any, str, Any], None]:
    """Return what sets an attribute of a module, and tells that there is something new."""

    def set_attribute(module: Any, name: str, value: Any) -> None:
        own(module, name, value)
        # While NNX traces, modules hold tracers; what it then creates is there when that is over.
        if _awaited.is_waiting() and not isinstance(value, (int, str)) and not is_tracing():
            _awaited.attached()

    return functools.update_wrapper(set_attribute, own)


nnx.Pytree.__setattr__ = _telling(nnx.Pytree.__setattr__)

register(nnx.Variable, Adapter(variable=_as_variable))
register(nnx.Pytree, Adapter(parts=_parts))
