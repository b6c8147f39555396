"""Optax optimizers that keep their state in variables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _context
from .._jax_compat import is_tracing, outside_traces
from .._reduce import ReduceOp, VariableAggregation
from ..module import Module
from ..sharded import ShardedVariable
from ..values import IndexedSlices, PerReplica
from ..variables import Variable, _awaited, _frames
from ..variables._checks import checked_ids
from ..variables._effects import Effect

if TYPE_CHECKING:
    import optax

    from ._remote import RemoteState

__all__ = ["Optimizer"]


class Optimizer(Module):
    """Applies gradients to variables with an Optax transformation.

    Its state lives in variables of the strategy in whose scope the optimized variables are. Inside
    `run`, the gradients of all replicas are added up first, so losses should be averaged over the
    global batch; see `jt.nn.compute_average_loss`.

    >>> import optax
    >>> w = jt.Variable(1.0)
    >>> optimizer = jt.Optimizer(optax.sgd(0.5))
    >>> optimizer.apply_gradients([(jnp.float32(1.0), w)])
    >>> float(w), int(optimizer.iterations)
    (0.5, 1)

    Args:
      transformation: an `optax.GradientTransformation`, such as `optax.adam(1e-3)`.
      name: the name, which the names of the state begin with.

    Raises:
      TypeError: when `transformation` is something else.
    """

    def __init__(
        self, transformation: optax.GradientTransformation, name: str = "optimizer"
    ) -> None:
        if not (hasattr(transformation, "init") and hasattr(transformation, "update")):
            raise TypeError(
                "jt.Optimizer takes an optax.GradientTransformation, such as optax.adam(1e-3), got "
                f"{transformation!r}."
            )
        super().__init__(name)
        self._transformation = transformation
        self._iterations = Variable(
            0,
            name=f"{name}/iterations",
            trainable=False,
            aggregation=VariableAggregation.ONLY_FIRST_REPLICA,
        )
        self._optimized: list[Any] = []
        self._slots: list[Any] = []
        self._state_structure: Any = None
        self._number: int | None = None  # on parameter servers
        self._places: int | None = None  # the number of variables, if it goes by their places
        self._remote: RemoteState | None = None

    @property
    def iterations(self) -> Variable:
        """How many times gradients were applied."""
        return self._iterations

    @property
    def is_built(self) -> bool:
        """Whether the state exists."""
        return bool(self._optimized)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The count of iterations, and the state once it is built."""
        return (self._iterations, *self._slots)

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """None: an optimizer is not trained."""
        return ()

    def build(self, variables: Iterable[Variable]) -> None:
        """Create the state for variables; done by the first `apply_gradients` otherwise.

        Args:
          variables: the variables that will be optimized, in this order.

        Raises:
          ValueError: when there are none.
        """
        optimized = list(variables)
        if not optimized:
            raise ValueError("There are no variables to build the optimizer's state for.")
        if any(variable.is_remote for variable in optimized):
            self._build_remote(optimized)
            return
        optimized = [shard for variable in optimized for shard in _shards(variable)]
        state: Any
        if any(variable.has_no_value_yet for variable in optimized):
            state = self._transformation.init([v.value() for v in optimized])  # pyright: ignore[reportArgumentType]
        else:
            # It starts from the variables as they are, also inside a function being traced.
            values = [v.component_data(0) for v in optimized]
            state = outside_traces(lambda: _initial_state(self._transformation, values))
        leaves, structure = jax.tree_util.tree_flatten_with_path(state)
        names = _slot_names(self.name, [path for path, _ in leaves], optimized)
        strategy = optimized[0].distribute_strategy or _context.get_strategy()
        with _context.accessing(strategy, f"the optimizer {self.name!r}"):
            slots = [
                Variable(
                    value,
                    name=name,
                    trainable=False,
                    aggregation=VariableAggregation.ONLY_FIRST_REPLICA,
                )
                for name, (_, value) in zip(names, leaves, strict=True)
            ]
        self._set_state(optimized, slots, structure)

    def _set_state(self, optimized: list[Any], slots: list[Any], structure: Any) -> None:
        # All at once, as replicas that take turns may all be building, and as a checkpoint may have
        # values for them.
        vars(self).update(_optimized=optimized, _slots=slots, _state_structure=structure)
        _awaited.attached()

    def _build_remote(self, optimized: list[Any]) -> None:
        """Have the state made on the parameter servers that hold the variables."""
        from ._remote import RemoteState  # with what talks to servers, which most have none of

        here = [variable.name for variable in optimized if not variable.is_remote]
        if here or not self._iterations.is_remote:
            what = f"the variables {here}" if here else "the optimizer"
            raise ValueError(
                f"Some of the variables of {self.name!r} are on parameter servers, and {what} were "
                "created outside of the strategy's scope. Create all of them, and the optimizer, "
                "inside `with strategy.scope():`."
            )
        strategy = optimized[0].distribute_strategy
        with _context.accessing(strategy, f"the optimizer {self.name!r}"):
            number = self.number_on_servers()
            remote = RemoteState(number, self._transformation, optimized, self._places)
        whole = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in optimized]
        state = jax.eval_shape(self._transformation.init, whole)  # pyright: ignore[reportArgumentType]
        leaves, structure = jax.tree_util.tree_flatten_with_path(state)
        paths = [path for path, _ in leaves]
        slots = [
            remote.leaf(path[:-1], optimized, path[-1].idx, name)
            if has_owner(path)
            else remote.leaf(path, optimized, None, name)
            for path, name in zip(paths, _slot_names(self.name, paths, optimized), strict=True)
        ]
        self._remote = remote
        self._set_state(optimized, slots, structure)
        strategy.optimizer_was_built(self.number_on_servers(), optimized)

    def number_on_servers(self) -> int:
        """Return how parameter servers know the transformation, teaching it to them if need be."""
        if self._number is None:
            from ._remote import register

            strategy = self._iterations.distribute_strategy
            with _context.accessing(strategy, f"the optimizer {self.name!r}"):
                self._number, self._places = register(self, self._transformation)
        return self._number

    def __getstate__(self) -> dict[str, Any]:
        # A worker builds its own view of the state, which is on the servers.
        state = dict(vars(self))
        if self._iterations.is_remote:
            self.number_on_servers()
            state |= {"_number": self._number, "_places": self._places, "_remote": None}
            state |= {"_optimized": [], "_slots": []}
            state["_state_structure"] = None
        return state

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Variable]]) -> None:
        """Update variables by gradients, added up over all replicas.

        Args:
          grads_and_vars: pairs of a gradient and its variable, such as `zip(grads, variables)`;
            the same variables in the same order at each call. A variable whose gradient is None
            stays as it is, with what the optimizer remembers of it.

        Raises:
          TypeError: when what a gradient belongs to is no variable.
          ValueError: when there are no gradients, one is of another shape than its variable, the
            variables are others than before, or a variable is not of the strategy in force.
        """
        pairs = list(grads_and_vars)
        self._check(pairs)
        strategy = pairs[0][1].distribute_strategy or _context.get_strategy()
        with _context.accessing(strategy, f"the optimizer {self.name!r}"):
            self._apply(pairs)

    def _apply(self, pairs: list[tuple[Any, Variable]]) -> None:
        variables = [variable for _, variable in pairs]
        gradients = self._added_up([gradient for gradient, _ in pairs], variables)
        if all(gradient is None for gradient in gradients):
            raise ValueError(
                f"No gradients provided for any variable: the loss uses none of {_names(variables)}"
                ", or nothing that is computed from them."
            )
        if not any(variable.is_remote for variable in variables):
            variables, gradients = _by_shard(variables, gradients)
        if not self._optimized:
            self.build(variables)
        if _shard_ids(variables) != _shard_ids(self._optimized):
            raise ValueError(
                f"This optimizer was built for the variables {_names(self._optimized)}, and was "
                f"given gradients for {_names(variables)}. Pass the same ones each time, or use "
                "one optimizer for each set."
            )
        if self._remote is not None:
            self._apply_remotely(self._remote, gradients, variables)
            return
        values = [variable.value() for variable in variables]
        dense = [
            jnp.zeros_like(value) if g is None else _dense(g, v)
            for g, v, value in zip(gradients, variables, values, strict=True)
        ]
        state = jax.tree.unflatten(self._state_structure, [slot.value() for slot in self._slots])
        updates, new_state = self._transformation.update(dense, state, values)  # pyright: ignore[reportArgumentType]
        for gradient, variable, value, update in zip(
            gradients, variables, values, jax.tree.leaves(updates), strict=True
        ):
            if gradient is not None:
                variable.assign_synchronized((value + update).astype(variable.dtype))
        for slot, (path, value) in zip(
            self._slots, jax.tree_util.tree_leaves_with_path(new_state), strict=True
        ):
            if not has_owner(path) or gradients[path[-1].idx] is not None:
                slot.assign_synchronized(value)
        self._iterations.assign_synchronized(self._iterations.value() + 1)

    def _apply_remotely(
        self, remote: RemoteState, gradients: list[Any], variables: list[Any]
    ) -> None:
        effects: list[Effect] = []
        for gradient, variable in zip(gradients, variables, strict=True):
            if gradient is None:
                continue
            sparse = isinstance(gradient, IndexedSlices)
            effects += remote.effects(gradient if sparse else _dense(gradient, variable), variable)
        one = jnp.ones((), self._iterations.dtype)
        _frames.current().record([*effects, Effect(self._iterations, "add", (one,))])

    def _added_up(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        context = _context.get_replica_context()
        if context is not None:
            if context.num_replicas_in_sync > 1 and not is_tracing():
                gradients = _agreed(context, gradients, variables)
            return context.all_reduce(ReduceOp.SUM, gradients)
        if any(isinstance(g, PerReplica) for g in gradients):
            return _context.get_strategy().reduce(ReduceOp.SUM, gradients, axis=None)
        return gradients

    def _check(self, pairs: list[tuple[Any, Variable]]) -> None:
        if not pairs:
            raise ValueError("No gradients were given to apply_gradients.")
        for _, variable in pairs:
            if not isinstance(variable, (Variable, ShardedVariable)):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(
                    f"Gradients are applied to variables, got {variable!r} of type "
                    f"{type(variable).__name__}. For arrays, use Optax directly."
                )
        strategy = _context.get_strategy()
        strangers = [
            variable
            for gradient, variable in pairs
            if gradient is not None
            and strategy.num_replicas_in_sync > 1
            and not strategy.owns(variable)
        ]
        if strangers:
            raise ValueError(
                f"The variables {_names(strangers)} were not created in the scope of {strategy!r}, "
                "so its replicas cannot keep them in sync. Create them inside "
                "`with strategy.scope():`."
            )


def _agreed(context: Any, gradients: list[Any], variables: list[Any]) -> list[Any]:
    """Return zeros for gradients that this replica has not, and another one has.

    Replicas that run one by one may use different variables, as one may have no examples.
    """
    kinds = [[g is not None, isinstance(g, IndexedSlices)] for g in gradients]
    found = np.asarray(context.all_reduce(ReduceOp.SUM, np.array(kinds, np.int32)))
    agreed: list[Any] = []
    for gradient, variable, (known, sparse) in zip(gradients, variables, found, strict=True):
        if gradient is None and sparse:
            rows = jnp.zeros((0, *variable.shape[1:]), variable.dtype)
            gradient = IndexedSlices(rows, jnp.zeros((0,), jnp.int32), variable.shape)
        elif gradient is None and known:
            gradient = jnp.zeros(variable.shape, variable.dtype)
        agreed.append(gradient)
    return agreed


def _dense(gradient: Any, variable: Variable) -> jax.Array:
    if isinstance(gradient, IndexedSlices):
        checked_ids(variable, gradient.indices)
        return gradient.to_dense(variable.shape)
    array = jnp.asarray(gradient)
    if array.shape != variable.shape:
        raise ValueError(
            f"The gradient for {variable.name!r} has shape {array.shape}, and the variable "
            f"{variable.shape}. Pass each gradient with its own variable."
        )
    return array


def _slot_names(
    optimizer: str, paths: list[tuple[Any, ...]], optimized: list[Variable]
) -> list[str]:
    """Return `w/mu` for the part of the state that belongs to `w`, `optimizer/count` for others.

    Numbers that only say where in a chain of transformations a part is are left out, unless
    names would be the same.
    """
    short = [_slot_name(optimizer, path, optimized, with_numbers=False) for path in paths]
    return [
        name
        if short.count(name) == 1
        else _slot_name(optimizer, path, optimized, with_numbers=True)
        for name, path in zip(short, paths, strict=True)
    ]


def _slot_name(
    optimizer: str, path: tuple[Any, ...], optimized: list[Variable], with_numbers: bool
) -> str:
    owner, keys = optimizer, path
    if has_owner(path):
        owner, keys = optimized[path[-1].idx].name, path[:-1]
    parts = [
        jax.tree_util.keystr((key,), simple=True)
        for key in keys
        if with_numbers or not isinstance(key, jax.tree_util.SequenceKey)
    ]
    return "/".join([owner, *parts])


def has_owner(path: tuple[Any, ...]) -> bool:
    """Tell whether a part of the state belongs to one variable, whose position comes last."""
    inside_state = any(isinstance(key, jax.tree_util.GetAttrKey) for key in path)
    return inside_state and isinstance(path[-1], jax.tree_util.SequenceKey)


def _initial_state(transformation: optax.GradientTransformation, values: list[jax.Array]) -> Any:
    try:  # as one program: eagerly, JAX would compile one for each shape
        return jax.jit(transformation.init)(values)  # pyright: ignore[reportArgumentType]
    except jax.errors.JAXTypeError:  # it looks at the values
        return transformation.init(values)  # pyright: ignore[reportArgumentType]


def _shards(variable: Any) -> tuple[Any, ...]:
    return tuple(variable.variables) if isinstance(variable, ShardedVariable) else (variable,)


def _shard_ids(variables: Iterable[Any]) -> list[int]:
    """Tell variables apart, of which a divided one is the same as all its shards."""
    return [id(shard) for variable in variables for shard in _shards(variable)]


def _by_shard(variables: list[Any], gradients: list[Any]) -> tuple[list[Any], list[Any]]:
    """Replace sharded variables of this process by their shards, and divide their gradients."""
    if not any(isinstance(variable, ShardedVariable) for variable in variables):
        return variables, gradients
    shards: list[Any] = []
    parts: list[Any] = []
    for variable, gradient in zip(variables, gradients, strict=True):
        own = _shards(variable)
        if len(own) == 1 or gradient is None:
            parts += [gradient] * len(own)
        else:
            ends = np.cumsum([shard.shape[0] for shard in own])[:-1]
            parts += jnp.split(_dense(gradient, variable), ends)
        shards += own
    return shards, parts


def _names(variables: Iterable[Variable]) -> list[str]:
    return [variable.name for variable in variables]
