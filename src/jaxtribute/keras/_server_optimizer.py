"""Keras optimizers whose variables are on parameter servers, which apply the gradients."""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras

from .. import _context
from ..errors import InvalidArgumentError
from ..optimizers._remote import RemoteState, check_separable
from ..remote._slots import CommonSlot
from ..variables import _awaited, _frames
from ..variables._effects import Effect
from . import _creation, _gradients, _private
from ._transformation import Layout, Transformation, transformation_of
from ._variables import StrategyVariable, stored, variable_of

_ATTRIBUTE = "_jaxtribute_servers"


class ServerOptimizer:
    """What stands behind a Keras optimizer on the coordinator, and on each worker.

    The optimizer's variables are views of the state that servers keep beside each variable. The
    count of iterations and the learning rate are variables of the cluster besides; assigning them
    changes the copies that servers use.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._counter: Any = stored(_private.iterations(optimizer))
        self._transformation: Transformation | None = None
        self._schedule: Any = None  # of the learning rate, as servers know it
        self._number: int | None = None
        self._remote: RemoteState | None = None

    @property
    def optimizer(self) -> Any:
        """The optimizer of Keras."""
        found = self._optimizer()
        assert found is not None, "it holds this object"
        return found

    @property
    def is_built(self) -> bool:
        """Whether the state is known here."""
        return self.optimizer.built

    # --- Building --------------------------------------------------------------------------

    def build(self, targets: Sequence[Any]) -> None:
        """Take note that a worker had the state made for these variables."""
        variables = [variable_of(target) for target in targets]
        if all(variable is not None for variable in variables):
            self.build_for(variables)

    def build_for(self, variables: Sequence[Any]) -> None:
        """Have the state made where the variables are, unless it is there already."""
        optimizer = self.optimizer
        if optimizer.built:
            return
        _check_variables(optimizer, variables)
        variables = list(variables)
        targets = _targets(variables)
        strategy = self._counter.distribute_strategy
        with _context.accessing(strategy, f"the optimizer {optimizer.name!r}"):
            transformation, number = self._registered()
            remote = self._remote = RemoteState(number, transformation, targets)
            like = jax.ShapeDtypeStruct(targets[0].shape, targets[0].dtype)
            layout = transformation.layout(like)
            slots = _Slots(optimizer, remote, layout, variables, targets)
            self._share(slots)
            with _creation.by(slots.new_variable):
                type(optimizer).build(optimizer, variables)
            strategy.optimizer_was_built(number, targets)
        _awaited.attached()

    def _share(self, slots: _Slots) -> None:
        """Put copies on the servers behind what the optimizer had before it was built."""
        for variable in self.optimizer.variables:
            original: Any = stored(variable)
            variable.stored = CommonSlot([original, slots.next_common(variable)], variable.path)
            strategy = original.distribute_strategy
            if original is not self._counter and not strategy.is_on_worker:
                # It may have been assigned since the servers learned of the optimizer.
                variable.stored.store(original.numpy())

    def _registered(self) -> tuple[Transformation, int]:
        """Return what servers do, and the number they know it by, teaching it to them if need be.

        Raises:
          InvalidArgumentError: when servers cannot do it.
        """
        optimizer = self.optimizer
        schedule = _private.schedule_of(optimizer)
        if self._transformation is None or self._number is None:
            _check(optimizer)
            self._schedule = schedule
            self._transformation = transformation_of(optimizer)
            strategy = self._counter.distribute_strategy
            if type(optimizer) not in vars(keras.optimizers).values():  # whose rules are known
                check_separable(self._transformation)
            number: int = strategy.session.register_optimizer(self, self._transformation)
            self._number = number
        elif schedule is not self._schedule:
            raise InvalidArgumentError(
                f"The learning rate of {optimizer.name!r} was replaced by {schedule!r} when "
                "parameter servers were using the optimizer already. Assign numbers to "
                "learning_rate, or create the optimizer with the schedule."
            )
        return self._transformation, self._number

    def __getstate__(self) -> dict[str, Any]:
        transformation, number = self._registered()
        return {
            "_counter": self._counter,
            "_transformation": transformation,
            "_schedule": self._schedule,
            "_number": number,
            "_remote": None,  # a worker has its own view of it
        }

    # --- Applying --------------------------------------------------------------------------

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any] | None) -> None:
        """Have servers apply gradients, of which those that are None are left out.

        Raises:
          ValueError: when there are none, or for variables that it was not built for.
          InvalidArgumentError: for rows of gradients where all of them are needed.
        """
        optimizer = self.optimizer
        if variables is not None:
            self.build_for(variables)
        known = _private.trained_by(optimizer)
        variables = known if variables is None else variables
        strangers = {id(v) for v in variables} - {id(v) for v in known}
        if strangers:
            names = [v.path for v in variables if id(v) in strangers]
            raise ValueError(
                f"The optimizer {optimizer.name!r} was built for other variables than {names}. "
                "Use one optimizer for each set of variables."
            )
        if self._remote is None:
            transformation, number = self._registered()
            self._remote = RemoteState(number, transformation, _targets(known))
        pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
        if not pairs:
            raise ValueError("No gradients provided for any variable.")
        effects: list[Effect] = []
        prepared = _gradients.prepared(optimizer, *map(list, zip(*pairs, strict=True)))
        for gradient, target in zip(prepared, _targets([v for _, v in pairs]), strict=True):
            effects += self._remote.effects(gradient, target)
        one = jnp.ones((), self._counter.dtype)
        _frames.current().record([*effects, Effect(self._counter, "add", (one,))])


class _Slots:
    """Gives the variables that an optimizer creates the state on servers, part by part."""

    def __init__(
        self,
        optimizer: Any,
        remote: RemoteState,
        layout: Layout,
        variables: Sequence[Any],
        targets: Sequence[Any],
    ) -> None:
        self._optimizer = optimizer
        self._remote = remote
        self._layout = layout
        self._targets = targets
        self._positions = {id(variable): i for i, variable in enumerate(variables)}
        self._used: Counter[int | None] = Counter()

    def new_variable(self, cls: type) -> Any:
        return SlotVariable.__new__(SlotVariable, slots=self)

    def next_common(self, variable: Any) -> Any:
        """Return the next part that all variables have in common."""
        return self._next(None, self._layout.common, variable)

    def next(self, variable: Any, reference: Any) -> Any:
        """Return the next part of the state, of those of a variable or in common."""
        if reference is None:
            return self.next_common(variable)
        return self._next(self._positions[id(reference)], self._layout.own, variable)

    def _next(self, owner: int | None, leaves: list[int], variable: Any) -> Any:
        used = self._used[owner]
        self._used[owner] += 1
        shapes = [()] if owner is None else [tuple(self._targets[owner].shape)]
        if used >= len(leaves) or tuple(variable.shape or ()) not in shapes:
            raise InvalidArgumentError(
                f"{type(self._optimizer).__name__} keeps for some variables another kind of state "
                f"than for others, or one of another shape, such as {variable.path!r}, and "
                "parameter servers work on one variable, or one part of it, at a time. Use another "
                "optimizer, such as keras.optimizers.Adam."
            )
        path = (jax.tree_util.SequenceKey(leaves[used]),)
        return self._remote.leaf(path, self._targets, owner, variable.path)


class SlotVariable(StrategyVariable):
    """A variable of an optimizer whose value is part of the state that servers keep."""

    _slots: Any

    def __new__(cls, *args: Any, slots: Any = None, **kwargs: Any) -> Any:
        self = super().__new__(cls)
        self._slots = slots
        return self

    def _create(self, initial_value: Any) -> None:
        self.stored = self._slots.next(self, _creation.reference())
        self._slots = None


def _targets(variables: Sequence[Any]) -> list[Any]:
    return [stored(variable) for variable in variables]


# --- What Keras asks -----------------------------------------------------------------------


def new_optimizer(own: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> None:
    """Create an optimizer; in the scope of parameter servers, one whose state they keep."""
    with _context.opened(_context.Together(optimizer)):  # the count, the rate, and what follows it
        own(optimizer, *args, **kwargs)
    iterations = _private.iterations(optimizer)
    if isinstance(iterations, StrategyVariable) and getattr(iterations.stored, "is_remote", False):
        vars(optimizer)[_ATTRIBUTE] = ServerOptimizer(optimizer)
        _replace_build(optimizer)


def arrived(optimizer: Any) -> None:
    """Complete an optimizer that was sent to this process."""
    servers = server_optimizer(optimizer)
    if servers is not None:
        servers._optimizer = weakref.ref(optimizer)  # pyright: ignore[reportPrivateUsage]
        _replace_build(optimizer)


def server_optimizer(optimizer: Any) -> ServerOptimizer | None:
    """Return what stands behind an optimizer, if its variables are on parameter servers."""
    return vars(optimizer).get(_ATTRIBUTE)


def _replace_build(optimizer: Any) -> None:
    """Have `build` be ours, also in a class of the user's own."""
    reference = weakref.ref(optimizer)

    @functools.wraps(type(optimizer).build)
    def build(variables: Sequence[Any]) -> None:
        servers = server_optimizer(reference())
        assert servers is not None
        servers.build_for(variables)

    vars(optimizer)["build"] = build


# --- What servers cannot do ----------------------------------------------------------------


def _check(optimizer: Any) -> None:
    problem = None
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        problem = (
            "changes its scale by all gradients of a step. Use the optimizer inside it, with "
            "loss_scale_factor=... for a fixed scale, or the policy 'mixed_bfloat16', which needs "
            "none; with compile, auto_scale_loss=False"
        )
    elif isinstance(optimizer, (keras.optimizers.Adafactor, keras.optimizers.Muon)):
        problem = "looks at whole matrices. Use another one, such as keras.optimizers.Adam"
    elif optimizer.global_clipnorm and optimizer.gradient_accumulation_steps:
        problem = (
            "clips the norm of all accumulated gradients together. Use clipvalue or clipnorm, or "
            "larger batches in the place of gradient_accumulation_steps"
        )
    elif _private.excludes_from_weight_decay(optimizer):
        problem = (
            "does not decay some variables. Use one optimizer for those that are decayed and one "
            "with weight_decay=None for the others"
        )
    if problem is not None:
        raise InvalidArgumentError(
            f"{optimizer.name!r}, a {type(optimizer).__name__}, cannot run on parameter servers, "
            f"each of which has some of the variables, or parts of them: it {problem}."
        )


def _check_variables(optimizer: Any, variables: Sequence[Any]) -> None:
    if not variables:
        raise ValueError("There are no variables to build the optimizer's state for.")
    for variable in variables:
        if not getattr(stored(variable), "is_remote", False):
            raise ValueError(
                f"The optimizer {optimizer.name!r} is on parameter servers, and the variable "
                f"{variable.path!r} is not. Create both inside `with strategy.scope():`."
            )
        if variable.constraint is not None or variable.overwrite_with_gradient:
            what = "a constraint" if variable.constraint is not None else "float8 statistics"
            raise InvalidArgumentError(
                f"The variable {variable.path!r} has {what}, for which all of it is needed after "
                "each update, and parameter servers apply gradients to parts of variables. Create "
                "the layer without it; a regularizer may do instead of a constraint."
            )
