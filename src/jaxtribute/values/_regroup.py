"""Splitting structures into one for each replica, and merging them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from .. import _tree
from .._topology import Topology
from .._wide import check_fits, is_text
from ._base import DistributedValues
from ._mirrored import Mirrored
from ._per_replica import PerReplica, is_array_like, is_same_constant


def is_distributed(value: Any) -> bool:
    """Tell whether `value` holds a value for each replica (a variable does not count)."""
    return isinstance(value, DistributedValues)


def check_components(tree: Any, topology: Topology) -> None:
    """Refuse values that were made for another number of replicas.

    Raises:
      ValueError: when there are any.
    """
    for leaf in _tree.flatten(tree)[0]:
        if isinstance(leaf, PerReplica) and len(leaf.components) != topology.num_local:
            raise ValueError(
                f"{leaf!r} has {len(leaf.components)} components, and there are "
                f"{topology.num_local} replicas. Make the value with the strategy that uses it."
            )


def check_numbers(tree: Any, what: str) -> None:
    """Refuse whole numbers of NumPy, also those of one replica, that JAX would cut off.

    Text is left alone: Python may use it as it is.

    Raises:
      InvalidArgumentError: when there are any.
    """
    for leaf in _tree.flatten(tree)[0]:
        of_replicas = isinstance(leaf, PerReplica) and leaf.is_of_host
        for value in leaf.components if of_replicas else (leaf,):
            if not is_text(value):
                check_fits(value, what)


def select(index: int, tree: Any) -> Any:
    """Replace each distributed value in `tree` by what one local replica holds of it."""

    def pick(leaf: Any) -> Any:
        if isinstance(leaf, PerReplica):
            return leaf.components[index]
        if isinstance(leaf, Mirrored):
            return leaf.component(index)
        return leaf

    return _tree.map_leaves(pick, tree)


def regroup(
    trees: Sequence[Any],
    topology: Topology | None = None,
    always_wrap: bool = False,
    of_one_worker: bool = False,
) -> Any:
    """Merge one structure a replica into one structure of `PerReplica` leaves.

    What all replicas hold in common, the same object or the same Python constant, stays bare
    unless `always_wrap`. With several workers, arrays and numbers never do, as each worker knows
    only what its own replicas hold, unless only `of_one_worker` is asked for.

    Raises:
      AssertionError: when the structures differ.
    """
    flattened = [_tree.flatten(tree) for tree in trees]
    structure = flattened[0][1]
    for replica_id, (_, other) in enumerate(flattened):
        if other != structure:
            raise AssertionError(
                "The replicas returned different structures: replica 0 returned "
                f"{structure.treedef}, replica {replica_id} returned {other.treedef}. Return the "
                "same lists, tuples and keys on all replicas."
            )
    columns = zip(*(leaves for leaves, _ in flattened), strict=True)
    others_differ = not of_one_worker and topology is not None and topology.spans_workers

    def merge(column: tuple[Any, ...]) -> Any:
        wrap = always_wrap or (others_differ and is_array_like(column[0]))
        return _merge(column, topology, wrap)

    return structure.unflatten([merge(column) for column in columns])


def stack_traced(trees: Sequence[Any], topology: Topology) -> Any:
    """Merge one structure for each replica of all workers, inside a program of all of them."""
    merged = regroup(trees, always_wrap=True)

    def stack(leaf: PerReplica) -> PerReplica:
        if not is_array_like(leaf.components[0]):
            first = topology.first_local
            return PerReplica(leaf.components[first : first + topology.num_local], topology)
        return PerReplica.from_stacked(jnp.stack(leaf.components), topology)

    return _tree.map_leaves(stack, merged, is_distributed)


def _merge(column: tuple[Any, ...], topology: Topology | None, wrap: bool) -> Any:
    first = column[0]
    if not wrap and all(is_same_constant(first, other) for other in column[1:]):
        return first
    container = getattr(first, "container", None)  # of the copies of one variable
    if container is not None and all(
        getattr(other, "container", None) is container for other in column
    ):
        return container
    return PerReplica(column, topology)
