"""Running figures over the examples of all replicas.

Each replica counts for itself, in variables that are added up when the result is read outside of
the replicas, so updating a metric costs no communication.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from typing import Any

import jax
import jax.numpy as jnp

from . import _context
from ._reduce import VariableAggregation, VariableSynchronization
from ._wide import asarray
from .module import Module
from .variables import Variable

__all__ = ["Accuracy", "Mean", "Metric", "Sum"]


class _CreatedTogether(ABCMeta):
    """Has all variables that a metric creates be on one parameter server.

    One that was restored is some updates behind the others: a total of which the count is on
    another one would be wrong from then on.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        self = cls.__new__(cls, *args, **kwargs)
        if isinstance(self, cls):
            with _context.opened(_context.Together(self)):
                cls.__init__(self, *args, **kwargs)
        return self


class Metric(Module, metaclass=_CreatedTogether):
    """Base of metrics: variables that are added up over replicas, and a result made of them.

    Create it inside the strategy's scope, update it inside `run`, read the result outside. On
    parameter servers, all variables of a metric are on one, in one piece.

    >>> class Count(jt.metrics.Metric):
    ...     def __init__(self):
    ...         super().__init__("count")
    ...         self.seen = self.add_weight("seen")
    ...
    ...     def update_state(self, values):
    ...         self.seen.assign_add(len(values))
    ...
    ...     def result(self):
    ...         return self.seen.value()
    >>> float(Count()(jnp.ones(5)))
    5.0

    Args:
      name: the name; by default that of the class, in lower case.
      dtype: the type to count in.
    """

    def __init__(self, name: str | None = None, dtype: Any = jnp.float32) -> None:
        super().__init__(name)
        self.dtype = jnp.dtype(dtype)

    def add_weight(self, name: str, shape: tuple[int, ...] = ()) -> Variable:
        """Create a variable that starts at zero and is added up over replicas."""
        with _context.opened(_context.Together(self)):
            return Variable(
                jnp.zeros(shape, self.dtype),
                name=f"{self.name}/{name}",
                trainable=False,
                synchronization=VariableSynchronization.ON_READ,
                aggregation=VariableAggregation.SUM,
            )

    def reset_state(self) -> None:
        """Start again from zero."""
        for variable in self.variables:
            variable.assign(jnp.zeros(variable.shape, variable.dtype))

    def reset_states(self) -> None:
        """Start again from zero; the older name of `reset_state`."""
        self.reset_state()

    @abstractmethod
    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Take more examples into account."""

    @abstractmethod
    def result(self) -> jax.Array:
        """Return the figure: of this replica inside `run`, of all outside."""

    def __call__(self, *args: Any, **kwargs: Any) -> jax.Array:
        """Update, and return the result so far."""
        self.update_state(*args, **kwargs)
        return self.result()


class Sum(Metric):
    """The (weighted) sum of all values.

    >>> metric = jt.metrics.Sum()
    >>> metric.update_state([1.0, 2.0, 3.0])
    >>> float(metric.result())
    6.0
    """

    def __init__(self, name: str | None = None, dtype: Any = jnp.float32) -> None:
        super().__init__(name, dtype)
        self.total = self.add_weight("total")

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Add values, each multiplied by its weight if weights are given."""
        weighted, _ = _weighted(values, sample_weight, self.dtype)
        self.total.assign_add(jnp.sum(weighted))

    def result(self) -> jax.Array:
        """Return the sum."""
        return self.total.value()


class Mean(Metric):
    """The (weighted) mean of all values; 0 before the first.

    >>> metric = jt.metrics.Mean()
    >>> metric.update_state([1.0, 3.0])
    >>> metric.update_state(8.0)
    >>> float(metric.result())
    4.0
    """

    def __init__(self, name: str | None = None, dtype: Any = jnp.float32) -> None:
        super().__init__(name, dtype)
        self.total = self.add_weight("total")
        self.count = self.add_weight("count")

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Take values into account, each with its weight if weights are given."""
        weighted, weights = _weighted(values, sample_weight, self.dtype)
        self.total.assign_add(jnp.sum(weighted))
        self.count.assign_add(jnp.sum(weights))

    def result(self) -> jax.Array:
        """Return the mean."""
        total, count = self.total.value(), self.count.value()
        return jnp.where(count == 0, jnp.zeros_like(total), total / jnp.where(count == 0, 1, count))


class Accuracy(Mean):
    """How often predictions equal labels.

    >>> metric = jt.metrics.Accuracy()
    >>> metric.update_state(y_true=[1, 2, 3, 4], y_pred=[0, 2, 3, 4])
    >>> float(metric.result())
    0.75
    """

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take predictions into account.

        Raises:
          ValueError: when labels and predictions differ in shape.
        """
        labels, predictions = asarray(y_true, "y_true"), asarray(y_pred, "y_pred")
        if labels.shape != predictions.shape:
            raise ValueError(
                f"Labels have shape {labels.shape} and predictions {predictions.shape}; they are "
                "compared one by one and must have the same. For scores of classes, pass "
                "jnp.argmax(scores, axis=-1)."
            )
        super().update_state(labels == predictions, sample_weight)


def _weighted(values: Any, sample_weight: Any, dtype: Any) -> tuple[jax.Array, jax.Array]:
    array = asarray(values, "values").astype(dtype)
    if sample_weight is None:
        return array, jnp.ones(array.shape, dtype)
    weights = jnp.asarray(sample_weight).astype(dtype)
    weights = weights.reshape(weights.shape + (1,) * (array.ndim - weights.ndim))
    weights = jnp.broadcast_to(weights, array.shape)
    return array * weights, weights
