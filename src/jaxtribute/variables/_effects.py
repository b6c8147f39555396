"""Changes of variables that live elsewhere.

Such a variable is not written by the value it is to have: others change it at the same time. What
is sent to where it lives is what is to be done, such as adding 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from ..values import IndexedSlices
from . import _scatter

if TYPE_CHECKING:
    from ._base import Variable

APPLY = "apply"
_SIMPLE: dict[str, Callable[[Any, Any], Any]] = {
    "assign": lambda old, value: value,
    "add": lambda old, value: old + value,
    "sub": lambda old, value: old - value,
}


@dataclass(frozen=True, eq=False)
class Effect:
    """Something to be done to a variable where it lives.

    Kinds are those of the operations of a parameter server: `assign`, `add` and `sub` with a value;
    `scatter_add` and the like with rows and their indices; `apply` with a gradient, or rows of
    one and their indices, and the optimizer that applies it.
    """

    variable: Variable
    kind: str
    arrays: tuple[Any, ...]
    optimizer: Any = None

    def on(self, variable: Variable) -> Effect | None:
        """Return what is done to one variable: this, a shard's part of it, or nothing."""
        if self.variable is variable:
            return self
        start = 0
        for shard in getattr(self.variable, "variables", ()):
            if shard is variable:
                rows, indices = self.arrays
                inside = (indices >= start) & (indices < start + shard.shape[0])
                # Those of other shards get an index past the last, which JAX leaves out.
                own = jnp.where(inside, indices - start, shard.shape[0])
                return replace(self, variable=variable, arrays=(rows, own))
            start += shard.shape[0]
        return None

    def with_arrays(self, arrays: Sequence[Any]) -> Effect:
        """Return the same with other arrays, such as those that a traced program computed."""
        return replace(self, arrays=tuple(arrays))


def after(value: Any, effects: Sequence[Effect]) -> Any:
    """Return what a variable that is worth `value` will be once effects on it are carried out."""
    states: dict[int, Any] = {}  # of optimizers, between one gradient and the next
    for effect in effects:
        if effect.kind == APPLY:
            optimizer = effect.optimizer
            state = states.get(id(optimizer))
            if state is None:
                state = optimizer.read_state(effect.variable)
            value, states[id(optimizer)] = optimizer.applied(value, state, effect.arrays)
        elif effect.kind in _SIMPLE:
            value = _SIMPLE[effect.kind](value, effect.arrays[0])
        else:
            rows, indices = effect.arrays
            combine = _scatter.combine(effect.kind.removeprefix("scatter_"))
            value = combine(value, IndexedSlices(rows, indices))
    return value
