"""A pass over batches, under strategies whose replicas train in step."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
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

    def train(self, batches: Batches, class_weights: Any, callbacks: Any) -> Logs | None:
        """Train on the batches of an epoch; return what a step has reported last.

        None when nobody asked for it, and the metrics know it as well.
        """
        ...

    def test(self, batches: Batches, callbacks: Any) -> Logs | None:
        """Evaluate batches; return what a step has reported last, as `train` does."""
        ...

    def predict(self, batches: Batches, callbacks: Any) -> list[Any]:
        """Return the outputs for each batch."""
        ...


class Nobody:
    """No callbacks at all, for a batch by itself: Keras's list wants to be told of more."""

    callbacks: Sequence[Any] = ()

    def ignore(self, batch: int, logs: Any = None) -> None:
        """Do nothing."""

    on_train_batch_begin = on_train_batch_end = ignore
    on_test_batch_begin = on_test_batch_end = ignore
    on_predict_batch_begin = on_predict_batch_end = ignore

    def reads_logs(self, kind: str) -> bool:
        """Tell that nobody looks at what a step reports."""
        return False

    def stops(self, kind: str) -> bool:
        """Tell that nobody stops anything."""
        return False


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

    def train(self, batches: Batches, class_weights: Any, callbacks: Any) -> Logs | None:
        """Train on the batches of an epoch."""
        logs: Logs | None = {}
        for first, last, chunk in self._executions(batches):
            callbacks.on_train_batch_begin(first)
            logs = self._steps.train(chunk, class_weights, callbacks.reads_logs("train"))
            callbacks.on_train_batch_end(last, logs)
            if callbacks.stops("train"):
                break
        return logs

    def test(self, batches: Batches, callbacks: Any) -> Logs | None:
        """Evaluate batches."""
        logs: Logs | None = {}
        for first, last, chunk in self._executions(batches):
            callbacks.on_test_batch_begin(first)
            logs = self._steps.test(chunk, callbacks.reads_logs("test"))
            callbacks.on_test_batch_end(last, logs)
            if callbacks.stops("test"):
                break
        return logs

    def predict(self, batches: Batches, callbacks: Any) -> list[Any]:
        """Return the outputs for each batch."""
        outputs: list[Any] = []
        for first, last, chunk in self._executions(batches):
            callbacks.on_predict_batch_begin(first)
            parts = [
                keras.tree.map_structure(np.asarray, each) for each in self._steps.predict(chunk)
            ]
            outputs.append(concatenated(parts))
            callbacks.on_predict_batch_end(last, {"outputs": outputs[-1]})
            if callbacks.stops("predict"):
                break
        return outputs

    def _executions(self, batches: Batches) -> Iterator[tuple[int, int, list[Batch]]]:
        size = self._model.steps_per_execution
        return executions(batches.epoch(size), size)


def executions(batches: Iterator[Batch], size: int) -> Iterator[tuple[int, int, list[Batch]]]:
    """Put batches together that run in one go, with the numbers that callbacks are told.

    Those are of the first, and of the last if there were enough of them, as Keras counts.
    """
    first = 0
    while chunk := list(islice(batches, size)):
        yield first, first + size - 1, chunk
        first += size


def concatenated(parts: Sequence[Any]) -> Any:
    """Return the outputs for several batches as one."""
    if len(parts) == 1:
        return parts[0]
    return keras.tree.map_structure(lambda *each: np.concatenate(each), *parts)
