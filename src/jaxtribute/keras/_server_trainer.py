"""A pass over batches under parameter servers: closures that workers run, each batch once."""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import keras
import numpy as np

from ..coordinator import ClusterCoordinator, PerWorkerDataset
from ..data import INFINITE_CARDINALITY, Dataset
from ..input._sources import as_op
from ..strategies import ParameterServerStrategy
from ..strategies._deferred_input import PerWorkerInput
from . import _private, _server_steps
from ._batches import Batches, distributed
from ._creator import DatasetCreator
from ._loops import executions
from ._server_callbacks import check_callbacks
from ._worker_memory import check_memory, memory_of_this_machine

# How many batches are read before workers ask for them, for each worker.
_FEWEST_AHEAD, _MOST_AHEAD = 2, 32
_BYTES_AHEAD = 256 << 20

_STEPS = {
    "fit": "train_step",
    "train_on_batch": "train_step",
    "evaluate": "test_step",
    "test_on_batch": "test_step",
    "predict": "predict_step",
    "predict_on_batch": "predict_step",
}


# A coordinator ends when nobody has it. So each model that was used has it, compiled anew or not.
_coordinators: weakref.WeakKeyDictionary[keras.Model, ClusterCoordinator]
_coordinators = weakref.WeakKeyDictionary()


class OnServers:
    """All steps of a pass at once, each on any worker.

    Args:
      model: a model whose variables are all there.
      strategy: the strategy it was created under.
    """

    def __init__(self, model: keras.Model, strategy: ParameterServerStrategy) -> None:
        self._model: Any = weakref.proxy(model)  # as this is kept as long as the model is
        self._coordinator = ClusterCoordinator(strategy)
        _coordinators[model] = self._coordinator
        self._workers = len(strategy.worker_addresses)
        self._steps = self._coordinator.create_per_worker_values(
            partial(_server_steps.WorkerSteps, model, strategy)
        )
        self._memory: int | None = None

    def check(self, method: str, callbacks: Any) -> None:
        """Refuse steps of the user's own, callbacks for batches, and what is too large.

        Raises:
          ValueError: when there is something.
          ResourceExhaustedError: when a worker has too little memory.
        """
        step = _STEPS[method]
        if _private.overrides(self._model, step):
            raise ValueError(
                f"The model {self._model.name!r} has a {step} of its own, which gets the values of "
                "all variables and returns new ones. Under a ParameterServerStrategy they are on "
                "the servers, so that tables may be larger than a worker. Override compute_loss "
                "and compute_metrics instead, or write the loop yourself: schedule a function that "
                "uses the model, jt.value_and_grad and the optimizer with a ClusterCoordinator."
            )
        check_callbacks(callbacks, method)
        if self._memory is None:
            self._memory = int(self._coordinator.schedule(memory_of_this_machine).fetch())
        check_memory(self._model, self._memory, training=step == "train_step")

    def train(self, batches: Batches, class_weights: Any, callbacks: Any) -> None:
        """Train on the batches of an epoch."""

        def begin(sources: list[Any]) -> None:
            self._coordinator.schedule(
                _server_steps.train, args=(self._steps, sources, class_weights)
            )

        self._run(batches, begin, _bars(callbacks, "on_train_batch_end"))

    def test(self, batches: Batches, callbacks: Any) -> None:
        """Evaluate batches."""

        def begin(sources: list[Any]) -> None:
            self._coordinator.schedule(_server_steps.test, args=(self._steps, sources))

        self._run(batches, begin, _bars(callbacks, "on_test_batch_end"))

    def predict(self, batches: Batches, callbacks: Any) -> list[Any]:
        """Return the outputs for each batch, in their order."""
        outputs: list[Any] = []
        waiting: deque[Any] = deque()

        def fetch() -> None:
            outputs.append(keras.tree.map_structure(np.asarray, waiting.popleft().fetch()))
            callbacks.on_predict_batch_end(len(outputs) - 1, {"outputs": outputs[-1]})

        try:
            for step, batch in enumerate(batches.epoch()):
                callbacks.on_predict_batch_begin(step)
                arguments = (self._steps, [batch.data])
                waiting.append(self._coordinator.schedule(_server_steps.predict, args=arguments))
                if len(waiting) >= self._ahead(batch.data):
                    fetch()
                if callbacks.stops("predict"):
                    break
            while waiting and not callbacks.stops("predict"):
                fetch()
        finally:
            self._coordinator.join()
        return outputs

    def _run(
        self,
        batches: Batches,
        begin: Callable[[list[Any]], None],
        progress: Callable[[int], None],
    ) -> None:
        """Begin all steps, with few ahead of the workers, and wait until they have ended."""
        sizes: deque[int] = deque()  # of the closures, the first ones of which have ended
        ended = 0

        def await_fewer(most: int) -> int:
            nonlocal ended
            left = self._coordinator.wait_for_fewer(most)
            while len(sizes) > left:
                ended += sizes.popleft()
            progress(ended)
            return left

        try:
            for _, _, chunk in executions(batches.epoch(), self._model.steps_per_execution):
                sources = [batch.data for batch in chunk]
                await_fewer(self._ahead(sources))
                begin(sources)
                sizes.append(len(chunk))
            while sizes:
                await_fewer(len(sizes))
        finally:  # however it ends, nothing changes the model afterwards
            self._coordinator.join()

    def _ahead(self, data: Any) -> int:
        size = sum(getattr(leaf, "nbytes", 0) for leaf in keras.tree.flatten(data))
        each = _BYTES_AHEAD // (max(size, 1) * self._workers)
        return self._workers * max(_FEWEST_AHEAD, min(_MOST_AHEAD, each))


def _bars(callbacks: Any, hook: str) -> Callable[[int], None]:
    """Return what shows how many batches have ended."""
    bars = [c for c in callbacks.callbacks if isinstance(c, keras.callbacks.ProgbarLogger)]

    def show(ended: int) -> None:
        for bar in bars if ended else ():
            getattr(bar, hook)(ended - 1)

    return show


# --- Input ---------------------------------------------------------------------------------


def sent(
    strategy: ParameterServerStrategy, x: Any, y: Any = None, sample_weight: Any = None, **how: Any
) -> Batches:
    """Return the batches that are sent to workers, or that these read themselves.

    Raises:
      ValueError: for arguments that do not go together.
    """
    if inspect.isroutine(x) or isinstance(x, partial):
        x = DatasetCreator(x)
    return distributed(_Input(strategy), x, y, sample_weight, **how)


class _Input:
    """Makes batches as a strategy does: those that the coordinator reads are left whole."""

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        self._strategy = strategy
        self.num_replicas_in_sync = strategy.num_replicas_in_sync

    def experimental_distribute_dataset(self, dataset: Any) -> Any:
        if isinstance(dataset, (PerWorkerInput, PerWorkerDataset)):
            return _ReadByWorkers(ClusterCoordinator(self._strategy), dataset)
        return dataset if isinstance(dataset, Dataset) else Dataset(as_op(dataset))

    def distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        return self.experimental_distribute_dataset(
            self._strategy.distribute_datasets_from_function(dataset_fn, options)
        )

    def __repr__(self) -> str:
        return repr(self._strategy)


class _ReadByWorkers:
    """A dataset on each worker: what is sent for a batch is where to take it from."""

    def __init__(self, coordinator: ClusterCoordinator, source: Any) -> None:
        self._coordinator = coordinator
        is_there = isinstance(source, PerWorkerDataset)
        self._dataset = source if is_there else coordinator.create_per_worker_dataset(source)

    def cardinality(self) -> int:
        """Say that the coordinator does not see an end."""
        return INFINITE_CARDINALITY

    @property
    def element_spec(self) -> Any:
        """The structure of a batch, for which a worker is asked."""
        try:
            return self._dataset.element_spec
        except Exception:
            self._coordinator.join()  # which raises it for the last time
            raise

    def __iter__(self) -> Iterator[Any]:
        return itertools.repeat(iter(self._dataset))
