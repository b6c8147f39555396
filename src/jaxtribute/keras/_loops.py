"""A pass over batches, under strategies whose replicas train in step."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from itertools import islice
from typing import Any, Protocol

import keras
import numpy as np

from ._batches import Batch, Batches
from ._steps import Steps

Logs = dict[str, Any]


class Loops(Protocol):
    """How a model goes over batches; each kind of strategy has one.

    Each method returns when all batches are done, and tells callbacks of those it knows the end of.
    """

    def check(self, method: str, callbacks: Any) -> None:
        """Refuse, before anything runs, what a method of a model cannot be done with.

        Raises:
          ValueError: when there is something.
        """
        ...

    def train(self, batches: Batches, class_weights: Any, callbacks: Any) -> Logs:
        """Train on the batches of an epoch; return what a step has reported last."""
        ...

    def test(self, batches: Batches, callbacks: Any) -> Logs:
        """Evaluate batches; return what a step has reported last."""
        ...

    def predict(self, batches: Batches, callbacks: Any) -> list[Any]:
        """Return the outputs for each batch."""
        ...


class InStep:
    """One step after the other, each on all replicas.

    Args:
      model: a model whose variables are all there.
      strategy: the strategy it was created under.
    """

    def __init__(self, model: keras.Model, strategy: Any) -> None:
        self._model: Any = weakref.proxy(model)  # as this is kept as long as the model is
        self._steps = Steps(self._model, strategy)

    def check(self, method: str, callbacks: Any) -> None:
        """Refuse nothing."""

    def train(self, batches: Batches, class_weights: Any, callbacks: Any) -> Logs:
        """Train on the batches of an epoch."""
        logs: Logs = {}
        for first, last, chunk in self._executions(batches):
            callbacks.on_train_batch_begin(first)
            logs = self._steps.train(chunk, class_weights)
            callbacks.on_train_batch_end(last, logs)
            if self._model.stop_training:
                break
        return logs

    def test(self, batches: Batches, callbacks: Any) -> Logs:
        """Evaluate batches."""
        logs: Logs = {}
        for first, last, chunk in self._executions(batches):
            callbacks.on_test_batch_begin(first)
            logs = self._steps.test(chunk)
            callbacks.on_test_batch_end(last, logs)
            if self._model.stop_evaluating:
                break
        return logs

    def predict(self, batches: Batches, callbacks: Any) -> list[Any]:
        """Return the outputs for each batch."""
        outputs: list[Any] = []
        for step, batch in enumerate(batches.epoch()):
            callbacks.on_predict_batch_begin(step)
            outputs.append(keras.tree.map_structure(np.asarray, self._steps.predict(batch)))
            callbacks.on_predict_batch_end(step, {"outputs": outputs[-1]})
            if self._model.stop_predicting:
                break
        return outputs

    def _executions(self, batches: Batches) -> Iterator[tuple[int, int, list[Batch]]]:
        return executions(batches.epoch(), self._model.steps_per_execution)


def executions(batches: Iterator[Batch], size: int) -> Iterator[tuple[int, int, list[Batch]]]:
    """Put batches together that run in one go, with the numbers of the first and the last."""
    first = 0
    while chunk := list(islice(batches, size)):
        yield first, first + len(chunk) - 1, chunk
        first += len(chunk)
