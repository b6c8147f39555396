"""What all variables with a copy on each replica have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .. import _context, _devices, _tree
from .._jax_compat import movable
from .._topology import REPLICA_AXIS, Topology
from ..values import DistributedValues, PerReplica
from ..values._arithmetic import Arithmetic
from ..values._base import describe as describe_values
from . import _frames
from ._base import Combine, Variable, describe
from ._spec import VariableSpec


class DistributedVariable(Variable, ABC):
    """A variable with a copy on the device of each replica."""

    def __init__(self, spec: VariableSpec, strategy: Any, topology: Topology) -> None:
        self._strategy = strategy
        self.topology = topology
        super().__init__(spec)

    @property
    def distribute_strategy(self) -> Any:
        """The strategy that created it."""
        return self._strategy

    @property
    def values(self) -> tuple[Component, ...]:
        """The copies, in the order of the replicas."""
        return tuple(Component(self, i) for i in range(self.topology.num_local))

    @abstractmethod
    def as_value(self) -> DistributedValues:
        """Return what the copies are worth here, as a value that can be reduced."""

    @abstractmethod
    def as_per_replica(self) -> PerReplica:
        """Return what the copy of each replica, also of other workers, is worth here."""

    def value(self) -> jax.Array:
        with _context.accessing(self._strategy, f"the variable {self.name!r}"):
            frame = _frames.current()
            frame.touch(self.topology)
            return self._read(frame)

    @abstractmethod
    def _read(self, frame: _frames.Frame) -> jax.Array: ...

    def _update(self, combine: Combine, value: Any) -> Any:
        with _context.accessing(self._strategy, f"the variable {self.name!r}"):
            _frames.current().touch(self.topology)
            context = _context.get_replica_context()
            if context is None:
                self._update_outside(combine, value)
            else:
                if isinstance(value, PerReplica):
                    value = value.component(context.replica_id_in_sync_group, self.topology)
                self._update_inside(context, combine, value)
        return self

    @abstractmethod
    def _update_outside(self, combine: Combine, value: Any) -> None: ...

    @abstractmethod
    def _update_inside(
        self, context: _context.ReplicaContextLike, combine: Combine, value: Any
    ) -> None: ...

    def read_component(self, index: int) -> jax.Array:
        """Return what the copy of one local replica is worth here."""
        frame = _frames.current()
        frame.touch(self.topology)
        value = frame.read(self)
        if not isinstance(value, Tracer):
            return self.component_data(index)
        if not self.differs_between_replicas:
            return value
        rows = jax.lax.all_gather(value, REPLICA_AXIS) if frame.local else value
        return rows[self.topology.first_local + index]

    @abstractmethod
    def join_components(self, components: list[jax.Array]) -> jax.Array:
        """Return the stored form of a copy for each replica."""

    def first_device(self) -> jax.Device:
        return self.topology.local_devices[0]

    def blank(self) -> jax.Array:
        return self._place(jnp.zeros(self.shape, self.dtype))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        with _context.accessing(self._strategy, f"a copy of the variable {self.name!r}"):
            return super().__deepcopy__(memo)

    def __repr__(self) -> str:
        if isinstance(_frames.current().read(self), Tracer):
            return describe(self, self.name, _frames.current().read(self))
        return describe_values(type(self).__name__, self.values)


@jax.tree_util.register_pytree_node_class
class Component(Arithmetic, _tree.Leaf):
    """The copy of a variable that one local replica has."""

    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]

    def __init__(self, variable: DistributedVariable, index: int) -> None:
        self._variable = variable
        self._index = index  # among the replicas of this process

    @property
    def name(self) -> str:
        """The variable's name; from the second copy on, with the number of the replica."""
        suffix = f"/replica_{self._index}" if self._index else ""
        return self._variable.name + suffix

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return self._variable.shape

    @property
    def dtype(self) -> Any:
        """The type of the elements."""
        return self._variable.dtype

    @property
    def device(self) -> str:
        """The full name of the device that holds the copy."""
        return _devices.canonical_name(self._variable.topology.local_devices[self._index])

    @property
    def container(self) -> DistributedVariable:
        """The variable this is a copy of."""
        return self._variable

    def value(self) -> jax.Array:
        """Return the copy's value, which JAX moves when it is combined with that of another."""
        return movable(self._variable.read_component(self._index))

    def read_value(self) -> jax.Array:
        """Return the copy's value; the same as `value`."""
        return self.value()

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the copy's value as a NumPy array of its own."""
        return np.array(self.value())

    def _operand(self) -> jax.Array:
        return self.value()

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        """Have JAX's functions take it for the array, as they take the variable."""
        return (self.value(),), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: tuple[Any]) -> Any:
        """Return what a function of JAX has made of the array."""
        return children[0]

    def __jax_array__(self) -> jax.Array:
        return self.value()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.value(), dtype=dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return jnp.asarray, (self.numpy(),)

    def __repr__(self) -> str:
        return describe(self._variable, self.name, self.value())
