"""Keras metrics on parameter servers: the state of each is on one of them.

A server that was restored from its snapshot is some updates behind the others. A total of which the
count is on another one would be wrong from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from .. import _context
from ..remote import RemoteVariable
from ._variables import StrategyVariable


def add_variable(own: Callable[..., Any], metric: Any, *args: Any, **kwargs: Any) -> Any:
    """Create a variable of a metric where its others are."""
    with _context.opened(_context.Together(metric)):
        return own(metric, *args, **kwargs)


def set_attribute(own: Callable[..., Any], metric: Any, name: str, value: Any) -> None:
    """Set an attribute, and bring what it holds to where the metric's other variables are.

    A variable or a metric that was not made by `add_variable` was made before it was known whose
    it is, and nobody else has used it yet.
    """
    own(metric, name, value)
    if isinstance(value, (StrategyVariable, keras.metrics.Metric)) and hasattr(metric, "_tracker"):
        _bring_together(metric.variables)


def _bring_together(variables: list[Any]) -> None:
    held = [v for v in variables if isinstance(v, StrategyVariable) and v.stored is not None]
    remote: list[Any] = [v for v in held if getattr(v.stored, "is_remote", False)]
    first = next((v.stored for v in remote if isinstance(v.stored, RemoteVariable)), None)
    for variable in remote:
        strategy = variable.strategy
        if strategy.is_on_worker:
            return
        if first is None:  # all are divided
            first = strategy.move_beside(variable.stored, variable.stored.variables[0])
            variable.keep_in(first)
        elif _place(variable.stored) != _place(first) and strategy is first.distribute_strategy:
            variable.keep_in(strategy.move_beside(variable.stored, first))


def _place(stored: Any) -> list[str]:
    return [shard.device for shard in getattr(stored, "variables", (stored,))]


METHODS = {"add_variable": add_variable, "__setattr__": set_attribute}
