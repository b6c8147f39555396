"""An optimizer whose variables are on parameter servers, and which runs there.

Workers send gradients. Each server applies them to its variables with the transformation of Optax,
whose state it keeps beside them, for each variable and each shard as if it were the only one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _context
from .._ids import numbered, or_past_the_last
from ..errors import InvalidArgumentError
from ..remote import RemoteVariable
from ..remote._slots import CommonSlot, slot
from ..sharded import ShardedVariable
from ..values import IndexedSlices
from ..variables._checks import checked_ids
from ..variables._effects import APPLY, Effect

Logical = RemoteVariable | ShardedVariable
_Path = tuple[Any, ...]


class RemoteState:
    """The state of an optimizer for some variables, on the servers that hold them.

    Args:
      number: how the servers know the transformation.
      transformation: an `optax.GradientTransformation`.
      variables: what is optimized, in this order.
    """

    def __init__(self, number: int, transformation: Any, variables: Sequence[Logical]) -> None:
        self.number = number
        self._transformation = transformation
        self._structures: dict[int, Any] = {}
        self._slots: dict[int, list[RemoteVariable]] = {}  # by number of the variable they are of
        self._paths: list[_Path] = []
        for variable in variables:
            for shard in _shards(variable):
                self._build(shard)

    def _build(self, variable: RemoteVariable) -> None:
        value = jax.ShapeDtypeStruct(variable.shape, variable.dtype)
        leaves, structure = jax.tree_util.tree_flatten_with_path(
            jax.eval_shape(self._transformation.init, value)
        )
        self._paths = [path for path, _ in leaves]
        self._structures[variable.number] = structure
        slots = [
            slot(variable, self.number, i, _name(variable.name, path), leaf.shape, leaf.dtype)
            for i, (path, leaf) in enumerate(leaves)
        ]
        self._slots[variable.number] = slots
        if slots:
            variable.session.build_slots(self.number, variable, [each.number for each in slots])

    def leaf(self, path: _Path, variables: Sequence[Logical], owner: int | None, name: str) -> Any:
        """Return one part of the state as an optimizer in one process has it.

        Args:
          path: the way to it in the state of Optax.
          variables: what is optimized.
          owner: which of them it belongs to, or None for what all have in common.
          name: how an optimizer in one process calls it.
        """
        index = self._paths.index(path)
        if owner is None:
            copies = [self._slots[s.number][index] for v in variables for s in _shards(v)]
            return CommonSlot(copies, name)
        parts = [self._slots[shard.number][index] for shard in _shards(variables[owner])]
        if not isinstance(variables[owner], ShardedVariable):
            return parts[0]
        if parts[0].shape[1:] != variables[owner].shape[1:] or not parts[0].shape:
            return CommonSlot(parts, name)
        return ShardedVariable(parts, name=name)

    # --- Applying --------------------------------------------------------------------------

    def effects(self, gradient: Any, variable: Logical) -> list[Effect]:
        """Return what is to be done to a variable, given its gradient."""
        if isinstance(gradient, IndexedSlices):
            rows = jnp.asarray(gradient.values).astype(variable.dtype)
            indices = numbered(checked_ids(variable, gradient.indices))
            target: Any = variable  # rows are divided between shards when they are sent
            return [Effect(target, APPLY, (rows, indices), self)]
        gradient = gradient.astype(variable.dtype)
        if not isinstance(variable, ShardedVariable):
            return [Effect(variable, APPLY, (gradient,), self)]
        effects: list[Effect] = []
        start = 0
        for shard in _shards(variable):
            stop = start + shard.shape[0]
            effects.append(Effect(shard, APPLY, (gradient[start:stop],), self))
            start = stop
        return effects

    def slots_of(self, variable: RemoteVariable) -> list[RemoteVariable]:
        """Return the parts of the state for a variable."""
        return self._slots[variable.number]

    def applied(
        self, variable: RemoteVariable, value: Any, state: Sequence[Any], arrays: Sequence[Any]
    ) -> tuple[Any, list[Any]]:
        """Return what a value and a state will be after a gradient, as the server computes it.

        Args:
          variable: which variable it is.
          value: what it is worth, or some rows of it.
          state: the parts of its state, or the same rows of those that have rows.
          arrays: the gradient, or rows of it and their indices; one past the last is left out.
        """
        tree = jax.tree.unflatten(self._structures[variable.number], state)
        if len(arrays) == 1:
            update, after = self._transformation.update(arrays[0], tree, value)
            return (value + update).astype(value.dtype), jax.tree.leaves(after)
        rows, indices = arrays[0], or_past_the_last(arrays[1], value.shape[0])
        gradient = jnp.zeros(value.shape, value.dtype).at[indices].add(rows)
        update, after = self._transformation.update(gradient, tree, value)
        touched = jnp.zeros(value.shape[:1], bool).at[indices].set(True)

        def where_touched(new: Any, old: Any, has_rows: bool) -> Any:
            if not has_rows:  # such as a count; a server without rows of it is not even told
                return jnp.where(jnp.any(touched), new, old)
            return jnp.where(touched.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

        changed = where_touched((value + update).astype(value.dtype), value, True)
        size = variable.shape[0]
        return changed, [
            where_touched(new, old, slot.shape[:1] == (size,))
            for new, old, slot in zip(
                jax.tree.leaves(after), state, self.slots_of(variable), strict=True
            )
        ]


def register(optimizer: Any, transformation: Any) -> int:
    """Teach the servers a transformation, and return its number there.

    Raises:
      InvalidArgumentError: when it cannot work on one variable at a time.
    """
    check_separable(transformation)
    return _context.get_strategy().session.register_optimizer(optimizer, transformation)


def check_separable(transformation: Any) -> None:
    """Refuse a transformation that needs the gradients of several variables at once.

    Raises:
      InvalidArgumentError: when it is one.
    """
    with jax.ensure_compile_time_eval():
        values = [jnp.asarray([[1.0, -2.0], [3.0, 0.5]]), jnp.asarray([0.25, -4.0, 2.0])]
        gradients = [jnp.asarray([[7.0, -1.0], [0.5, 11.0]]), jnp.asarray([100.0, -3.0, 0.125])]
        together = _steps(transformation, gradients, values)
        apart = [
            _steps(transformation, [g], [v])[0] for g, v in zip(gradients, values, strict=True)
        ]
    if not all(np.allclose(t, a, rtol=1e-4) for t, a in zip(together, apart, strict=True)):
        raise InvalidArgumentError(
            "This Optax transformation treats the gradients of all variables together, as "
            "optax.clip_by_global_norm does, and the variables are on several parameter servers, "
            "each of which sees only its own. Do that part on the worker, before apply_gradients: "
            "grads, _ = optax.clip_by_global_norm(1.0).update(grads, optax.EmptyState()); and give "
            "jt.Optimizer the rest."
        )


def _steps(transformation: Any, gradients: list[Any], values: list[Any]) -> list[Any]:
    state = transformation.init(values)
    updates: list[Any] = []
    for _ in range(2):
        updates, state = transformation.update(gradients, state, values)
    return updates


def _shards(variable: Logical) -> Sequence[RemoteVariable]:
    parts = variable.variables if isinstance(variable, ShardedVariable) else (variable,)
    return [part for part in parts if isinstance(part, RemoteVariable)]


def _name(owner: str, path: _Path) -> str:
    parts = [
        jax.tree_util.keystr((key,), simple=True)
        for key in path
        if not isinstance(key, jax.tree_util.SequenceKey)
    ]
    return "/".join([owner, *parts])
