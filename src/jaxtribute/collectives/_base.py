"""The interface of the ways to combine values of several devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from .._options import CommunicationOptions
from .._reduce import ReduceOp
from .._topology import PER_REPLICA, REPLICA_AXIS, REPLICATED, Topology
from .._wide import asarray, check_numeric
from ..values import Mirrored, PerReplica
from ..values._spmd import SpmdPerReplica
from . import _destinations

__all__ = ["CrossDeviceOps"]


class CrossDeviceOps:
    """A way to reduce values over devices, given to `MirroredStrategy`.

    The result is the same for all of them; what differs is the way it is made. Subclasses choose
    it in `all_reduce_in_step`, which becomes part of compiled steps, and may override
    `reduce_implementation` and `broadcast_implementation` for use outside of them.

    >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> ids = strategy.experimental_distribute_values_from_function(
    ...     lambda ctx: jnp.float32(ctx.replica_id_in_sync_group)
    ... )
    >>> jt.ReductionToOneDevice().reduce("SUM", ids, destinations="CPU:0")
    Array(1., dtype=float32)
    """

    timeout: float | None = None  # seconds that other workers may keep a reduction waiting

    def __init__(self) -> None:
        self._programs: dict[tuple[ReduceOp, tuple[jax.Device, ...]], Any] = {}

    def with_options(self, options: CommunicationOptions | None) -> CrossDeviceOps:
        """Return what reduces as the options of one call say; those of one process change nothing.

        Args:
          options: communication options, or None.
        """
        return self

    # --- For callers -----------------------------------------------------------------------

    def reduce(
        self,
        reduce_op: ReduceOp | str,
        per_replica_value: Any,
        destinations: Any,
        options: Any = None,
    ) -> Any:
        """Combine the components of a value and deliver the result.

        Args:
          reduce_op: a `ReduceOp` or its name.
          per_replica_value: a `PerReplica`; a `Mirrored` value is already combined for MEAN.
          destinations: a device or its name for one array there, or a variable or distributed
            value for a `Mirrored` on its devices.
          options: communication options.

        Returns:
          An array, or a `Mirrored` value.

        Raises:
          ValueError: for a value without components, or a destination that names no device.
          AssertionError: for a list of destinations.
        """
        op = ReduceOp.from_value(reduce_op)
        destination = _destinations.parse(destinations)
        if isinstance(per_replica_value, Mirrored):
            return self._reduce_mirrored(op, per_replica_value, destination)
        value = _destinations.as_per_replica(per_replica_value)
        return self.with_options(options).reduce_implementation(op, value, destination, options)

    def batch_reduce(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: Any = None,
    ) -> list[Any]:
        """Combine several values, in fewer transfers where the implementation can.

        Args:
          reduce_op: a `ReduceOp` or its name.
          value_destination_pairs: what to `reduce` and where to.
          options: communication options.

        Raises:
          ValueError: when an element is no pair.
        """
        op = ReduceOp.from_value(reduce_op)
        _destinations.check_pairs(value_destination_pairs)
        pairs = [
            (_destinations.as_per_replica(value), _destinations.parse(destination))
            for value, destination in value_destination_pairs
        ]
        if not pairs:
            return []
        return self.with_options(options).batch_reduce_implementation(op, pairs, options)

    def broadcast(self, tensor: Any, destinations: Any) -> Any:
        """Copy one array to a device, or to all devices of a variable or distributed value."""
        return self.broadcast_implementation(tensor, _destinations.parse(destinations))

    # --- For implementations ---------------------------------------------------------------

    def all_reduce_in_step(
        self, reduce_op: ReduceOp, values: Sequence[jax.Array], num_replicas: int
    ) -> list[jax.Array]:
        """Combine arrays over the mesh axis `replica`, inside a compiled step.

        Args:
          reduce_op: SUM or MEAN.
          values: this replica's arrays.
          num_replicas: the size of the axis.

        Returns:
          The combined arrays, equal on all replicas.
        """
        sums = self.sum_in_step([numeric(v) for v in values], num_replicas)
        return [scale(reduce_op, total, num_replicas) for total in sums]

    def sum_in_step(self, values: Sequence[jax.Array], num_replicas: int) -> list[jax.Array]:
        """Add up arrays over the mesh axis `replica`, inside a compiled step."""
        return list(jax.lax.psum(tuple(values), REPLICA_AXIS))

    def reduce_implementation(
        self, reduce_op: ReduceOp, per_replica_value: PerReplica, destinations: Any, options: Any
    ) -> Any:
        """Combine one value; arguments are checked already."""
        return self.batch_reduce_implementation(
            reduce_op, [(per_replica_value, destinations)], options
        )[0]

    def batch_reduce_implementation(
        self,
        reduce_op: ReduceOp,
        value_destination_pairs: Sequence[tuple[PerReplica, Any]],
        options: Any,
    ) -> list[Any]:
        """Combine several values; arguments are checked already."""
        values = [value for value, _ in value_destination_pairs]
        if isinstance(values[0], SpmdPerReplica):
            topology = values[0].topology
            locals_ = [value.component(None, None) for value in values]
            totals = self.all_reduce_in_step(reduce_op, locals_, topology.num_replicas)
        else:
            topology = _destinations.topology_of(values[0])
            program = self._program(reduce_op, topology)
            stacked = [_stacked(value, topology) for value in values]
            totals = topology.carry_out(program, stacked, what="a reduction", timeout=self.timeout)
        return [
            _destinations.place(total, topology, destination)
            for total, (_, destination) in zip(totals, value_destination_pairs, strict=True)
        ]

    def broadcast_implementation(self, tensor: Any, destinations: Any) -> Any:
        """Copy one array; arguments are checked already."""
        if isinstance(destinations, Topology):
            traced = isinstance(tensor, Tracer)
            return Mirrored.on(destinations, tensor if traced else destinations.replicate(tensor))
        return jax.device_put(tensor, destinations)

    def _program(self, op: ReduceOp, topology: Topology) -> Any:
        key = (op, topology.devices)
        if key not in self._programs:

            def on_device(rows: list[jax.Array]) -> list[jax.Array]:
                local = [row[0] for row in rows]
                return self.all_reduce_in_step(op, local, topology.num_replicas)

            self._programs[key] = jax.jit(
                topology.on_each_device(on_device, in_specs=PER_REPLICA, out_specs=REPLICATED)
            )
        return self._programs[key]

    def _reduce_mirrored(self, op: ReduceOp, value: Mirrored, destination: Any) -> Any:
        if op is not ReduceOp.MEAN:
            raise AssertionError(
                f"{value!r} is the same on all replicas already; adding up its copies is hardly "
                "meant. Use jt.ReduceOp.MEAN, or multiply it by the number of replicas."
            )
        if isinstance(destination, Topology):
            return value
        copy = value.component(0)
        return copy if isinstance(copy, Tracer) else jax.device_put(copy, destination)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def numeric(value: Any) -> jax.Array:
    """Return `value` as an array that can be added up."""
    array = asarray(value, "A reduction")
    return array.astype(jnp.int32 if array.dtype == jnp.bool_ else array.dtype)


def scale(op: ReduceOp, total: jax.Array, num_replicas: int) -> jax.Array:
    """Turn a sum over replicas into what `op` asks for."""
    return total if op is ReduceOp.SUM else total / num_replicas


def _stacked(value: PerReplica, topology: Topology) -> Any:
    array = value.stacked(topology)
    if array is None:
        for component in value.values:
            check_numeric(component, "A reduction")
        raise ValueError(
            f"The components of {value!r} differ in shape or type and cannot be combined "
            "elementwise. Give `reduce` an axis to reduce along first, such as axis=0, or "
            "concatenate them with `gather`."
        )
    return array
