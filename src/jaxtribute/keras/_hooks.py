"""Where Keras asks jaxtribute: what is replaced in its classes, once, by `install`.

A replaced function calls Keras's own wherever no strategy is concerned, so that models created
outside of any scope are what they were.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import keras

from .. import _context
from ..errors import FailedPreconditionError
from . import _creation, _models

_installed = threading.Lock()

Replacement = Callable[..., Any]  # called with Keras's own, and then as it is


def install() -> None:
    """Let Keras know of strategies."""
    if not _installed.acquire(blocking=False):
        return
    _replace(keras.Variable, "__new__", _new_variable)
    if keras.backend.backend() != "jax":
        return
    from . import (
        _adoption,
        _checkpoints,
        _lookups,
        _metrics,
        _optimizers,
        _private,
        _replicas,
        _saving,
        _sending,
        _server_optimizer,
        _trainer,
    )

    _adoption.register()
    _replace(keras.Variable, _private.INITIALIZING, _adoption.initialize)
    _replace(keras.layers.Layer, "__new__", _new_layer)
    for name, replacement in (_trainer.METHODS | _saving.METHODS).items():
        _replace(_private.definer(keras.Model, name), name, replacement)
    for name, replacement in _saving.FUNCTIONS.items():
        for module in (_private.saving_api, keras.saving, keras.models):
            if hasattr(module, name):
                _replace(module, name, replacement)
    _replace(_private.saving_lib, "get_attr_skipset", _saving.attributes_to_skip)
    optimizers = [
        cls
        for cls in vars(keras.optimizers).values()
        if inspect.isclass(cls) and issubclass(cls, keras.optimizers.Optimizer)
    ]
    for name, replacement in _optimizers.METHODS.items():
        for owner in dict.fromkeys(_private.definer(cls, name) for cls in optimizers):
            _replace(owner, name, replacement)
    for owner in dict.fromkeys(_private.definer(cls, "build") for cls in optimizers):
        _replace(owner, "build", _checkpoints.build_optimizer)
    for name, replacement in {
        "__init__": _server_optimizer.new_optimizer,
        "add_variable_from_reference": _creation.add_variable_from_reference,
    }.items():
        _replace(_private.definer(keras.optimizers.Optimizer, name), name, replacement)
    for name, replacement in _metrics.METHODS.items():
        _replace(keras.metrics.Metric, name, replacement)
    _replace(keras.random.SeedGenerator, "next", _replicas.next_seed)
    _replace(keras.layers.BatchNormalization, "__init__", _replicas.new_batch_normalization)
    _replace(_private.backend_nn, "moments", _replicas.moments)
    _replace(keras.layers.BatchNormalization, _private.MOMENTS, _replicas.masked_moments)
    _replace(keras.layers.Layer, _private.BUILDING, _replicas.build_once)
    _replace(keras.layers.Layer, "__setattr__", _checkpoints.set_attribute)
    _replace(keras.layers.Layer, _private.AFTER_BUILDING, _checkpoints.after_building)
    for name in _private.MAKING:
        _replace(_private.definer(keras.Model, name), name, _checkpoints.make_function)
    _replace(_private.loss_module, "reduce_values", _replicas.reduce_values)
    _replace(_private.loss_module, "apply_mask", _replicas.apply_mask)
    _replace(_private.backend_numpy, "take", _lookups.take)
    _sending.install()
    _checkpoints.register()


def _replace(owner: Any, name: str, replacement: Replacement) -> None:
    own = getattr(owner, name)

    @functools.wraps(own)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return replacement(own, *args, **kwargs)

    if inspect.isfunction(own):
        # Keras looks at signatures, and would not look behind a wrapper.
        replaced.__signature__ = inspect.signature(own)  # pyright: ignore[reportAttributeAccessIssue]
    setattr(owner, name, replaced)


def _new_variable(own: Callable[..., Any], cls: type, *args: Any, **kwargs: Any) -> Any:
    maker = _creation.maker()
    if maker is not None and cls is keras.Variable:
        return maker(cls)
    if not _context.is_in_scope() or not issubclass(cls, keras.Variable):
        return object.__new__(cls)
    backend = keras.backend.backend()
    if backend != "jax":
        raise FailedPreconditionError(
            f"A Keras variable was created in the scope of {_context.get_strategy()!r}, and Keras "
            f"runs on {backend}. Strategies need its JAX backend: set the environment variable "
            "KERAS_BACKEND=jax before Keras is imported, or `backend` in ~/.keras/keras.json."
        )
    from ._variables import StrategyVariable

    return StrategyVariable.__new__(StrategyVariable) if cls is keras.Variable else own(cls)


def _new_layer(own: Callable[..., Any], cls: type, *args: Any, **kwargs: Any) -> Any:
    layer = own(cls, *args, **kwargs)
    if _context.is_in_scope():
        _models.note_strategy(layer, _context.get_strategy())
        # Each layer has its own, too, as Keras puts one around that of the class.
        layer.build = _models.building_in_scope(layer.build, layer)
    return layer
