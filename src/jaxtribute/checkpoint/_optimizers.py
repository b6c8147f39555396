"""The state of an optimizer: what it consists of, and which variables it belongs to."""

from __future__ import annotations

from typing import Any

import jax

from ..optimizers import Optimizer
from ..sharded import ShardedVariable
from ..variables import Variable


def optimized(optimizer: Optimizer) -> list[Variable]:
    """Return the variables an optimizer was built for; none if it was not built yet."""
    return optimizer._optimized  # pyright: ignore[reportPrivateUsage]


def slots(optimizer: Optimizer) -> list[tuple[tuple[Any, ...], int | None, Variable]]:
    """Return the parts of an optimizer's state.

    Each is given by the way to it in the state of Optax, the position of the variable it belongs to
    or None, and the variable that holds it.
    """
    own = optimizer._slots  # pyright: ignore[reportPrivateUsage]
    structure = optimizer._state_structure  # pyright: ignore[reportPrivateUsage]
    if not own:
        return []
    paths, _ = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(structure, own), _is_slot)
    count = len(optimized(optimizer))
    return [(*_owner(path, count), slot) for path, slot in paths]


def _is_slot(value: Any) -> bool:
    return isinstance(value, (Variable, ShardedVariable))


def _owner(path: tuple[Any, ...], count: int) -> tuple[tuple[Any, ...], int | None]:
    """Tell the position of a variable, which comes last, from other numbers in the state."""
    in_state = any(isinstance(key, jax.tree_util.GetAttrKey) for key in path)
    if in_state and isinstance(path[-1], jax.tree_util.SequenceKey) and path[-1].idx < count:
        return path[:-1], path[-1].idx
    return path, None
