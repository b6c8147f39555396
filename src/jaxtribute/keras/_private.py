"""All of Keras that is used here and is not part of its public interface.

Keras has no public way to do these things. Each is looked up when this module is loaded, and
tests/keras/test_private.py uses each, so that a version of Keras that has changed them is noticed.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import Any

import keras
from keras.src import backend
from keras.src.backend.jax import nn as backend_nn
from keras.src.backend.jax import numpy as backend_numpy
from keras.src.losses import loss as loss_module

__all__ = ["backend_nn", "backend_numpy", "loss_module"]


def definer(cls: type, name: str) -> type:
    """Return the class in which something that `cls` inherits is defined."""
    return next(base for base in cls.__mro__ if name in vars(base))


def is_built(model: keras.Model) -> bool:
    """Tell whether all layers of a model have their variables."""
    return all(layer.built for layer in model._flatten_layers())


def build(model: keras.Model, batch: Any) -> None:
    """Create what a compiled model lacks of its variables, given the shapes of a batch."""
    model._symbolic_build(data_batch=batch)


def build_layers(model: keras.Model, x: Any) -> None:
    """Create the variables of a model that is not compiled, given the shapes of its inputs."""
    backend.compute_output_spec(model, keras.tree.map_structure(_symbolic, x), training=False)


def _symbolic(leaf: Any) -> Any:
    return None if leaf is None else keras.KerasTensor(leaf.shape, str(leaf.dtype))


def loss_tracker(model: keras.Model) -> Any:
    """Return the metric that averages the loss."""
    return model._loss_tracker


def initial_epoch(model: keras.Model) -> int | None:
    """Return the epoch to start with that a callback has found, if one has."""
    return model._initial_epoch


def metrics_or_logs(model: keras.Model, logs: Any) -> Any:
    """Return the results of the metrics, or what a step of the user's own has returned."""
    return model._get_metrics_result_or_logs(logs)


def flat_metrics(model: keras.Model, logs: dict[str, Any]) -> Any:
    """Return results in the order in which `evaluate` lists them."""
    return model._flatten_metrics_in_order(logs)


def trained_by(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """Return the variables that an optimizer was built for."""
    return list(optimizer._trainable_variables)


def should_evaluate(model: keras.Model, epoch: int, frequency: Any) -> bool:
    """Tell whether validation is due after an epoch."""
    return model._should_eval(epoch, frequency)
