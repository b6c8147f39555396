"""Where the result of a reduction goes: to one device, or to all of a value's devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.core import Tracer

from .. import _devices
from .._topology import Topology
from ..values import DistributedValues, Mirrored, PerReplica

Destination = Topology | jax.Device


def parse(destinations: Any) -> Destination:
    """Return the device, or the devices, that `destinations` names.

    Raises:
      AssertionError: for a list, which the reference refuses as well.
      ValueError: for anything that names no device.
    """
    if isinstance(destinations, (list, tuple)):
        raise AssertionError(
            f"destinations must be one device or one value, got the {type(destinations).__name__} "
            f"{destinations!r}. Reduce to each of them in a call of its own."
        )
    if isinstance(destinations, str) and destinations:
        return _devices.resolve(destinations)
    if isinstance(destinations, (jax.Device, Topology)):
        return destinations
    if isinstance(destinations, Tracer):  # which is where the program runs, as the result will be
        return jax.local_devices()[0]
    topology = getattr(destinations, "topology", None)
    if isinstance(topology, Topology):
        return topology
    if isinstance(destinations, DistributedValues):
        return topology_of(destinations)
    device = getattr(destinations, "device", None)  # an array's device, or a variable's name of it
    if isinstance(device, (str, jax.Device)) and device:
        return _devices.resolve(device)
    raise ValueError(
        f"destinations must be a device name, a device, a variable or a distributed value, "
        f"got {destinations!r}."
    )


def check_pairs(pairs: Sequence[Any]) -> None:
    """Refuse anything but values with a destination each.

    Raises:
      ValueError: when an element is no pair.
    """
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ValueError(f"Expected (value, destination) tuples, got {pair!r}.")


def topology_of(value: DistributedValues) -> Topology:
    """Return the devices that hold the components of `value`."""
    known = getattr(value, "topology", None)
    if isinstance(known, Topology):
        return known
    components = value.values
    if all(isinstance(c, jax.Array) and len(c.devices()) == 1 for c in components):
        devices = [next(iter(c.devices())) for c in components]
        if len(set(devices)) == len(devices):
            return Topology(devices)
    return Topology(_devices.default_devices()[: len(components)])


def place(total: Any, holder: Topology, destination: Destination) -> Any:
    """Deliver a reduced value, whole on each device of `holder`, to its destination."""
    if isinstance(destination, Topology):
        if isinstance(total, Tracer) or destination is holder:
            return Mirrored.on(destination, total)
        return Mirrored.on(destination, destination.replicate(total))
    if isinstance(total, Tracer):
        return total
    if destination in holder.local_devices:
        return holder.replica_of(total, holder.local_devices.index(destination))
    return jax.device_put(holder.replica_of(total, 0), destination)


def as_per_replica(value: Any) -> PerReplica:
    """Check that `value` has a component for each replica.

    Raises:
      ValueError: when it has not.
    """
    if isinstance(value, PerReplica):
        return value
    raise ValueError(
        f"Only a value with a component for each replica can be reduced, got {value!r} of type "
        f"{type(value).__name__}. Take one from `strategy.run`."
    )
