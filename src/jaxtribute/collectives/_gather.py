"""Concatenation of the replicas' values."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._jax_compat import is_staging, outside_traces
from .._topology import REPLICA_AXIS, Topology
from .._wide import asarray, check_fits, check_numeric
from ..errors import InvalidArgumentError
from ..values import PerReplica
from ..values._spmd import SpmdPerReplica


def gather(
    value: PerReplica, axis: int, topology: Topology, device: jax.Device | None = None
) -> Any:
    """Concatenate the components of `value` along `axis`, in the order of the replicas.

    The result is on `device`, by default that of the first component.

    Raises:
      InvalidArgumentError: for scalars, an axis out of range, or shapes that differ elsewhere.
    """
    if isinstance(value, SpmdPerReplica):
        return gather_in_step(value.local, axis)
    if value.is_of_host:
        for component in value.values:
            check_numeric(component, "gather")
    if topology.spans_workers and not value.is_traced:
        return _gather_over_workers(value, axis, topology, device)
    components = value.components
    check_shapes([np.shape(c) for c in components], axis)
    for component in components:
        check_fits(component, "gather")
    arrays = [jnp.asarray(c, jnp.result_type(c)) for c in components]
    if not isinstance(arrays[0], Tracer):
        device = device or next(iter(arrays[0].devices()))
        arrays = [jax.device_put(array, device) for array in arrays]
    return jnp.concatenate(arrays, axis)


def _gather_over_workers(
    value: PerReplica, axis: int, topology: Topology, device: jax.Device | None
) -> jax.Array:
    stacked = value.stacked(topology)
    if stacked is not None:
        shapes = [stacked.shape[1:]] * topology.num_replicas
    else:
        shapes = [tuple(kind[0]) for kind in value.types(topology) if kind is not None]
    check_shapes(shapes, axis)
    staging = is_staging()  # a program has what is known when it is made for a constant
    if stacked is None:  # sizes differ: all are sent at the largest one
        largest = max(shape[axis] for shape in shapes)

        def sent() -> jax.Array:
            padded = [_padded(c, axis, largest) for c in value.components]
            return topology.collect(topology.stack(padded))

        rows: Any = np.asarray(outside_traces(sent)) if staging else sent()
    else:
        rows = stacked if staging else topology.collect(stacked)
    parts = [
        jax.lax.slice_in_dim(rows[i], 0, shape[axis], axis=axis) for i, shape in enumerate(shapes)
    ]
    gathered = jnp.concatenate(parts, axis)
    return gathered if staging or device is None else jax.device_put(gathered, device)


def _padded(component: Any, axis: int, size: int) -> jax.Array:
    array = asarray(component, "gather")
    widths = [(0, size - array.shape[axis] if i == axis else 0) for i in range(array.ndim)]
    return jnp.pad(array, widths)


def first_component(value: PerReplica, topology: Topology) -> jax.Array:
    """Return what the first of all replicas holds.

    Raises:
      InvalidArgumentError: when replicas of other workers hold something of another shape or type.
    """
    if not topology.spans_workers:
        return jnp.asarray(value.components[0])
    stacked = value.stacked(topology)
    if stacked is None:
        raise InvalidArgumentError(
            f"The components of {value!r} differ in shape or type between workers, so that the "
            "first one cannot be sent to all."
        )
    return topology.collect(stacked)[0]


def gather_in_step(value: Any, axis: int) -> jax.Array:
    """Concatenate a value over the mesh axis `replica`, inside a compiled step."""
    check_numeric(value, "all_gather")
    check_shapes([np.shape(value)], axis)
    return jax.lax.all_gather(asarray(value, "all_gather"), REPLICA_AXIS, axis=axis, tiled=True)


def check_shapes(shapes: list[tuple[int, ...]], axis: int) -> None:
    """Refuse shapes that cannot be concatenated along `axis`."""
    if any(len(shape) == 0 for shape in shapes):
        raise InvalidArgumentError(
            "Scalars cannot be gathered along an axis, and a component is one. Give it an axis "
            "first: jnp.expand_dims(value, 0)."
        )
    rank = len(shapes[0])
    if not isinstance(axis, (int, np.integer)) or not 0 <= axis < rank:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgumentError(
            f"axis must be in the range [0, {rank}) for components of rank {rank}, got {axis!r}."
        )
    others = [shape[:axis] + shape[axis + 1 :] for shape in shapes]
    if any(len(s) != rank for s in shapes) or any(other != others[0] for other in others):
        raise InvalidArgumentError(
            f"The components' shapes {shapes} may differ only in axis {axis}, along which they "
            "are concatenated."
        )
