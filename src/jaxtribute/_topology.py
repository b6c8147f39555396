"""The devices replicas run on, and arrays spread over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

REPLICA_AXIS = "replica"

PER_REPLICA = PartitionSpec(REPLICA_AXIS)
REPLICATED = PartitionSpec()


class Topology:
    """One device a replica, as a mesh of the one axis `replica`."""

    def __init__(self, devices: Sequence[jax.Device]) -> None:
        self.devices = tuple(devices)

    @property
    def num_replicas(self) -> int:
        """How many replicas there are."""
        return len(self.devices)

    @cached_property
    def mesh(self) -> Mesh:
        """The mesh of all devices."""
        return Mesh(np.array(self.devices), (REPLICA_AXIS,))

    @cached_property
    def replicated(self) -> NamedSharding:
        """The sharding of an array that is whole on each device."""
        return NamedSharding(self.mesh, REPLICATED)

    @cached_property
    def stacked(self) -> NamedSharding:
        """The sharding of an array whose leading axis counts replicas."""
        return NamedSharding(self.mesh, PER_REPLICA)

    @cached_property
    def device_set(self) -> set[jax.Device]:
        """All devices."""
        return set(self.devices)

    def replicate(self, value: Any) -> jax.Array:
        """Return `value` as one array that is whole on each device."""
        return jax.device_put(value, self.replicated)

    def replica_of(self, array: jax.Array, index: int) -> jax.Array:
        """Return the copy of a replicated array on one device."""
        # Not addressable_data(index), which returns the first copy whatever the index.
        return array.addressable_shards[index].data

    def stack(self, components: Sequence[Any]) -> jax.Array:
        """Return one array of all components, each on its replica's device."""
        shape = (self.num_replicas, *np.shape(components[0]))
        if all(isinstance(c, np.ndarray) for c in components):

            def row(index: tuple[slice, ...] | None) -> np.ndarray[Any, Any]:
                assert index is not None
                return components[index[0].start or 0][None]

            # One call for all devices: half the time of one transfer after the other.
            return jax.make_array_from_callback(shape, self.stacked, row)
        rows = [jnp.expand_dims(jnp.asarray(c), 0) for c in components]
        return self.assemble(shape, self.stacked, rows)

    def assemble(
        self, shape: tuple[int, ...], sharding: NamedSharding, parts: Sequence[jax.Array]
    ) -> jax.Array:
        """Return one array made of a part on each device."""
        placed = jax.device_put(list(parts), list(self.devices))
        return jax.make_array_from_single_device_arrays(shape, sharding, placed)

    def join_copies(self, copies: Sequence[jax.Array]) -> jax.Array:
        """Return one replicated array made of an equal copy on each device."""
        return self.assemble(copies[0].shape, self.replicated, copies)

    def row(self, array: jax.Array, index: int) -> jax.Array:
        """Return what one replica holds of a stacked array."""
        return _drop_leading_axis(array.addressable_data(index))

    def unstack(self, array: jax.Array) -> tuple[jax.Array, ...]:
        """Return what each replica holds of a stacked array."""
        return tuple(self.row(array, i) for i in range(self.num_replicas))

    def on_each_device(
        self, fn: Callable[..., Any], in_specs: Any, out_specs: Any
    ) -> Callable[..., Any]:
        """Return `fn` as a program that runs once on each device of the mesh.

        The types JAX can infer for values that vary by device are not asked for: they would make
        gradients of replicated inputs be summed over the replicas behind the user's back.
        """
        return jax.shard_map(
            fn, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )


@jax.jit
def _drop_leading_axis(array: jax.Array) -> jax.Array:
    return array[0]
