"""Variables that another library keeps, as variables of this one.

Keras and NNX have variables of their own. While a function is traced, a replica runs or a gradient
is taken, each that is read or assigned is adopted: a frame treats it as any other variable, and the
value is where it always was, in the object of its library.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
from jax.core import Tracer

from .. import _context, _integrations
from .._reduce import VariableAggregation, VariableSynchronization
from . import _frames
from ._base import Combine, Variable
from ._copies import copied


class Keeper(Protocol):
    """Where the value of a variable of another library is."""

    library: str
    advice: str
    """What to write where several replicas are to assign it; a sentence."""
    trainable: bool

    @property
    def name(self) -> str:
        """How users know it."""
        ...

    def get(self) -> Any:
        """Return the value itself, whatever is being traced."""
        ...

    def set(self, value: Any) -> None:
        """Replace the value itself, whatever is being traced."""
        ...


class Adopted(Variable):
    """A variable of another library, which keeps the value."""

    serial = 0  # it was there before it is adopted

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._trainable = keeper.trainable
        self._synchronization = VariableSynchronization.AUTO
        self._aggregation = VariableAggregation.NONE
        self._device = None
        self._refs = {}
        self._shared = True  # nobody knows who has been given the array
        self._copies: dict[jax.Device, tuple[Any, Any]] = {}  # of what, for eager replicas

    # --- What it is: the library may replace it by another shape or type ---------------------

    @property
    def name(self) -> str:
        """The name, which its library gives it."""
        return self._keeper.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return self._data.shape

    @property
    def dtype(self) -> Any:
        """The type of the elements."""
        return self._data.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._data.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._data.size

    # --- Where the value is ------------------------------------------------------------------

    @property
    def _data(self) -> jax.Array:  # pyright: ignore[reportIncompatibleVariableOverride]
        value = self._keeper.get()
        return value if isinstance(value, jax.Array) else jnp.asarray(value)

    def take_over(self) -> jax.Array:
        """Return a copy, for a program to overwrite: others may hold the array itself.

        Raises:
          FailedPreconditionError: when it is lost.
        """
        return copied(self.load())

    def store(self, data: jax.Array, shared: bool = False) -> None:
        """Replace the value, which stays on the devices where it was."""
        self._keeper.set(_like(data, self._data))

    def store_output(self, data: jax.Array, shared: bool = False) -> None:
        """Replace the value by an output of a compiled program."""
        self.store(data)

    def store_foreign(self, data: jax.Array) -> None:
        """Replace the value by an output of a program for other devices."""
        self.store(data)

    def remember(self) -> Callable[[], None]:
        """Return a function that puts back what the value is now."""
        data = self._data
        return lambda: self._keeper.set(data)

    def component_data(self, index: int) -> jax.Array:
        """Return the only copy, on the device of the replica that asks."""
        data, device = self._data, cast(Any, jax.config).jax_default_device
        if not isinstance(device, jax.Device) or not data.committed or data.devices() == {device}:
            return data
        source, copy = self._copies.get(device, (None, None))
        if copy is None or source is not data:
            copy = jax.device_put(data, device)
            self._copies[device] = data, copy
        return copy

    def read_in_foreign_trace(self, on_all_devices: bool = False) -> Any:
        """Return the value inside a `jax.jit` or the like, where it is what its library says."""
        return self._data

    def start_from(self, value: Any) -> None:
        """Have a variable that has no value yet start from one that a program computes."""
        with jax.ensure_compile_time_eval():
            self._blank = jnp.zeros(value.shape, value.dtype)
        self._blank.delete()
        self._keeper.set(self._blank)
        _frames.start(self, value)

    # --- Writing -----------------------------------------------------------------------------

    def _update(self, combine: Combine, value: Any) -> Any:
        self.put(combine(self.value(), value))
        return self

    def put(self, value: Any, synchronized: bool = False) -> None:
        """Make the variable worth `value` from here on, as its library has converted it.

        Args:
          value: an array.
          synchronized: whether it is known to be equal on all replicas.

        Raises:
          ValueError: on several replicas, which may have different values.
        """
        frame = _frames.current()
        if value is frame.read(self):
            return
        context = _context.get_replica_context()
        if context is not None and context.num_replicas_in_sync > 1 and not synchronized:
            raise ValueError(
                f"The {self._keeper.library} variable {self.name!r} was created outside "
                f"{context.strategy!r}'s scope and has one copy, which "
                f"{context.num_replicas_in_sync} replicas cannot assign to at once. "
                f"{self._keeper.advice}"
            )
        frame.write(self, value)

    def assign_synchronized(self, value: Any) -> None:
        """Assign, inside `run`, a value that the caller knows to be equal on all replicas."""
        self.put(value, synchronized=True)


# By whose they are. Whoever uses one holds it, and it holds what it stands for.
_adopted: weakref.WeakValueDictionary[Hashable, Adopted] = weakref.WeakValueDictionary()
_used: weakref.WeakKeyDictionary[_frames.Frame, dict[int, Adopted]] = weakref.WeakKeyDictionary()


def adopted(key: Hashable, make: Callable[[], Keeper]) -> Adopted:
    """Return the variable that stands for one of another library.

    Args:
      key: what it is known by, such as its identity.
      make: makes what keeps the value, which has to hold whatever the key is the identity of.
    """
    found = _adopted.get(key)
    if found is None:
        found = _adopted.setdefault(key, Adopted(make()))
    for frame in _frames.opened_here()[-1:]:
        _used.setdefault(frame, {})[id(found)] = found  # frames know variables by identity
    return found


Adopter = Callable[[Any], Variable | None]

_adopters: list[Adopter] = []


def register(adopter: Adopter) -> None:
    """Have variables of a library found by `of`.

    Args:
      adopter: returns the variable that stands for an object, or None for other objects.
    """
    _adopters.append(adopter)


def of(value: Any) -> Any:
    """Return the variable that stands for one of another library, or `value` itself."""
    _integrations.load()
    value = getattr(value, "__jaxtribute_variable__", value)
    return next((found for adopter in _adopters if (found := adopter(value)) is not None), value)


def _like(data: jax.Array, before: jax.Array) -> jax.Array:
    """Return an array on the devices where another one is."""
    if isinstance(data, Tracer) or isinstance(before, Tracer) or data.sharding == before.sharding:
        return data
    if not data.is_fully_addressable:  # the same on the devices of all workers
        data = data.addressable_data(0)
    return jax.device_put(data, before.sharding if before.committed else None)
