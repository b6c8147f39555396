"""The methods of Keras models, under strategies."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import keras
import numpy as np

from ..checkpoint._adapters import variables_were_created
from ..strategies import ParameterServerStrategy
from . import _private
from ._adapters import accepted
from ._agreement import check_same_arguments
from ._batches import Batches, class_weight_table, distributed
from ._callbacks import Callbacks
from ._loops import InStep, Logs, Loops, Nobody, concatenated
from ._models import check_variables, strategy_of
from ._server_trainer import OnServers, sent
from ._sparse import sliceable

_loops: weakref.WeakKeyDictionary[keras.Model, Loops] = weakref.WeakKeyDictionary()


def _compile(own: Callable[..., Any], model: keras.Model, *args: Any, **kwargs: Any) -> None:
    strategy = strategy_of(model, "compile")
    if strategy is None:
        own(model, *args, **kwargs)
        return
    _loops.pop(model, None)
    with strategy.scope():
        own(model, *args, **kwargs)


def fit(
    model: keras.Model,
    strategy: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: Any = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool = True,
    class_weight: dict[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: Any = 1,
) -> Any:
    """Train a model on the replicas of its strategy; as `keras.Model.fit`."""
    _check_compiled(model, "fit")
    check_same_arguments(
        strategy,
        "fit",
        batch_size=batch_size,
        epochs=epochs,
        initial_epoch=initial_epoch,
        shuffle=shuffle,
        steps_per_epoch=steps_per_epoch,
        class_weight=class_weight,
        validation_split=validation_split,
        validates=validation_data is not None,
        validation_steps=validation_steps,
        validation_batch_size=validation_batch_size,
        validation_freq=validation_freq,
    )
    if validation_split and validation_data is None:
        (x, y, sample_weight), validation_data = _split(x, y, sample_weight, validation_split)
    batches = _given(
        strategy,
        x,
        y,
        sample_weight,
        batch_size=batch_size,
        steps=steps_per_epoch,
        shuffle=shuffle,
    )
    loops = _built(model, strategy, batches, "fit")
    class_weights = class_weight_table(class_weight)
    validation = None
    if validation_data is not None:
        validation = _given(
            strategy,
            *keras.utils.unpack_x_y_sample_weight(validation_data),
            batch_size=validation_batch_size or batch_size,
            steps=validation_steps,
        )
    epochs = min(epochs, keras.config.max_epochs() or epochs)  # of runs for debugging
    callbacks = Callbacks(
        model, strategy, callbacks, verbose, epochs=epochs, steps=batches.steps, in_fit=True
    )
    callbacks.agree()
    loops.check("fit", callbacks)
    if validation is not None:
        loops.check("evaluate", callbacks)
    model.stop_training = False
    logs: Logs = {}
    callbacks.on_train_begin()
    for epoch in range(_private.initial_epoch(model) or initial_epoch, epochs):
        model.reset_metrics()
        callbacks.on_epoch_begin(epoch)
        last = loops.train(batches, class_weights, callbacks)
        if batches.ran_dry:
            break
        logs = _numbers(_private.metrics_or_logs(model, last))
        if validation is not None and _private.should_evaluate(model, epoch, validation_freq):
            results = _evaluate(model, loops, validation, callbacks)
            logs |= {f"val_{name}": value for name, value in results.items()}
        callbacks.on_epoch_end(epoch, logs)
        if callbacks.stops("train", after_epoch=True):
            break
    if isinstance(model.optimizer, keras.optimizers.Optimizer) and epochs > 0:
        model.optimizer.finalize_variable_values(model.trainable_weights)
    callbacks.on_train_end(logs)
    return model.history


def evaluate(
    model: keras.Model,
    strategy: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    verbose: Any = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Any = None,
    return_dict: bool = False,
) -> Any:
    """Measure a model on the replicas of its strategy; as `keras.Model.evaluate`."""
    _check_compiled(model, "evaluate")
    check_same_arguments(strategy, "evaluate", batch_size=batch_size, steps=steps)
    batches = _given(strategy, x, y, sample_weight, batch_size=batch_size, steps=steps)
    loops = _built(model, strategy, batches, "evaluate")
    callbacks = Callbacks(model, strategy, callbacks, verbose, steps=batches.steps)
    callbacks.agree()
    loops.check("evaluate", callbacks)
    logs = _evaluate(model, loops, batches, callbacks)
    return logs if return_dict else _private.flat_metrics(model, logs)


def _evaluate(model: keras.Model, loops: Loops, batches: Batches, callbacks: Any) -> Logs:
    model.stop_evaluating = False
    callbacks.on_test_begin()
    model.reset_metrics()
    batches.restart()  # so that each validation has the same examples
    logs = loops.test(batches, callbacks)
    logs = _numbers(_private.metrics_or_logs(model, logs))
    callbacks.on_test_end(logs)
    return logs


def predict(
    model: keras.Model,
    strategy: Any,
    x: Any,
    batch_size: int | None = None,
    verbose: Any = "auto",
    steps: int | None = None,
    callbacks: Any = None,
) -> Any:
    """Compute outputs on the replicas of a model's strategy; as `keras.Model.predict`."""
    check_same_arguments(strategy, "predict", batch_size=batch_size, steps=steps)
    batches = _given(strategy, x, batch_size=batch_size, steps=steps)
    loops = _built(model, strategy, batches, "predict")
    callbacks = Callbacks(model, strategy, callbacks, verbose, steps=batches.steps)
    callbacks.agree()
    loops.check("predict", callbacks)
    model.stop_predicting = False
    callbacks.on_predict_begin()
    outputs = loops.predict(batches, callbacks)
    callbacks.on_predict_end()
    return concatenated(outputs)


def train_on_batch(
    model: keras.Model,
    strategy: Any,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    class_weight: dict[int, float] | None = None,
    return_dict: bool = False,
) -> Any:
    """Train on one global batch; as `keras.Model.train_on_batch`."""
    _check_compiled(model, "train_on_batch")
    batches = _one_batch(strategy, x, y, sample_weight)
    loops = _built(model, strategy, batches, "train_on_batch")
    loops.check("train_on_batch", Nobody())
    model.reset_metrics()
    logs = loops.train(batches, class_weight_table(class_weight), Nobody())
    logs = _numbers(_private.metrics_or_logs(model, logs))
    return logs if return_dict else _private.flat_metrics(model, logs)


def test_on_batch(
    model: keras.Model,
    strategy: Any,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    return_dict: bool = False,
) -> Any:
    """Measure one global batch; as `keras.Model.test_on_batch`."""
    _check_compiled(model, "test_on_batch")
    batches = _one_batch(strategy, x, y, sample_weight)
    loops = _built(model, strategy, batches, "test_on_batch")
    loops.check("test_on_batch", Nobody())
    model.reset_metrics()
    logs = _numbers(_private.metrics_or_logs(model, loops.test(batches, Nobody())))
    return logs if return_dict else _private.flat_metrics(model, logs)


def predict_on_batch(model: keras.Model, strategy: Any, x: Any) -> Any:
    """Compute the outputs for one global batch; as `keras.Model.predict_on_batch`."""
    batches = _one_batch(strategy, x)
    loops = _built(model, strategy, batches, "predict_on_batch")
    loops.check("predict_on_batch", Nobody())
    (outputs,) = loops.predict(batches, Nobody())
    return outputs


# --- What depends on the strategy ----------------------------------------------------------


class _Kind(NamedTuple):
    """How models of a kind of strategy get batches, and go over them."""

    batches: Callable[..., Batches]
    loops: Callable[[keras.Model, Any], Loops]


def _kind(strategy: Any) -> _Kind:
    on_servers = isinstance(strategy, ParameterServerStrategy)
    return _Kind(sent, OnServers) if on_servers else _Kind(distributed, InStep)


def _given(strategy: Any, *data: Any, **how: Any) -> Batches:
    """Return what a method was given as batches."""
    return _kind(strategy).batches(strategy, *data, **how)


# --- What they share -----------------------------------------------------------------------


def _built(model: keras.Model, strategy: Any, batches: Batches, what: str) -> Loops:
    """Create the variables that a model lacks, and return how it goes over batches."""
    with strategy.scope():
        # Metrics need targets, which nobody predicts with.
        if model.compiled and not what.startswith("predict"):
            _private.build(model, batches.spec)
        elif not _private.is_built(model):
            x, _, _ = keras.utils.unpack_x_y_sample_weight(batches.spec)
            _private.build_layers(model, x)
    check_variables(model, what)
    variables_were_created()
    if model not in _loops:
        _loops[model] = _kind(strategy).loops(model, strategy)
    return _loops[model]


def _one_batch(strategy: Any, x: Any, y: Any = None, sample_weight: Any = None) -> Batches:
    return _given(strategy, x, y, sample_weight, steps=1)


def _split(x: Any, y: Any, sample_weight: Any, share: float) -> tuple[Any, Any]:
    """Divide arrays into those to train on and, at the end, those to validate with.

    Raises:
      ValueError: when they are no arrays, or nothing would be left of a part.
    """
    parts = keras.tree.map_structure(sliceable, (x, y, sample_weight))
    leaves = [leaf for leaf in keras.tree.flatten(parts) if leaf is not None]
    if not all(hasattr(leaf, "shape") for leaf in leaves):
        raise ValueError(
            "validation_split divides arrays. For a dataset, pass validation_data=another_dataset."
        )
    rows = len(leaves[0])
    end = int(rows * (1.0 - share))
    if not 0 < end < rows:
        raise ValueError(
            f"validation_split={share} of {rows} examples leaves nothing to train on, or nothing "
            "to validate with."
        )

    def taken(span: slice) -> Any:
        return keras.tree.map_structure(lambda leaf: None if leaf is None else leaf[span], parts)

    return taken(slice(end)), taken(slice(end, None))


def _check_compiled(model: keras.Model, what: str) -> None:
    if not model.compiled:
        raise ValueError(f"You must call `compile()` before calling `{what}()`.")


def _numbers(logs: Logs) -> Logs:
    """Return logs with Python numbers in them."""
    numbers: Logs = {}
    for name, value in logs.items():
        if isinstance(value, dict):  # of a metric with several results
            numbers |= _numbers(cast(Logs, value))
        else:
            numbers[name] = float(value) if np.ndim(value) == 0 else value
    return numbers


def _under_strategy(method: Callable[..., Any]) -> Callable[..., Any]:
    def dispatch(own: Callable[..., Any], model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        strategy = strategy_of(model, method.__name__)
        if strategy is None:
            args, kwargs = accepted(own, model, args, kwargs)
            return own(model, *args, **kwargs)
        return method(model, strategy, *args, **kwargs)

    return dispatch


METHODS: dict[str, Callable[..., Any]] = {
    "compile": _compile,
    **{
        method.__name__: _under_strategy(method)
        for method in (
            evaluate,
            fit,
            predict,
            predict_on_batch,
            test_on_batch,
            train_on_batch,
        )
    },
}
