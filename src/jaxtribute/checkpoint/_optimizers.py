"""The state of an optimizer: what it consists of, and which variables it belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax

from ..optimizers import Optimizer
from ..sharded import ShardedVariable
from ..variables import Variable
from ._adapters import FoundOptimizer


def optimized(optimizer: Optimizer | FoundOptimizer) -> list[Variable]:
    """Return the variables an optimizer was built for; none if it was not built yet."""
    if isinstance(optimizer, FoundOptimizer):
        return optimizer.optimized
    return optimizer._optimized  # pyright: ignore[reportPrivateUsage]


def whole(optimizer: Optimizer | FoundOptimizer, sharded: Iterable[ShardedVariable]) -> list[Any]:
    """Return the variables an optimizer was built for, shards of one as that one."""
    return [variable for variable, _ in _grouped(optimized(optimizer), sharded)]


def slots(
    optimizer: Optimizer, sharded: Iterable[ShardedVariable]
) -> list[tuple[tuple[Any, ...], Any, Any]]:
    """Return the parts of an optimizer's state; what belongs to shards of one variable as one.

    Each is given by the way to it in the state of Optax, the variable it belongs to or None, and
    the variable that holds it.
    """
    own = optimizer._slots  # pyright: ignore[reportPrivateUsage]
    structure = optimizer._state_structure  # pyright: ignore[reportPrivateUsage]
    if not own:
        return []
    paths, _ = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(structure, own), _is_slot)
    variables = optimized(optimizer)
    found = [(*_owner(path, len(variables)), slot) for path, slot in paths]
    parts = {(keys, position): slot for keys, position, slot in found}
    owners = {
        position: (variable, positions)
        for variable, positions in _grouped(variables, sharded)
        for position in positions
    }
    result: list[tuple[tuple[Any, ...], Any, Any]] = []
    for keys, position, slot in found:
        if position is None:
            result.append((keys, None, slot))
            continue
        owner, positions = owners[position]
        shards = [(variables[p], parts[keys, p]) for p in positions]
        if len(shards) == 1:
            result.append((keys, owner, slot))
        elif any(part.shape[:1] != shard.shape[:1] for shard, part in shards):
            result.append((keys, variables[position], slot))  # has no rows to be put together
        elif position == positions[0]:
            result.append((keys, owner, ShardedVariable([part for _, part in shards])))
    return result


def _grouped(
    variables: Sequence[Any], sharded: Iterable[ShardedVariable]
) -> list[tuple[Any, range]]:
    """Return variables and their positions; all shards of one, in order, are that one."""
    by_shards = {tuple(map(id, each.variables)): each for each in sharded}
    numbers = {shards[0]: len(shards) for shards in by_shards}
    grouped: list[tuple[Any, range]] = []
    start = 0
    while start < len(variables):
        count = numbers.get(id(variables[start]), 1)
        whole = by_shards.get(tuple(map(id, variables[start : start + count])))
        if whole is None:
            whole, count = variables[start], 1
        grouped.append((whole, range(start, start + count)))
        start += count
    return grouped


def _is_slot(value: Any) -> bool:
    return isinstance(value, (Variable, ShardedVariable))


def _owner(path: tuple[Any, ...], count: int) -> tuple[tuple[Any, ...], int | None]:
    """Tell the position of a variable, which comes last, from other numbers in the state."""
    in_state = any(isinstance(key, jax.tree_util.GetAttrKey) for key in path)
    if in_state and isinstance(path[-1], jax.tree_util.SequenceKey) and path[-1].idx < count:
        return path[:-1], path[-1].idx
    return path, None
