"""A value that is the same on all replicas."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._jax_compat import movable
from .._topology import Topology
from ._arithmetic import Arithmetic
from ._base import DistributedValues
from ._per_replica import PerReplica

__all__ = ["Mirrored"]


@jax.tree_util.register_pytree_node_class
class Mirrored(Arithmetic, DistributedValues):
    """The same value on every replica's device, such as `extended.reduce_to` returns.

    >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     v = jt.Variable(0.0)
    ...     ids = strategy.run(lambda: jt.get_replica_context().replica_id_in_sync_group)
    ...     total = strategy.extended.reduce_to("SUM", ids, destinations=v)
    >>> total
    Mirrored:{
      0: Array(1, dtype=int32),
      1: Array(1, dtype=int32)
    }
    """

    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]

    def __init__(self, array: Any, topology: Topology) -> None:
        self._array = array
        self.topology = topology

    @classmethod
    def on(cls, topology: Topology, array: Any) -> Any:
        """Return a value that is whole on each device; where there is one, that is the array."""
        if topology.num_replicas > 1:
            return cls(array, topology)
        return array if isinstance(array, Tracer) else topology.replica_of(array, 0)

    @property
    def values(self) -> tuple[Any, ...]:
        """The copy on each local device, in order; JAX moves them when they are combined."""
        return tuple(movable(component) for component in self._components())

    def _components(self) -> tuple[Any, ...]:
        return tuple(self.component(i) for i in range(self.topology.num_local))

    def component(self, replica_id: Any) -> Any:
        """Return the copy of one local replica."""
        if isinstance(self._array, Tracer):
            return self._array
        if isinstance(replica_id, int):
            return self.topology.replica_of(self._array, replica_id)
        return self._array

    def as_per_replica(self) -> PerReplica:
        """Return the same as a value of which each replica, also of other workers, has its own."""
        if isinstance(self._array, Tracer):
            shape = (self.topology.num_replicas, *self._array.shape)
            return PerReplica.from_stacked(jnp.broadcast_to(self._array, shape), self.topology)
        return PerReplica(self._components(), self.topology)

    def __reduce__(self) -> tuple[Any, ...]:
        return jnp.asarray, (np.asarray(self.component(0)),)  # devices are those of the process

    def __deepcopy__(self, memo: dict[int, Any]) -> Mirrored:
        return Mirrored(self._array, self.topology)  # which nobody can change

    def _operand(self) -> jax.Array:
        return self.component(0)

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        """Have JAX's functions take it for the array, as they take a variable."""
        return (self.component(0),), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: tuple[Any]) -> Any:
        """Return what a function of JAX has made of the array."""
        return children[0]

    def __jax_array__(self) -> jax.Array:
        return jnp.asarray(self.component(0))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.component(0), dtype=dtype)
