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
from ._optimizer import has_owner

Logical = RemoteVariable | ShardedVariable
_Path = tuple[Any, ...]


class RemoteState:
    """The state of an optimizer for some variables, on the servers that hold them.

    Args:
      number: how the servers know the transformation.
      transformation: an `optax.GradientTransformation`.
      variables: what is optimized, in this order.
      by_place: whether the transformation goes by the places of the variables, so that servers know
        one for each, under consecutive numbers.

    Raises:
      InvalidArgumentError: when there are not as many variables as places.
    """

    def __init__(
        self,
        number: int,
        transformation: Any,
        variables: Sequence[Logical],
        by_place: int | None = None,
    ) -> None:
        if by_place is not None and by_place != len(variables):
            names = [variable.name for variable in variables]
            raise InvalidArgumentError(
                f"This Optax transformation was made for {by_place} variables, as the labels or "
                f"masks in it tell, and is applied to {len(variables)}: {names}. Give it one for "
                "each, in the order of apply_gradients."
            )
        self._rules: dict[int, _Rule] = {}  # by number of the variable
        rule = _Rule(number, transformation)
        for place, variable in enumerate(variables):
            if by_place is not None:
                rule = _Rule(number + place, AtPlace(transformation, place, by_place))
            for shard in _shards(variable):
                self._rules[shard.number] = rule
                rule.build(shard)

    def leaf(self, path: _Path, variables: Sequence[Logical], owner: int | None, name: str) -> Any:
        """Return one part of the state as an optimizer in one process has it.

        Args:
          path: the way to it in the state of Optax.
          variables: what is optimized.
          owner: which of them it belongs to, or None for what all have in common.
          name: how an optimizer in one process calls it.

        Raises:
          InvalidArgumentError: when shards of a variable have another state than the whole.
        """
        if owner is None:
            found = [self._slot(shard, path) for v in variables for shard in _shards(v)]
            return CommonSlot([each for each in found if each is not None], name)
        found = [self._slot(shard, path) for shard in _shards(variables[owner])]
        parts = [each for each in found if each is not None]
        if len(parts) < len(found):
            raise InvalidArgumentError(
                f"This Optax transformation keeps {name!r} for the variable "
                f"{variables[owner].name!r} and not for its parts, which are on several parameter "
                "servers. It must not decide by the number of rows."
            )
        if not isinstance(variables[owner], ShardedVariable):
            return parts[0]
        if parts[0].shape[1:] != variables[owner].shape[1:] or not parts[0].shape:
            return CommonSlot(parts, name)
        return ShardedVariable(parts, name=name)

    def _slot(self, shard: RemoteVariable, path: _Path) -> RemoteVariable | None:
        return self._rules[shard.number].slot_at(shard, path)

    def effects(self, gradient: Any, variable: Logical) -> list[Effect]:
        """Return what is to be done to a variable, given its gradient."""
        rule = self._rules[_shards(variable)[0].number]
        if isinstance(gradient, IndexedSlices):
            rows = jnp.asarray(gradient.values).astype(variable.dtype)
            indices = numbered(checked_ids(variable, gradient.indices))
            target: Any = variable  # rows are divided between shards when they are sent
            return [Effect(target, APPLY, (rows, indices), rule)]
        gradient = gradient.astype(variable.dtype)
        if not isinstance(variable, ShardedVariable):
            return [Effect(variable, APPLY, (gradient,), rule)]
        effects: list[Effect] = []
        start = 0
        for shard in _shards(variable):
            stop = start + shard.shape[0]
            effects.append(Effect(shard, APPLY, (gradient[start:stop],), rule))
            start = stop
        return effects


class AtPlace:
    """A transformation of several variables, as it is for the one at a place among them.

    Those at the other places are not there, which Optax takes for `None`.
    """

    def __init__(self, transformation: Any, place: int, count: int) -> None:
        self._transformation = transformation
        self._place, self._count = place, count

    def init(self, value: Any) -> Any:
        """Return the state for a value."""
        return self._transformation.init(self._among_others(value))

    def update(self, gradient: Any, state: Any, value: Any) -> tuple[Any, Any]:
        """Return the update of a value by a gradient, and the state after it."""
        gradients, values = self._among_others(gradient), self._among_others(value)
        updates, after = self._transformation.update(gradients, state, values)
        return updates[self._place], after

    def _among_others(self, value: Any) -> list[Any]:
        return [value if place == self._place else None for place in range(self._count)]


class _Rule:
    """A transformation as servers know it, and the state it has for variables."""

    def __init__(self, number: int, transformation: Any) -> None:
        self.number = number
        self._transformation = transformation
        self._structures: dict[int, Any] = {}
        self._slots: dict[int, list[RemoteVariable]] = {}  # by number of the variable they are of
        self._paths: dict[int, list[_Path]] = {}

    def build(self, variable: RemoteVariable) -> None:
        """Have the state for a variable made."""
        value = jax.ShapeDtypeStruct(variable.shape, variable.dtype)
        leaves, structure = jax.tree_util.tree_flatten_with_path(
            jax.eval_shape(self._transformation.init, value)
        )
        by_place = isinstance(self._transformation, AtPlace)
        self._paths[variable.number] = [
            path[:-1] if by_place and has_owner(path) else path for path, _ in leaves
        ]
        self._structures[variable.number] = structure
        slots = [
            slot(variable, self.number, i, _name(variable.name, path), leaf.shape, leaf.dtype)
            for i, (path, leaf) in enumerate(leaves)
        ]
        self._slots[variable.number] = slots
        if slots:
            variable.session.build_slots(self.number, variable, [each.number for each in slots])

    def slot_at(self, variable: RemoteVariable, path: _Path) -> RemoteVariable | None:
        """Return a part of the state for a variable, if it has it."""
        paths = self._paths[variable.number]
        return self.slots_of(variable)[paths.index(path)] if path in paths else None

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


def register(optimizer: Any, transformation: Any) -> tuple[int, int | None]:
    """Teach the servers a transformation.

    Returns:
      Its number there, and for how many variables it is, if it goes by their places.

    Raises:
      InvalidArgumentError: when it cannot work on one variable at a time.
    """
    count = places_in(transformation)
    check_separable(transformation, count)
    session = _context.get_strategy().session
    if count is None:
        return session.register_optimizer(optimizer, transformation), None
    numbers = [
        session.register_optimizer(optimizer, AtPlace(transformation, place, count))
        for place in range(count)
    ]
    return numbers[0], count


_MOST_PLACES = 1024


def places_in(transformation: Any) -> int | None:
    """Return for how many variables a transformation is, None if it is for any number.

    Labels and masks, as of `optax.multi_transform` and `optax.masked`, may be a list with one for
    each variable.

    Raises:
      InvalidArgumentError: when it is not for a list of variables.
    """

    def problem_with(value: Any, count: int) -> Exception | None:
        try:
            jax.eval_shape(transformation.init, [value] * count)
        except Exception as error:  # of somebody else's code
            return error
        return None

    like = jax.ShapeDtypeStruct((2, 2), jnp.float32)
    problem = problem_with(like, 1) or problem_with(like, 2)
    if problem is None:
        return None
    for count in range(1, _MOST_PLACES + 1):
        # First without any values, which takes less time.
        if problem_with(None, count) is None and problem_with(like, count) is None:
            return count
    raise InvalidArgumentError(
        "This Optax transformation cannot be used with jt.Optimizer, which gives it a list of the "
        "values of variables, in the order of apply_gradients. Labels and masks are to be a list "
        f"with one for each variable, or a function. Optax said: {problem}"
    ) from problem


def check_separable(transformation: Any, places: int | None = None) -> None:
    """Refuse a transformation that needs the gradients of several variables at once.

    Args:
      transformation: the transformation.
      places: for how many variables it is, if it goes by their places.

    Raises:
      InvalidArgumentError: when it is one.
    """
    # More than the two that differ, so that a function that goes by their places is noticed.
    count = places or 8
    with jax.ensure_compile_time_eval():
        values = [_VALUES[i % 2] for i in range(count)]
        gradients = [_GRADIENTS[i % 2] for i in range(count)]
        together = _steps(transformation, gradients, values)
        if places is None:
            each = [_steps(transformation, [_GRADIENTS[i]], [_VALUES[i]])[0] for i in range(2)]
            apart = [each[i % 2] for i in range(count)]
        else:
            apart = [
                _steps(AtPlace(transformation, i, count), gradients[i], values[i])
                for i in range(count)
            ]
    if not all(np.allclose(t, a, rtol=1e-4) for t, a in zip(together, apart, strict=True)):
        raise InvalidArgumentError(
            "This Optax transformation treats the gradients of all variables together, as "
            "optax.clip_by_global_norm does, and the variables are on several parameter servers, "
            "each of which sees only its own. Do that part on the worker, before apply_gradients: "
            "grads, _ = optax.clip_by_global_norm(1.0).update(grads, optax.EmptyState()); and give "
            "jt.Optimizer the rest. Or it has a function that tells variables apart by their "
            "places in the list: give it a list of labels instead."
        )


_VALUES = [
    np.array([[1.0, -2.0], [3.0, 0.5]], np.float32),
    np.array([0.25, -4.0, 2.0], np.float32),
]
_GRADIENTS = [
    np.array([[7.0, -1.0], [0.5, 11.0]], np.float32),
    np.array([100.0, -3.0, 0.125], np.float32),
]


def _steps(transformation: Any, gradients: Any, values: Any) -> Any:
    gradients, values = jax.tree.map(jnp.asarray, (gradients, values))
    state = transformation.init(values)
    updates: Any = None
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
