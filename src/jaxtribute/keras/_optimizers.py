"""Keras optimizers inside replicas: gradients of all of them, and one update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from .. import _context
from ..values import IndexedSlices
from ..variables._checks import checked_ids
from ._private import trained_by
from ._replicas import reducing
from ._server_optimizer import server_optimizer
from ._variables import StrategyVariable, synchronized


def _apply(
    own: Callable[..., Any],
    optimizer: Any,
    grads: Sequence[Any],
    trainable_variables: Sequence[Any] | None = None,
) -> Any:
    """Update variables by the gradients of all replicas."""
    strategy = _strategy_of(optimizer)
    if strategy is None:
        return own(optimizer, grads, trainable_variables)
    with _context.accessing(strategy, f"the optimizer {optimizer.name!r}"):
        variables = None if trainable_variables is None else list(trainable_variables)
        if not optimizer.built and variables is not None:
            _build(optimizer, variables)
        servers = server_optimizer(optimizer)
        if servers is not None:
            with reducing(grads) as reduced:
                return servers.apply(reduced, variables)
        trained = variables or trained_by(optimizer)
        with reducing(grads) as reduced, synchronized():
            dense = [_dense(g, variable) for g, variable in zip(reduced, trained, strict=True)]
            if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                return _apply_at_once(optimizer, dense)
            return own(optimizer, dense, variables)


def _apply_at_once(optimizer: Any, gradients: list[Any]) -> None:
    """Apply gradients and assign at the end: Keras would assign inside a `jax.lax.cond`."""
    variables = [*trained_by(optimizer), *optimizer.variables]
    trained = len(trained_by(optimizer))
    values = [variable.value for variable in variables]
    after = optimizer.stateless_apply(values[trained:], gradients, values[:trained])
    for variable, value in zip(variables, [*after[0], *after[1]], strict=True):
        optimizer.inner_optimizer.assign(variable, value)  # which may have its own way to


def _build(optimizer: Any, variables: list[Any]) -> None:
    """Create the state of an optimizer, once for all replicas, which get here together."""
    context = _context.get_replica_context()
    if context is None:
        optimizer.build(variables)
    else:
        context.merge_call(lambda strategy: optimizer.build(variables))


def _stateless_apply(
    own: Callable[..., Any],
    optimizer: Any,
    optimizer_variables: Sequence[Any],
    grads: Sequence[Any],
    trainable_variables: Sequence[Any],
) -> Any:
    """Return what `apply` would make of variables.

    Where parameter servers keep them, they are told of the gradients, and the values are returned
    as they are.
    """
    servers = server_optimizer(optimizer)
    with reducing(grads) as reduced:
        if servers is not None:
            servers.apply(reduced, None)
            return trainable_variables, optimizer_variables
        return own(optimizer, optimizer_variables, reduced, trainable_variables)


METHODS = {"apply": _apply, "stateless_apply": _stateless_apply}


def _strategy_of(optimizer: Any) -> Any | None:
    variables = optimizer.variables
    first = variables[0] if variables else None
    return first.strategy if isinstance(first, StrategyVariable) else None


def _dense(gradient: Any, variable: Any) -> Any:
    if not isinstance(gradient, IndexedSlices):
        return gradient
    checked_ids(variable, gradient.indices)
    return gradient.to_dense(variable.shape)
