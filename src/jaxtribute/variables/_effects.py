"""Changes of variables that live elsewhere.

Such a variable is not written by the value it is to have: others change it at the same time. What
is sent to where it lives is what is to be done, such as adding 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from .._ids import numbered, outside
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
                rows, indices = self.arrays[0], numbered(self.arrays[1])
                inside = (indices >= start) & (indices < start + shard.shape[0])
                # Those of other shards get an index past the last, which JAX leaves out.
                own = jnp.where(inside, indices - start, shard.shape[0])
                return replace(self, variable=variable, arrays=(rows, own))
            start += shard.shape[0]
        return None

    def with_arrays(self, arrays: Sequence[Any]) -> Effect:
        """Return the same with other arrays, such as those that a traced program computed."""
        return replace(self, arrays=tuple(arrays))


Before = Callable[[Sequence[Any]], list[Any]]  # variables -> what they were worth
Lookup = Callable[[Any, Any], Any]  # (variable, ids) -> rows of what it was worth


def after(variable: Any, value: Any, effects: Sequence[Effect], before: Before) -> Any:
    """Return what a variable is worth once effects are carried out.

    Args:
      variable: the variable; it may be part of the state of an optimizer.
      value: what it was worth before.
      effects: what is to be done, also to others.
      before: what other variables were worth before.
    """
    owner, own = _concerning(variable, effects)
    if not own:
        return value
    if owner is not variable:
        (value,) = before([owner])
    value, states = _carried_out(value, own, lambda optimizer: before(optimizer.slots_of(owner)))
    return value if owner is variable else states[variable.slot.optimizer][variable.slot.leaf]


def rows_after(
    variable: Any, ids: Any, rows: Any, effects: Sequence[Effect], before: Before, lookup: Lookup
) -> Any:
    """Return rows of a variable once effects are carried out, if need be without all the others.

    Args:
      variable: the variable; it may be part of the state of an optimizer.
      ids: which rows; for an id past the last, any is returned.
      rows: what they were before.
      effects: what is to be done, also to others.
      before: what other variables were worth before.
      lookup: returns rows of what they were.
    """
    owner, own = _concerning(variable, effects)
    if not own:
        return rows
    size = variable.shape[0]
    existing = jnp.clip(ids, 0, size - 1)
    if any(len(effect.arrays) == 1 for effect in own):  # so it is not too large for that
        whole = after(variable, before([variable])[0], effects, before)
        return jnp.take(whole, existing, axis=0)
    # A small table with a place for each id that occurs, in which the same is done.
    indices = [effect.arrays[1] for effect in own]
    everything = jnp.concatenate([ids, *indices])
    _, places = jnp.unique(everything, return_inverse=True, size=everything.size)
    places, *others = jnp.split(places, np.cumsum([each.size for each in [ids, *indices]])[:-1])

    def table(rows: Any) -> Any:
        shape = everything.size, *rows.shape[1:]
        return jnp.zeros(shape, rows.dtype).at[places].set(rows)

    def state(optimizer: Any) -> list[Any]:
        return [
            table(lookup(slot, existing)) if slot.shape[:1] == (size,) else before([slot])[0]
            for slot in optimizer.slots_of(owner)
        ]

    there = [
        effect.with_arrays(
            (effect.arrays[0], jnp.where(outside(index, size), everything.size, place))
        )
        for effect, index, place in zip(own, indices, others, strict=True)
    ]
    if owner is not variable:
        rows = lookup(owner, existing)
    value, states = _carried_out(table(rows), there, state)
    if owner is not variable:
        value = states[variable.slot.optimizer][variable.slot.leaf]
    return value[places]


def _concerning(variable: Any, effects: Sequence[Effect]) -> tuple[Any, list[Effect]]:
    """Return effects on a variable, or on the one whose optimizer it is part of the state of."""
    owner = variable
    if (slot := getattr(variable, "slot", None)) is not None:
        for effect in effects:
            if effect.kind == APPLY and effect.optimizer.number == slot.optimizer:
                target: Any = effect.variable
                shards = getattr(target, "variables", (target,))
                owner = next((s for s in shards if s.number == slot.owner), owner)
    own = [effect.on(owner) for effect in effects]
    return owner, [effect for effect in own if effect is not None]


def _carried_out(
    value: Any, effects: Sequence[Effect], state_before: Callable[[Any], list[Any]]
) -> tuple[Any, dict[int, list[Any]]]:
    """Return a value after effects, and the states of the optimizers among them."""
    states: dict[int, list[Any]] = {}  # by their numbers
    for effect in effects:
        if effect.kind == APPLY:
            optimizer = effect.optimizer
            if optimizer.number not in states:
                states[optimizer.number] = state_before(optimizer)
            value, states[optimizer.number] = optimizer.applied(
                effect.variable, value, states[optimizer.number], effect.arrays
            )
        elif effect.kind in _SIMPLE:
            value = _SIMPLE[effect.kind](value, effect.arrays[0])
        else:
            rows, indices = effect.arrays
            combine = _scatter.combine(effect.kind.removeprefix("scatter_"))
            value = combine(value, IndexedSlices(rows, indices))
    return value, states
