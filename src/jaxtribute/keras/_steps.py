"""One step of a model on each replica, compiled: Keras's own steps between variables of a strategy.

Keras's `train_step(state, data)`, and one that a user has written in its place, computes with
arrays. Here each replica gives it what its variables are worth, and assigns what comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import keras

from .. import _context
from .._reduce import ReduceOp, VariableAggregation
from ..tracing import function
from ..values import PerReplica
from . import _replicas
from ._batches import Batch, with_class_weights
from ._variables import stored

Values = list[Any]


class Steps:
    """The functions that train, test and predict with a model, each compiled once.

    Args:
      model: a model whose variables are all there.
      strategy: the strategy it was created under.
    """

    def __init__(self, model: keras.Model, strategy: Any) -> None:
        self._model = model
        self._strategy = strategy
        self._functions: dict[tuple[str, bool, bool], Any] = {}

    def train(
        self, batches: Sequence[Batch], class_weights: Any, logs: bool
    ) -> dict[str, Any] | None:
        """Train on batches, in one program if they are of one shape.

        Args:
          batches: the batches.
          class_weights: the weight of each class, if there are any.
          logs: whether to return what the metrics have come to, which takes time: workers have to
            send each other theirs. What a step of the user's own reports is returned anyway.
        """
        return self._over("train", batches, class_weights, logs)[-1]

    def test(self, batches: Sequence[Batch], logs: bool) -> dict[str, Any] | None:
        """Evaluate batches; `logs` as in `train`."""
        return self._over("test", batches, None, logs)[-1]

    def predict(self, batches: Sequence[Batch]) -> list[Any]:
        """Return the outputs for each batch, as one array or a structure of them."""
        outputs: list[Any] = []
        for each in self._over("predict", batches, None, True):
            outputs += each
        return outputs

    # --- Batches ---------------------------------------------------------------------------

    def _over(
        self, kind: str, batches: Sequence[Batch], class_weights: Any, logs: bool
    ) -> list[Any]:
        ragged = [self._is_ragged(batch) for batch in batches]
        if not any(ragged):
            data = [batch.data for batch in batches]
            return [self._call((kind, False, logs), data, class_weights)]
        return [
            self._call(
                (kind, whole, logs), [self._whole(batch) if whole else batch.data], class_weights
            )
            for batch, whole in zip(batches, ragged, strict=True)
        ]

    def _is_ragged(self, batch: Batch) -> bool:
        topology = self._strategy.topology
        return any(
            isinstance(leaf, PerReplica) and leaf.stacked(topology) is None
            for leaf in keras.tree.flatten(batch.data)
        )

    def _whole(self, batch: Batch) -> Any:
        """Return all examples of a batch that cannot be divided evenly, for each replica.

        Each then computes the same: exact, whatever the loss, the metrics and the layers do, and
        it happens once an epoch.
        """
        return self._strategy.gather(batch.data, axis=0)

    def _call(self, program: tuple[str, bool, bool], data: list[Any], class_weights: Any) -> Any:
        if program not in self._functions:
            kind, whole, logs = program
            step = getattr(self, f"_{kind}_on_replica")

            def run(data: list[Any], class_weights: Any) -> Any:
                results = [
                    self._strategy.run(step, args=(each, class_weights, whole)) for each in data
                ]
                return self._outcome(kind, whole, logs, results)

            run.__name__ = f"{kind}_step"
            is_compiled = self._model.jit_compile and not self._model.run_eagerly
            compiled = function(run) if is_compiled else run
            self._functions[program] = compiled
        with _context.cross_replica(self._strategy, f"the model {self._model.name!r}"):
            return self._functions[program](data, class_weights)

    def _outcome(self, kind: str, whole: bool, logs: bool, results: list[Any]) -> Any:
        if kind == "predict":
            return [
                self._first(outputs) if whole else self._strategy.gather(outputs, axis=0)
                for outputs in results
            ]
        known = self._model.get_metrics_result()
        if known.keys() == results[-1].keys():
            return known if logs else None
        # Of a step of the user's own, which reports something else.
        return self._strategy.reduce(ReduceOp.MEAN, results[-1], axis=None)

    def _first(self, outputs: Any) -> Any:
        return keras.tree.map_structure(
            lambda leaf: leaf.values[0] if isinstance(leaf, PerReplica) else leaf, outputs
        )

    # --- On a replica ----------------------------------------------------------------------

    def _train_on_replica(self, data: Any, class_weights: Any, whole: bool) -> Any:
        model = self._model
        kinds = (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
        state = tuple(_values(variables) for variables in kinds)
        with _replicas.averaging(whole):
            logs, after = model.train_step(state, with_class_weights(data, class_weights))
        for i in (0, 2):
            _assign_equal(kinds[i], state[i], after[i])
        _assign_average(kinds[1], state[1], after[1])
        _assign_own(kinds[3], state[3], after[3], whole)
        return logs

    def _test_on_replica(self, data: Any, class_weights: Any, whole: bool) -> Any:
        model = self._model
        kinds = (
            model.trainable_variables,
            model.non_trainable_variables,
            model.metrics_variables,
        )
        state = tuple(_values(variables) for variables in kinds)
        with _replicas.averaging(whole):
            logs, after = model.test_step(state, data)
        _assign_average(kinds[1], state[1], after[1])
        _assign_own(kinds[2], state[2], after[2], whole)
        return logs

    def _predict_on_replica(self, data: Any, class_weights: Any, whole: bool) -> Any:
        model = self._model
        kinds = (model.trainable_variables, model.non_trainable_variables)
        state = tuple(_values(variables) for variables in kinds)
        outputs, after = model.predict_step(state, data)
        _assign_average(kinds[1], state[1], after)
        return outputs


def _values(variables: Sequence[Any]) -> Values:
    return [variable.value for variable in variables]


def _changes(variables: Sequence[Any], before: Values, after: Values) -> list[tuple[Any, Any, Any]]:
    """Return each variable that a step has changed, with its value before and after."""
    return [
        (stored(v), old, new)
        for v, old, new in zip(variables, before, after, strict=True)
        if new is not old
    ]


def _assign_equal(variables: Sequence[Any], before: Values, after: Values) -> None:
    for variable, _, new in _changes(variables, before, after):
        variable.assign_synchronized(new)


def _assign_average(variables: Sequence[Any], before: Values, after: Values) -> None:
    """Assign statistics, of which each replica has its own; all at once, as sending takes time."""
    changes = _changes(variables, before, after)
    here = _replicas.context()
    if here is not None:
        floats = [i for i, c in enumerate(changes) if jnp.issubdtype(c[2].dtype, jnp.inexact)]
        means = here.all_reduce(ReduceOp.MEAN, [changes[i][2] for i in floats]) if floats else []
        for i, mean in zip(floats, means, strict=True):
            changes[i] = (changes[i][0], changes[i][1], mean)
    for variable, _, new in changes:
        variable.assign_synchronized(new)


def _assign_own(variables: Sequence[Any], before: Values, after: Values, whole: bool) -> None:
    """Assign metrics, which are added up over replicas when they are read."""
    here = _replicas.context()
    for variable, old, new in _changes(variables, before, after):
        if whole and here is not None and variable.aggregation is VariableAggregation.SUM:
            # All replicas have counted the same examples.
            new = jnp.where(here.replica_id_in_sync_group == 0, new, old)
        variable.assign(new)
