"""All of Keras that is used here and is not part of its public interface.

Keras has no public way to do these things. Each is looked up when this module is loaded, and
tests_integrations/keras/test_private.py uses each, so that a version of Keras that has changed
them is noticed.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import Any

import keras
from keras.src import backend
from keras.src.backend.common import stateless_scope
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.backend.jax import nn as backend_nn
from keras.src.backend.jax import numpy as backend_numpy
from keras.src.backend.jax.trainer import JAXTrainer
from keras.src.export.export_utils import get_input_signature
from keras.src.losses import loss as loss_module
from keras.src.models.functional import Functional
from keras.src.saving import saving_api, saving_lib
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.utils import backend_utils, naming, tracking

__all__ = [
    "DataAdapter",
    "backend_nn",
    "backend_numpy",
    "in_symbolic_scope",
    "loss_module",
    "saving_api",
    "saving_lib",
]


# The attribute in which a variable has its value, and the method that makes the first one.
VALUE = "_value"
INITIALIZING = "_initialize_with_initializer"
# Methods of layers: the one that builds a layer when it is first called, the one that is called
# whenever a layer was built, and the one by which BatchNormalization computes mean and variance.
BUILDING = "_maybe_build"
AFTER_BUILDING = "_post_build"
MOMENTS = "_moments"
# Methods of models: those that make what trains, tests and predicts outside of scopes.
MAKING = ("make_train_function", "make_test_function", "make_predict_function")


def definer(cls: type, name: str) -> type:
    """Return the class in which something that `cls` inherits is defined."""
    return next(base for base in cls.__mro__ if name in vars(base))


def is_built(model: keras.layers.Layer) -> bool:
    """Tell whether all layers of a model, or of a layer, have their variables."""
    return all(layer.built for layer in model._flatten_layers())


def build(model: keras.Model, batch: Any) -> None:
    """Create what a compiled model lacks of its variables, given the shapes of a batch."""
    model._symbolic_build(data_batch=batch)


def build_layers(model: keras.Model, x: Any) -> None:
    """Create the variables of a model that is not compiled, given the shapes of its inputs."""
    backend.compute_output_spec(model, keras.tree.map_structure(_symbolic, x), training=False)


def _symbolic(leaf: Any) -> Any:
    return None if leaf is None else keras.KerasTensor(leaf.shape, str(leaf.dtype))


def initial_epoch(model: keras.Model) -> int | None:
    """Return the epoch to start with that a callback has found, if one has."""
    return model._initial_epoch


def set_initial_epoch(model: keras.Model, epoch: int | None) -> None:
    """Have training start with an epoch, as a callback does that has found one."""
    model._initial_epoch = epoch


def metrics_or_logs(model: keras.Model, logs: Any | None) -> Any:
    """Return the results of the metrics, or what a step of the user's own has returned."""
    if logs is None:
        return model.get_metrics_result()
    return model._get_metrics_result_or_logs(logs)


def flat_metrics(model: keras.Model, logs: dict[str, Any]) -> Any:
    """Return results in the order in which `evaluate` lists them."""
    return model._flatten_metrics_in_order(logs)


def trained_by(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """Return the variables that an optimizer was built for."""
    return list(optimizer._trainable_variables)


def iterations(optimizer: keras.optimizers.Optimizer) -> Any:
    """Return the variable that counts how often an optimizer was given gradients."""
    return optimizer._iterations


def schedule_of(optimizer: keras.optimizers.Optimizer) -> Any | None:
    """Return what computes the learning rate, or None where it is a variable."""
    rate = optimizer._learning_rate
    return None if isinstance(rate, keras.Variable) else rate


def excludes_from_weight_decay(optimizer: keras.optimizers.Optimizer) -> bool:
    """Tell whether some variables are not to be decayed as the others are."""
    attributes = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")
    return any(getattr(optimizer, name, None) for name in attributes)


def should_evaluate(model: keras.Model, epoch: int, frequency: Any) -> bool:
    """Tell whether validation is due after an epoch."""
    return model._should_eval(epoch, frequency)


def stateless_value(variable: keras.Variable) -> Any | None:
    """Return what a variable is worth in the `keras.StatelessScope` that is open, if it is said."""
    scope = stateless_scope.get_stateless_scope()
    return None if scope is None else scope.get_current_value(variable)


def in_stateless_scope() -> bool:
    """Tell whether what is assigned to variables goes elsewhere, or is forgotten."""
    return stateless_scope.in_stateless_scope() or in_symbolic_scope()


# --- What objects consist of ---------------------------------------------------------------

# Lists and dicts in the attributes of layers and optimizers.
CONTAINERS = (tracking.TrackedList, tracking.TrackedDict, tracking.TrackedOrderedDict)

# Attributes by which Keras keeps its books, and metrics that `fit` resets in every epoch.
_BOOKS = {
    "_compile_loss",
    "_compile_metrics",
    "_functional",
    "_inbound_nodes",
    "_layers",
    "_loss_tracker",
    "_metrics",
    "_nodes",
    "_nodes_by_depth",
    "_non_trainable_variables",
    "_operations",
    "_operations_by_depth",
    "_outbound_nodes",
    "_seed_generators",
    "_trainable_variables",
    "_variables",
}


def attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that it, or its user, has set, and that may have state."""
    settings = (bool, int, float, str, type(None))
    return {
        name: held
        for name, held in vars(value).items()
        if name not in _BOOKS and not isinstance(held, settings)
    }


def tracked(value: Any) -> dict[str, list[Any]]:
    """Return the parts of a layer or metric that Keras knows of, by kind."""
    kinds = {
        "variables": ("_trainable_variables", "_non_trainable_variables", "_variables"),
        "layers": ("_layers",),
        "metrics": ("_metrics",),
        "seed_generators": ("_seed_generators",),
    }
    books = {id(vars(value).get(name)) for name in _BOOKS}
    return {
        kind: [
            each for name in names for each in vars(value).get(name) or () if id(each) not in books
        ]
        for kind, names in kinds.items()
    }


def has_ordered_layers(value: Any) -> bool:
    """Tell whether something is a model that was made from layers, in an order."""
    return isinstance(value, (keras.Sequential, Functional))


def class_name(layer: Any) -> str:
    """Return the name of a layer's class, as names of layers are written."""
    return naming.to_snake_case(type(layer).__name__)


def own_variables(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """Return the variables of an optimizer, without those of one inside it."""
    return list(optimizer._variables)


def layers_of(model: keras.Model) -> list[keras.layers.Layer]:
    """Return a model, its layers, theirs, and so on."""
    return list(model._flatten_layers())


def overrides(model: keras.Model, step: str) -> bool:
    """Tell whether a model has a `train_step`, `test_step` or `predict_step` of the user's own."""
    return definer(model.__class__, step) is not JAXTrainer


def input_signature(model: keras.Model) -> list[Any]:
    """Return what a model takes, an `InputSpec` or a structure of them for each argument.

    Raises:
      ValueError: when it is not known yet.
    """
    return list(get_input_signature(model) or ())


def takes_training(model: keras.Model) -> bool:
    """Tell whether a model is called with `training`."""
    return model._call_has_training_arg


def updated_metrics(
    model: keras.Model,
    before: list[Any],
    loss: Any,
    x: Any,
    y: Any,
    outputs: Any,
    sample_weight: Any,
) -> list[Any]:
    """Return the values of a model's metrics after another batch."""
    return model._update_metrics_variables(before, loss, x, y, outputs, sample_weight)[1]


def reduced_axes(layer: keras.layers.BatchNormalization) -> list[int]:
    """Return the axes that a layer takes the mean over."""
    return list(layer._reduction_axes or ())


def py_dataset_reader(dataset: keras.utils.PyDataset) -> Any:
    """Return what reads a dataset, by the threads or processes it asks for."""
    return PyDatasetAdapter(dataset)


# --- On the way to another process ---------------------------------------------------------

# What a model has compiled, and what layers were called on: chains of all layers, too long for
# pickle, of which a model has what it needs in its graph.
_EMPTIED = ("_inbound_nodes", "_loss_ids", "_outbound_nodes")
_CLEARED = ("history", "predict_function", "test_function", "train_function")
_LEFT_OUT = ("build", "quantize")  # a layer's own versions of its methods


def portable_state(value: Any) -> dict[str, Any]:
    """Return the attributes of a layer, model, metric, optimizer or loss that can be sent."""
    state = {name: each for name, each in vars(value).items() if name not in _LEFT_OUT}
    state |= {name: type(state[name])() for name in _EMPTIED if name in state}
    state |= {name: None for name in _CLEARED if name in state}
    return state


def reduced_tracking(value: Any) -> Any:
    """Return how to pickle what Keras keeps attributes in, or NotImplemented for other things."""
    if isinstance(value, tracking.Tracker):
        state = {name: each for name, each in vars(value).items() if name != "stored_ids"}
        return object.__new__, (type(value),), state, None, None, _set_tracker
    if isinstance(value, tracking.TrackedList):
        return list, (), None, iter(value)
    if isinstance(value, (tracking.TrackedDict, tracking.TrackedOrderedDict)):
        return type(value).__base__, (), None, None, iter(value.items())
    if isinstance(value, tracking.TrackedSet):
        return set, (list(value),)
    if isinstance(value, backend_utils.DynamicBackend):  # of preprocessing layers
        return type(value), (value.name,)
    return NotImplemented


def _set_tracker(tracker: Any, state: dict[str, Any]) -> None:
    vars(tracker).update(state)
    tracker.stored_ids = {
        name: {id(each) for each in found} for name, (_, found) in tracker.config.items()
    }


def renumber(optimizer: keras.optimizers.Optimizer) -> None:
    """Have an optimizer that was sent know its variables, which have other identities here."""
    indices = {id(v): i for i, v in enumerate(optimizer._trainable_variables)}
    optimizer._trainable_variables_indices = indices
