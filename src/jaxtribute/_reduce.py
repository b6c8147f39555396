"""How values and updates of several replicas are combined into one."""

from __future__ import annotations

import enum
from typing import Any

import jax.numpy as jnp

__all__ = ["ReduceOp", "VariableAggregation", "VariableSynchronization", "agreement_of"]


class ReduceOp(enum.Enum):
    """How `reduce` and `all_reduce` combine the values of the replicas.

    Everywhere an op is expected its name will do as well, in any case.

    >>> jt.ReduceOp.from_value("mean")
    <ReduceOp.MEAN: 'MEAN'>
    """

    SUM = "SUM"
    MEAN = "MEAN"

    @classmethod
    def from_value(cls, value: ReduceOp | str) -> ReduceOp:
        """Return the op that `value`, an op or its name, stands for.

        Raises:
          ValueError: when there is no such op.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and value.upper() in cls.__members__:
            return cls[value.upper()]
        raise ValueError(
            f"Unknown reduce op {value!r}. Use jt.ReduceOp.SUM or jt.ReduceOp.MEAN, "
            "or their names 'SUM' and 'MEAN'."
        )


class VariableSynchronization(enum.Enum):
    """When the copies of a variable are brought together.

    `AUTO` leaves it to the strategy, which means `ON_WRITE`; `ON_WRITE` keeps all copies equal
    at every write; `ON_READ` lets each replica write its own copy and combines them when the
    variable is read outside the replicas; `NONE` has no meaning under a strategy.
    """

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


class VariableAggregation(enum.Enum):
    """How the replicas' values are combined into a variable's one value."""

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3

    @property
    def reduce_op(self) -> ReduceOp | None:
        """The reduce op that does this aggregation, if one does."""
        return _REDUCE_OPS.get(self)


_REDUCE_OPS = {
    VariableAggregation.SUM: ReduceOp.SUM,
    VariableAggregation.MEAN: ReduceOp.MEAN,
}


def agreement_of(trainable: bool, dtype: Any) -> VariableAggregation:
    """Return how replicas agree on a variable of a library that does not say so.

    Gradients are added up before a variable is changed by them. Statistics are averaged, and
    counters count the same everywhere.
    """
    if trainable:
        return VariableAggregation.NONE
    is_statistic = jnp.issubdtype(dtype, jnp.inexact)
    return VariableAggregation.MEAN if is_statistic else VariableAggregation.ONLY_FIRST_REPLICA
