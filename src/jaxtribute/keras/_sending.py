"""Keras objects in functions that are sent to workers.

Keras would save them, with all values, to a file in the pickle. Here they travel as what they are
made of; variables of a strategy are references, so that a worker uses those on the servers.
"""

from __future__ import annotations

from typing import Any

import keras

from ..coordinator import _reducers
from . import _private, _server_optimizer
from ._backend import check_backend
from ._variables import StrategyVariable

_LOOKUPS = (
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)
_SENT = (keras.Operation, keras.optimizers.Optimizer, keras.Metric, keras.Loss)


def _reduced(value: Any) -> Any:
    """Return what `__reduce__` would for what Keras has made, or NotImplemented for others.

    Raises:
      TypeError: when it cannot be sent to another process.
    """
    if isinstance(value, keras.Variable):
        return _new, (type(value),), _state_of_variable(value), None, None, _set_state
    if isinstance(value, _LOOKUPS):
        return _new_lookup, _parts_of_lookup(value)
    if isinstance(value, _SENT):
        return _new, (type(value),), _private.portable_state(value), None, None, _set_state
    return _private.reduced_tracking(value)


def _state_of_variable(variable: keras.Variable) -> dict[str, Any]:
    if not isinstance(variable, StrategyVariable):
        raise TypeError(
            f"the Keras variable {variable.path!r} was created outside of the strategy's scope, so "
            "it exists on the coordinator only. Create the model, the optimizer and the metrics it "
            "belongs to inside `with strategy.scope():`, which puts their variables on the "
            "parameter servers."
        )
    if variable.stored is None:
        raise TypeError(
            f"the Keras variable {variable.path!r} has no value yet. Build the model it belongs "
            "to first, by calling it on a batch or with an `Input` as its first layer."
        )
    return dict(vars(variable))


def _parts_of_lookup(layer: Any) -> tuple[Any, ...]:
    """Return what makes another layer like this one, whose table is in TensorFlow's memory."""
    config = layer.get_config() | {"vocabulary": None, "idf_weights": None}
    # As bytes, Keras takes none of them for its own tokens, which are left out.
    words = [
        word.encode() if isinstance(word, str) else word
        for word in layer.get_vocabulary(include_special_tokens=False)
    ]
    weights: dict[str, Any] = {}
    layer.save_own_variables(weights)  # only tf_idf has any
    return type(layer), config, words, weights


def _new_lookup(cls: Any, config: dict[str, Any], words: list[Any], weights: dict[str, Any]) -> Any:
    check_backend(cls.__name__)
    layer = cls(**config)
    if words:
        # Of the right number; which they are is known of Keras's own tokens as well.
        layer.set_vocabulary(words, [1.0] * len(words) if weights else None)
        layer.load_own_variables(weights)
    return layer


def _new(cls: type) -> Any:
    check_backend(cls.__name__)
    return object.__new__(cls)


def _set_state(value: Any, state: dict[str, Any]) -> None:
    vars(value).update(state)  # Keras would track what is set otherwise
    if isinstance(value, keras.optimizers.Optimizer):
        _private.renumber(value)
        _server_optimizer.arrived(value)


def install() -> None:
    """Have functions that are sent to workers take Keras objects along."""
    _reducers.register(_reduced)
