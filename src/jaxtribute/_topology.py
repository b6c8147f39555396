"""The devices replicas run on, and arrays spread over them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ._group import ALONE, Group
from ._jax_compat import is_tracing
from ._wide import check_fits

REPLICA_AXIS = "replica"

PER_REPLICA = PartitionSpec(REPLICA_AXIS)
REPLICATED = PartitionSpec()


class Topology:
    """One device a replica, as a mesh of the one axis `replica`.

    Replicas are numbered over all workers. What is called local is of this process: its devices,
    their replicas, and components of values, which are numbered from 0 on each worker.
    """

    group: Group = ALONE
    spans_workers = False
    first_local = 0

    def __init__(self, devices: Sequence[jax.Device], group: Group = ALONE) -> None:
        self.devices = tuple(devices)
        self.group = group
        if len(group.tasks) > 1:
            self.spans_workers = True
            self.first_local = self.devices.index(self.local_devices[0])

    @property
    def num_replicas(self) -> int:
        """How many replicas there are."""
        return len(self.devices)

    @cached_property
    def local_devices(self) -> tuple[jax.Device, ...]:
        """The devices of this process."""
        if not self.spans_workers:
            return self.devices
        return tuple(d for d in self.devices if d.process_index == jax.process_index())

    @property
    def num_local(self) -> int:
        """How many replicas this process has."""
        return len(self.local_devices)

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
        """Return `value` as one array that is whole on each device.

        Each worker puts its own value on its own devices; that they are equal is up to the caller.
        """
        check_fits(value, "A value for all replicas")
        if not self.spans_workers:
            return jax.device_put(value, self.replicated)
        if isinstance(value, jax.Array):
            if value.sharding == self.replicated:
                return value
            if not value.is_fully_addressable:
                value = value.addressable_data(0)
        return self.join_copies([value] * self.num_local)

    def replica_of(self, array: jax.Array, index: int) -> jax.Array:
        """Return the copy of a replicated array on one local device."""
        # Not addressable_data(index), which returns the first copy whatever the index.
        return array.addressable_shards[index].data

    def stack(self, components: Sequence[Any]) -> jax.Array:
        """Return one array of all components, of which this process has the local ones."""
        shape = (self.num_replicas, *np.shape(components[0]))
        for component in components:
            check_fits(component, "A value for each replica")
        if all(isinstance(c, np.ndarray) for c in components):

            def row(index: tuple[slice, ...] | None) -> np.ndarray[Any, Any]:
                assert index is not None
                return components[(index[0].start or 0) - self.first_local][None]

            # One call for all devices: half the time of one transfer after the other.
            return jax.make_array_from_callback(shape, self.stacked, row)
        placed = jax.device_put([jnp.asarray(c) for c in components], list(self.local_devices))
        return self.assemble(shape, self.stacked, [jnp.expand_dims(c, 0) for c in placed])

    def assemble(
        self, shape: tuple[int, ...], sharding: NamedSharding, parts: Sequence[Any]
    ) -> jax.Array:
        """Return one array made of a part on each local device."""
        placed = jax.device_put(list(parts), list(self.local_devices))
        return jax.make_array_from_single_device_arrays(shape, sharding, placed)

    def join_copies(self, copies: Sequence[Any]) -> jax.Array:
        """Return one replicated array made of an equal copy on each local device."""
        return self.assemble(np.shape(copies[0]), self.replicated, copies)

    def row(self, array: jax.Array, index: int) -> jax.Array:
        """Return what one local replica holds of a stacked array."""
        return _drop_leading_axis(array.addressable_data(index))

    def unstack(self, array: jax.Array) -> tuple[jax.Array, ...]:
        """Return what each local replica holds of a stacked array."""
        return tuple(self.row(array, i) for i in range(self.num_local))

    def collect(self, stacked: jax.Array) -> jax.Array:
        """Return all rows of a stacked array, also those of other workers, on a local device."""
        program = _collecting_program(self)
        return self.replica_of(self.carry_out(program, stacked, what="collecting a value"), 0)

    def all_of(self, what: str, local: Sequence[Any]) -> list[Any]:
        """Return what all replicas have, by replica, given what the local ones have.

        Args:
          what: the name of what is asked; all workers ask for the same things in the same order.
          local: something that JSON knows, for each local replica.
        """
        if not self.spans_workers:
            return list(local)
        reports = self.group.agree(what, json.dumps(local))
        return [one for report in reports for one in json.loads(report)]

    def carry_out(
        self, program: Callable[..., Any], *args: Any, what: str, timeout: float | None = None
    ) -> Any:
        """Run a program in which all devices take part."""
        if not self.spans_workers or is_tracing():  # then it is part of a larger one
            return program(*args)
        return self.group.carry_out(program, *args, what=what, timeout=timeout)

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


@lru_cache(maxsize=64)
def _collecting_program(topology: Topology) -> Any:
    return jax.jit(lambda rows: rows, out_shardings=topology.replicated)


@jax.jit
def _drop_leading_axis(array: jax.Array) -> jax.Array:
    return array[0]
