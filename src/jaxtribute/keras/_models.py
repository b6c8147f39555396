"""Which strategy a Keras model, or layer, belongs to."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import keras

from .. import _context

# Not in the models, which users copy, pickle and save.
_strategies: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def note_strategy(model: keras.layers.Layer, strategy: Any) -> None:
    """Remember in whose scope a model or layer was created."""
    _strategies[model] = strategy


def known_strategy(model: Any) -> Any | None:
    """Return the strategy a model or layer was created under, whichever is in force."""
    return _strategies.get(model)


def building_in_scope(build: Callable[..., Any], layer: keras.layers.Layer) -> Callable[..., Any]:
    """Return what builds a layer under the strategy it was created under, wherever it is called."""
    reference = weakref.ref(layer)

    @functools.wraps(build)
    def built(*args: Any, **kwargs: Any) -> Any:
        strategy = None if _context.has_strategy() else known_strategy(reference())
        with nullcontext() if strategy is None else strategy.scope():
            return build(*args, **kwargs)

    return built


def strategy_of(model: keras.Model, what: str) -> Any | None:
    """Return the strategy a model was created under, or None for an ordinary Keras model.

    Args:
      model: the model.
      what: the method that is being called, for messages.

    Raises:
      ValueError: when the model, or some of its variables, were created outside of the scope.
      RuntimeError: when the model belongs to another strategy than the one in force.
    """
    strategy = _strategies.get(model)
    if strategy is None:
        if not _context.has_strategy():
            return None
        raise ValueError(
            f"{what} was called on the model {model.name!r} in the scope of "
            f"{_context.get_strategy()!r}, and the model was created outside of it, so its "
            "variables are on one device only. Create and compile it inside "
            "`with strategy.scope():`, or call "
            f"{what} outside of the scope to train it without the strategy."
        )
    if _context.has_strategy() and _context.get_strategy() is not strategy:
        raise _context.mixing_error(_context.get_strategy(), strategy, f"the model {model.name!r}")
    return strategy


def check_variables(model: keras.Model, what: str) -> None:
    """Refuse a model of which some variables were created outside of the strategy's scope.

    Raises:
      ValueError: when there are some.
    """
    strategy = _strategies[model]
    layers = _strangers(model.variables, strategy)
    own = model.optimizer if model.compiled else None
    optimizer = _strangers(() if own is None else own.variables, strategy)
    metrics = _strangers(model.metrics_variables, strategy)
    for whose, owners, names in (
        ("its layers", "the layers", layers),
        ("its optimizer", "the optimizer", optimizer),
        ("its metrics", "the metrics", metrics),
    ):
        if names:
            raise ValueError(
                f"{what} needs all variables of the model {model.name!r} to be created in the "
                f"scope of {strategy!r}, and these of {whose} were not: {', '.join(names)}. Create "
                f"{owners} that they belong to inside `with strategy.scope():` too."
            )


def _strangers(variables: Iterable[Any], strategy: Any) -> list[str]:
    return [v.path for v in variables if getattr(v, "strategy", None) is not strategy][:3]
