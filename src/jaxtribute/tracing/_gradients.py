"""Gradients with respect to variables."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import _context, _tree
from ..sharded import ShardedVariable
from ..variables import Variable, _adopted, _frames
from ._feeding import replaying
from ._row_gradients import (
    GivenUp,
    GradientPass,
    Gradients,
    Lookup,
    Plan,
    Plans,
    Table,
    parts_of,
)

__all__ = ["grad", "value_and_grad"]

_MAX_PASSES = 8


def value_and_grad(
    fn: Callable[..., Any], variables: Any, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """Return a function that computes `fn` and its gradients with respect to variables.

    The variables are those `fn` captures, not its arguments. What `fn` assigns to variables is
    carried out. Inside `run`, the gradients are those of the replica; `Optimizer.apply_gradients`
    adds them up over all replicas. A loss with several elements is differentiated as their sum.

    >>> w = jt.Variable(3.0)
    >>> loss, (dw,) = jt.value_and_grad(lambda x: w * w * x, [w])(2.0)
    >>> float(loss), float(dw)
    (18.0, 12.0)

    The gradient of a variable that `fn` uses only through `jt.nn.embedding_lookup` consists of the
    rows that were looked up. To find out which, `fn` may be called twice.

    >>> table = jt.Variable([[1.0], [2.0], [3.0]])
    >>> gradient = jt.grad(lambda: jnp.sum(jt.nn.embedding_lookup(table, [2, 0])) * 5, table)()
    >>> gradient.indices.tolist(), gradient.values.tolist()
    ([2, 0], [[5.0], [5.0]])

    Args:
      fn: the function; returns the loss, or the loss and something else if `has_aux`.
      variables: a variable, or a list, tuple or other structure of them. Of a `ShardedVariable`
        the gradient has the shape of the whole. A model that creates its variables when it is
        first called has none before: pass the model, or anything that has `trainable_variables`,
        or a function that returns the variables. It is asked again after `fn` has created some,
        and `fn` is then called again.
      has_aux: whether `fn` returns a pair.

    Returns:
      A function with the arguments of `fn` that returns the value and the gradients, which have
      the structure of `variables`. Each is an array, `IndexedSlices` if only rows were used, or
      None if `fn` did not use the variable at all.

    Raises:
      TypeError: when `variables` holds something else, or a variable of whole numbers.
      ValueError: when the function is called, if there were no variables before and it has created
        some.
    """
    first = _Targets(variables)
    plans = Plans(fn)
    missed: list[str] = []  # variables that were created too late to be among these

    def with_gradients(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if missed:
            _complain(missed, first)
        targets = first.now()
        _check_place(targets.parts)
        context = _context.get_replica_context()
        # Replicas that meet inside `fn` have to run it equally often, whatever their batches are.
        may_remember = context is None or context.num_replicas_in_sync == 1
        plan = plans.recall(targets.parts) if may_remember else Plan()
        outcome, targets = _differentiated(
            functools.partial(fn, *args, **kwargs), has_aux, targets, plan
        )
        missed[:] = targets.missed(outcome.created)
        if missed:
            _frames.current().trace_again(at_once=True)  # if it can be: they are there then
            _complain(missed, targets)
        if may_remember:
            plans.remember(targets.parts, outcome.used)
        loss, result = outcome.result
        if context is not None and loss.ndim == 0:
            context.expect_sum(loss)
        return (loss, result[1]) if has_aux else loss, targets.of(outcome.gradients)

    return with_gradients


def grad(fn: Callable[..., Any], variables: Any, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that computes the gradients of `fn`; see `value_and_grad`.

    >>> w = jt.Variable([1.0, 2.0])
    >>> jt.grad(lambda: jnp.sum(w**2), w)()
    Array([2., 4.], dtype=float32)

    Args:
      fn: the function; returns the loss, or the loss and something else if `has_aux`.
      variables: a variable, or a list, tuple or other structure of them.
      has_aux: whether `fn` returns a pair.

    Returns:
      A function with the arguments of `fn` that returns the gradients, or the gradients and the
      something else.
    """
    with_gradients = value_and_grad(fn, variables, has_aux)

    def gradients_only(*args: Any, **kwargs: Any) -> Any:
        value, gradients = with_gradients(*args, **kwargs)
        return (gradients, value[1]) if has_aux else gradients

    return gradients_only


class _Targets:
    """The variables that gradients are taken by.

    Args:
      variables: a structure of them, and of objects and functions that tell them when they are
        asked: as long as a model is not built, it has none.
      are_there: whether a function that fails when it is asked has to do without an answer no more.
    """

    def __init__(self, variables: Any, are_there: bool = False) -> None:
        self._asked = variables
        leaves, structure = _tree.flatten(variables, is_leaf=_has_trainable_variables)
        told = [self._told(leaf, are_there) for leaf in leaves]
        self._may_grow = any(new is not old for new, old in zip(told, leaves, strict=True))
        if self._may_grow:
            leaves, structure = _tree.flatten(structure.unflatten(told))
        self._structure = structure
        self._targets = [_checked(leaf) for leaf in leaves]
        parts = {id(part): part for target in self._targets for part in parts_of(target)}
        self.parts = list(parts.values())

    def now(self) -> _Targets:
        """Return those there are by now."""
        return _Targets(self._asked) if self._may_grow else self

    def check(self) -> None:
        """Make sure that there are no others now that the function has run.

        Raises:
          _Grown: when there are.
        """
        if not self._may_grow:
            return
        now = _Targets(self._asked, are_there=True)
        if [id(part) for part in now.parts] != [id(part) for part in self.parts]:
            raise _Grown(now)

    def missed(self, created: Iterable[Table]) -> list[str]:
        """Return the names of variables that are not among these, as they were created later."""
        if self._may_grow:
            return []
        own = {id(part) for part in self.parts}
        late = [v.name for v in created if not own.issuperset(map(id, parts_of(v)))]
        return list(dict.fromkeys(late))

    def of(self, gradients: Gradients) -> Any:
        """Return the gradients, in the structure of the variables."""
        return self._structure.unflatten([gradients.of(target) for target in self._targets])

    def _told(self, leaf: Any, are_there: bool) -> Any:
        """Return the variables that an object has, or a function returns, or the leaf itself."""
        if isinstance(_adopted.of(leaf), (Variable, ShardedVariable)):
            return leaf
        if _has_trainable_variables(leaf):
            return leaf.trainable_variables
        if not callable(leaf) or _tree.is_reference(leaf):
            return leaf
        try:
            return leaf()
        except Exception:  # such as for an attribute that is set when the variable is created
            if are_there:
                raise
            return ()


class _Grown(Exception):
    """Variables came into being while the function ran by which gradients are to be taken."""

    def __init__(self, targets: _Targets) -> None:
        super().__init__()
        self.targets = targets


def _has_trainable_variables(value: Any) -> bool:
    is_variable = isinstance(value, (Variable, ShardedVariable))
    return not is_variable and getattr(value, "trainable_variables", None) is not None


def _complain(missed: Sequence[str], targets: _Targets) -> None:
    """Say that there are variables which will not be trained.

    Raises:
      ValueError: when there are no others.
    """
    message = (
        f"The function whose gradient is taken has created the variables {', '.join(missed)}, "
        "which are not among those that the gradient is taken with respect to: "
        f"{'there were none' if not targets.parts else 'these were listed'} before it was called. "
        "Build the model first, for example by calling it once on a batch; or pass what knows its "
        "variables later, the model itself, or a function: "
        "jt.value_and_grad(loss_fn, lambda: model.trainable_variables)."
    )
    if not targets.parts:
        raise ValueError(message)
    warnings.warn(message, RuntimeWarning, stacklevel=3)


class _Pass(NamedTuple):
    """What one run of a function has found."""

    result: Any
    """The loss, and what the function has returned."""
    gradients: Gradients
    used: Plan
    created: list[Table]


def _differentiated(
    call: Callable[[], Any], has_aux: bool, targets: _Targets, plan: Plan
) -> tuple[_Pass, _Targets]:
    """Run `call` as often as is needed to know what it uses, and differentiate it.

    Returns:
      What was found, and the variables by which it is differentiated.
    """
    parent = _frames.current()
    nested = not parent.here
    with replaying() as restart:
        for _ in range(_MAX_PASSES):
            try:
                return _one_pass(call, has_aux, targets, plan, parent, nested), targets
            except GivenUp as given_up:
                plan = plan.joined_by(given_up.needed)
            except _Grown as grown:
                targets, plan = grown.targets, Plan()
                parent.trace_again(at_once=False)  # without what this run leaves in the program
            restart()
    raise RuntimeError(
        f"A function has been run {_MAX_PASSES} times to take its gradient, and each time looked "
        "up rows of other tables or other numbers of rows, or created variables. It has to do the "
        "same thing whenever it is called with the same arguments."
    )


def _one_pass(
    call: Callable[[], Any],
    has_aux: bool,
    targets: _Targets,
    plan: Plan,
    parent: _frames.Frame,
    nested: bool,
) -> _Pass:
    given = plan.given(targets.parts)
    outcome = _Outcome()

    def total(values: list[Any], zeros: list[list[Any]]) -> tuple[Any, Any]:
        frame = GradientPass(
            parent,
            targets.parts,
            zip(given, values, strict=True),
            dict(zip(plan.lookups, zeros, strict=True)),
            nested,
        )
        with _frames.opened(frame):
            result = call()
        targets.check()
        outcome.used = frame.used()
        outcome.created = frame.created
        loss = jnp.asarray(result[0] if has_aux else result)
        return jnp.sum(loss), outcome.take_apart((loss, result), frame)

    (_, arrays), (whole, rows) = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(
        _values(given, parent), plan.zeros()
    )
    result, lookups = outcome.put_together(arrays, parent)
    of_kind = dict(zip(plan.lookups, rows, strict=True))
    gradients = Gradients(
        {id(variable): gradient for variable, gradient in zip(given, whole, strict=True)},
        outcome.used.whole,
        [(lookup, of_kind[lookup.kind][lookup.number]) for lookup in lookups],
    )
    return _Pass(result, gradients, outcome.used, outcome.created)


class _Outcome:
    """Passes results out of a differentiated function, the arrays among them through JAX."""

    used: Plan
    created: list[Table]

    def take_apart(self, result: Any, frame: GradientPass) -> tuple[list[Any], ...]:
        leaves, self._structure = _tree.flatten(result)
        self._template = [None if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
        self._is_array = [isinstance(leaf, jax.Array) for leaf in leaves]
        self._variables = [variable for variable, _ in frame.written]
        self._effects = frame.effects
        self._lookups = frame.lookups
        return (
            [leaf for leaf in leaves if isinstance(leaf, jax.Array)],
            [value for _, value in frame.written],
            [effect.arrays for effect in frame.effects],
            [lookup.ids for lookup in frame.lookups],
        )

    def put_together(
        self, arrays: tuple[list[Any], ...], parent: _frames.Frame
    ) -> tuple[Any, list[Lookup]]:
        """Return the result and the lookups, and have `parent` do what was done to variables."""
        results, written, effects, ids = arrays
        for variable, value in zip(self._variables, written, strict=True):
            parent.write(variable, value)
        if effects:
            pairs = zip(self._effects, effects, strict=True)
            parent.record([effect.with_arrays(each) for effect, each in pairs])
        remaining = iter(results)
        leaves = [
            next(remaining) if is_array else leaf
            for leaf, is_array in zip(self._template, self._is_array, strict=True)
        ]
        lookups = [
            replace(lookup, ids=each) for lookup, each in zip(self._lookups, ids, strict=True)
        ]
        return self._structure.unflatten(leaves), lookups


def _values(variables: Sequence[Variable], frame: _frames.Frame) -> list[Any]:
    """Return the values of variables, of those that live elsewhere all at once."""
    remote = iter(frame.read_all([variable for variable in variables if variable.is_remote]))
    return [jnp.asarray(next(remote)) if v.is_remote else v.value() for v in variables]


def _checked(leaf: Any) -> Table:
    leaf = _adopted.of(leaf)
    if not isinstance(leaf, (Variable, ShardedVariable)):
        raise TypeError(f"Gradients are taken with respect to variables, got {_mistaken(leaf)}")
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        raise TypeError(
            f"The variable {leaf.name!r} has dtype {leaf.dtype}, by which nothing can be "
            "differentiated. Leave it out, or create it with a floating-point dtype."
        )
    return leaf


def _mistaken(given: Any) -> str:
    """Say what was given in place of a variable, and what to pass instead."""
    kind = type(given).__name__
    if isinstance(given, (jax.Array, np.ndarray, np.generic)):
        return (
            f"an array of shape {given.shape} and type {given.dtype}. If it is the value of a "
            "variable, pass the variable itself: jax.tree.leaves and jax.tree.map, as well as "
            ".value(), give the values of variables. Of a dict of variables, pass the dict, or "
            "list(d.values()); of an NNX module, pass the nnx.Param objects, or use "
            "nnx.value_and_grad. For arrays that the function takes as arguments, use "
            "jax.value_and_grad."
        )
    if isinstance(given, str):
        return f"the text {given!r}. Pass the variable itself, not its name."
    if hasattr(given, "trainable_variables"):
        return f"an object of type {kind}. Pass its trainable_variables."
    if isinstance(given, Iterable):
        return f"an object of type {kind}. Pass a list, tuple or dict of variables: list(...)."
    return (
        f"{given!r} of type {kind}. For arguments of the function, use jax.value_and_grad; of an "
        "NNX module, pass the nnx.Param objects, or use nnx.value_and_grad."
    )


def _check_place(variables: Sequence[Variable]) -> None:
    for variable in variables:
        if variable.differs_between_replicas and not _frames.current().local:
            raise TypeError(
                f"The variable {variable.name!r} has a value of its own on each replica; gradients "
                "with respect to it can only be taken inside `run`."
            )
