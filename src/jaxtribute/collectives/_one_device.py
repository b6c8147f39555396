"""Reduction by copying everything to one device."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .. import _devices
from .._reduce import ReduceOp
from .._topology import REPLICA_AXIS, Topology
from ..values import PerReplica
from ._base import CrossDeviceOps, numeric, scale

__all__ = ["ReductionToOneDevice"]


def _add_up(values: Sequence[Any]) -> Any:
    return functools.reduce(operator.add, values)


class ReductionToOneDevice(CrossDeviceOps):
    """Copies all values to one device, adds them up there, and copies the result back.

    The values are added in the order of the replicas, so the result is the same on any hardware.

    >>> jt.ReductionToOneDevice(reduce_to_device="CPU:0")
    ReductionToOneDevice(reduce_to_device='CPU:0')

    Args:
      reduce_to_device: the device to add up on; by default the destination, or the first device.
      accumulation_fn: combines a list of arrays into their sum; by default `+`, one by one.

    Raises:
      ValueError: when there is no such device.
    """

    def __init__(
        self,
        reduce_to_device: str | jax.Device | None = None,
        accumulation_fn: Callable[[Sequence[Any]], Any] | None = None,
    ) -> None:
        super().__init__()
        self._named_device = reduce_to_device
        self._device = None if reduce_to_device is None else _devices.resolve(reduce_to_device)
        self._accumulate = accumulation_fn or _add_up

    def sum_in_step(self, values: Sequence[jax.Array], num_replicas: int) -> list[jax.Array]:
        # On every device the collected values are those of all replicas, in order; adding them up
        # is cheaper than waiting for the first device to send its sum to the others.
        collected = [jax.lax.all_gather(value, REPLICA_AXIS) for value in values]
        return [self._accumulate([rows[i] for i in range(num_replicas)]) for rows in collected]

    def batch_reduce_implementation(
        self,
        reduce_op: ReduceOp,
        value_destination_pairs: Sequence[tuple[PerReplica, Any]],
        options: Any,
    ) -> list[Any]:
        first = value_destination_pairs[0][0]
        if first.is_traced:
            return super().batch_reduce_implementation(reduce_op, value_destination_pairs, options)
        return [
            self._reduce_on_device(reduce_op, value, destination)
            for value, destination in value_destination_pairs
        ]

    def _reduce_on_device(self, op: ReduceOp, value: PerReplica, destination: Any) -> Any:
        if isinstance(destination, Topology):
            device = self._device or destination.devices[0]
        else:
            device = self._device or destination
        copies = [jax.device_put(numeric(component), device) for component in value.components]
        if any(copy.shape != copies[0].shape for copy in copies):
            raise ValueError(
                f"The components of {value!r} differ in shape and cannot be combined elementwise. "
                "Give `reduce` an axis to reduce along first, such as axis=0."
            )
        total = scale(op, self._accumulate(copies), len(copies))
        return self.broadcast_implementation(total, destination)

    def __repr__(self) -> str:
        return f"ReductionToOneDevice(reduce_to_device={self._named_device!r})"
