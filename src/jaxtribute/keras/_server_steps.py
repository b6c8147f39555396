"""One step of a model on a worker of parameter servers.

Keras's own `train_step(state, data)` would need the values of all variables, and whole tables among
them. Here the model, its optimizer and its metrics are used as in a program of one's own: rows are
looked up, and the servers update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import keras

from ..coordinator import experimental_get_current_worker_index
from ..errors import OutOfRangeError
from ..tracing import value_and_grad
from . import _private, _replicas
from ._batches import Batch, with_class_weights
from ._steps import Steps


class WorkerSteps(Steps):
    """The steps of a model, each compiled once on a worker."""

    def batches(self, sources: Sequence[Any]) -> list[Batch]:
        """Return the batches that a closure was sent, or is to take from iterators."""
        return [Batch(self._read(source)) for source in sources]

    def _read(self, source: Any) -> Any:
        if not isinstance(source, Iterator):
            return self._divided(source)
        try:
            return next(source)
        except (StopIteration, OutOfRangeError):
            worker = experimental_get_current_worker_index()
            raise OutOfRangeError(
                f"The dataset of worker {worker} has come to its end. Each worker makes its own, "
                "and no worker does a certain number of the steps of an epoch: call .repeat() on "
                "the dataset."
            ) from None

    def _divided(self, data: Any) -> Any:
        """Return a batch with a part for each replica of this worker."""
        replicas = self._strategy.num_replicas_in_sync
        if replicas == 1:
            return data

        def part(context: Any) -> Any:
            place = context.replica_id_in_sync_group
            return keras.tree.map_structure(
                lambda leaf: None if leaf is None else jnp.array_split(leaf, replicas)[place], data
            )

        return self._strategy.experimental_distribute_values_from_function(part)

    def _outcome(self, kind: str, whole: bool, logs: bool, results: list[Any]) -> Any:
        # Metrics are on the servers, and read when the epoch has ended.
        return super()._outcome(kind, whole, logs, results) if kind == "predict" else None

    # --- On a replica ----------------------------------------------------------------------

    def _train_on_replica(self, data: Any, class_weights: Any, whole: bool) -> None:
        model = self._model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(
            with_class_weights(data, class_weights)
        )

        def loss_fn() -> tuple[Any, tuple[Any, Any]]:
            outputs = self._outputs(x, training=True)
            loss = model.compute_loss(x, y, outputs, sample_weight, training=True)
            return model.optimizer.scale_loss(loss), (loss, outputs)

        with _replicas.averaging(whole):
            variables = model.trainable_variables
            (_, (loss, outputs)), gradients = value_and_grad(loss_fn, variables, has_aux=True)()
            model.optimizer.apply(gradients, variables)
        self._measure(loss, x, y, outputs, sample_weight, whole)

    def _test_on_replica(self, data: Any, class_weights: Any, whole: bool) -> None:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        outputs = self._outputs(x, training=False)
        with _replicas.averaging(whole):
            loss = self._model.compute_loss(x, y, outputs, sample_weight, training=False)
        self._measure(loss, x, y, outputs, sample_weight, whole)

    def _predict_on_replica(self, data: Any, class_weights: Any, whole: bool) -> Any:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return self._outputs(x, training=False)

    def _outputs(self, x: Any, *, training: bool) -> Any:
        if _private.takes_training(self._model):
            return self._model(x, training=training)
        return self._model(x)

    def _measure(
        self, loss: Any, x: Any, y: Any, outputs: Any, sample_weight: Any, whole: bool
    ) -> None:
        """Add what a batch contributes to the metrics."""
        variables = self._model.metrics_variables
        before = [variable.value for variable in variables]
        after = _private.updated_metrics(self._model, before, loss, x, y, outputs, sample_weight)
        here = _replicas.context()
        for variable, old, new in zip(variables, before, after, strict=True):
            if new is old:
                continue
            if whole and here is not None and variable.aggregation == "sum":
                # All replicas have counted the same examples.
                new = jnp.where(here.replica_id_in_sync_group == 0, new, old)
            variable.assign(new)


# --- What closures call --------------------------------------------------------------------


def train(steps: WorkerSteps, sources: Sequence[Any], class_weights: Any) -> None:
    """Train on some batches."""
    steps.train(steps.batches(sources), class_weights, logs=False)


def test(steps: WorkerSteps, sources: Sequence[Any]) -> None:
    """Evaluate some batches."""
    steps.test(steps.batches(sources), logs=False)


def predict(steps: WorkerSteps, sources: Sequence[Any]) -> Any:
    """Return the outputs for a batch."""
    (outputs,) = steps.predict(steps.batches(sources))
    return outputs
