"""The arithmetic of `Strategy.reduce`: over an axis of each replica's value, and over replicas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._reduce import ReduceOp
from .._topology import Topology
from .._wide import asarray
from ..values import PerReplica
from ..values._spmd import SpmdPerReplica


def parse_axis(axis: Any) -> tuple[int, ...] | None:
    """Return the axes to reduce along, or None for none.

    Raises:
      TypeError: when `axis` is neither None nor whole numbers.
    """
    if axis is None:
        return None
    axes = tuple(axis) if isinstance(axis, (list, tuple)) else (axis,)
    if not all(isinstance(a, (int, np.integer)) and not isinstance(a, bool) for a in axes):
        raise TypeError(
            f"axis must be None, a whole number or a list of them, got {axis!r} of type "
            f"{type(axis).__name__}."
        )
    return tuple(int(a) for a in axes)


def normalize(axes: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return `axes` counted from the front.

    Raises:
      ValueError: when one is out of range.
    """
    rank = len(shape)
    for axis in axes:
        if not -rank <= axis < rank:
            raise ValueError(
                f"axis {axis} is out of range for a value of shape {shape}; it must be at least "
                f"{-rank} and less than {rank}."
            )
    return tuple(sorted({axis % rank for axis in axes}))


def along_axes(
    op: ReduceOp,
    value: PerReplica,
    axes: tuple[int, ...],
    topology: Topology,
    reduce_sum: Callable[[PerReplica], Any],
) -> Any:
    """Reduce along `axes` of each component, then over the replicas.

    A mean is weighted: the sum of everything, divided by the number of elements that were added.
    """
    shapes = _shapes(value, topology)
    along = [normalize(axes, shape) for shape in shapes]
    total = reduce_sum(_map(lambda c: jnp.sum(c, axis=along[0]), value, topology))
    if op is ReduceOp.SUM:
        return total
    count = sum(
        math.prod(shape[axis] for axis in axes_) for shape, axes_ in zip(shapes, along, strict=True)
    )
    return total / count


def single_value(op: ReduceOp, value: Any, axes: tuple[int, ...] | None) -> Any:
    """Reduce a value that is not distributed, along its axes only."""
    if axes is None:
        return value
    array = asarray(value, "Strategy.reduce")
    axes = normalize(axes, array.shape)
    return jnp.sum(array, axes) if op is ReduceOp.SUM else jnp.mean(array, axes)


def _shapes(value: PerReplica, topology: Topology) -> list[tuple[int, ...]]:
    if isinstance(value, SpmdPerReplica):
        return [np.shape(value.local)] * topology.num_replicas
    stacked = value.stacked(topology)
    if stacked is not None:
        return [stacked.shape[1:]] * topology.num_replicas
    return [tuple(kind[0]) for kind in value.types(topology) if kind is not None]


def _map(fn: Callable[[Any], jax.Array], value: PerReplica, topology: Topology) -> PerReplica:
    if isinstance(value, SpmdPerReplica):
        return SpmdPerReplica(fn(value.local), topology)
    stacked = value.stacked(topology)
    if stacked is not None:
        return PerReplica.from_stacked(jax.vmap(fn)(stacked), topology)
    arrays = [asarray(component, "Strategy.reduce") for component in value.components]
    return PerReplica([fn(array) for array in arrays], topology)
