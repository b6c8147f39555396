"""What is saved of a variable, wherever its value is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from .. import ps
from .._reduce import VariableAggregation, VariableSynchronization, agreement_of
from ..errors import InvalidArgumentError
from ..remote import RemoteVariable
from ..rpc import as_array
from ..sharded import ShardedVariable
from ..variables import SyncOnReadVariable, Variable

Array = np.ndarray[Any, Any]

_AT_ONCE = 64 * 1024 * 1024  # bytes of a variable of parameter servers that are here at a time


@dataclass(frozen=True, eq=False)
class Source:
    """A variable to be saved."""

    variable: Any  # by which it is known that it is this one
    name: str
    shape: tuple[int, ...]
    dtype: Any
    trainable: bool
    synchronization: VariableSynchronization
    aggregation: VariableAggregation
    read: Callable[[], Iterator[Array]]  # its rows, in consecutive pieces
    distribute_strategy: Any = None  # the one that keeps it, if one does
    is_read_together: bool = False  # whether all workers have to take part in reading it

    def record(self) -> dict[str, Any]:
        """Return what the index says of the variable."""
        return {
            "name": self.name,
            "shape": list(self.shape),
            "dtype": str(np.dtype(self.dtype)),
            "trainable": self.trainable,
            "synchronization": self.synchronization.name,
            "aggregation": self.aggregation.name,
        }


def source_of(variable: Variable | ShardedVariable, path: str) -> Source:
    """Return what is saved of a variable.

    Raises:
      InvalidArgumentError: when its copies cannot be combined into one value.
    """
    first: Any = variable.variables[0] if isinstance(variable, ShardedVariable) else variable
    on_read = isinstance(first, SyncOnReadVariable)
    if on_read and first.aggregation is VariableAggregation.NONE:
        raise InvalidArgumentError(
            f"{path!r} cannot be saved: the variable {variable.name!r} has synchronization ON_READ "
            "and VariableAggregation.NONE, which does not say how the replicas' values are to be "
            "combined into one. Create it with SUM, MEAN or ONLY_FIRST_REPLICA."
        )
    # What each kind of strategy makes of AUTO is up to the one that loads it.
    synchronization = (
        VariableSynchronization.ON_READ
        if first.synchronization is VariableSynchronization.ON_READ
        else VariableSynchronization.AUTO
    )
    return Source(
        variable,
        variable.name,
        tuple(variable.shape),
        variable.dtype,
        variable.trainable,
        synchronization,
        first.aggregation,
        lambda: pieces(variable),
        variable.distribute_strategy,
        on_read,
    )


def foreign_source(
    variable: Any, name: str, trainable: bool, read: Callable[[], jax.Array]
) -> Source:
    """Return what is saved of a variable of another library, which no strategy keeps.

    Args:
      variable: by which it is known that it is this one.
      name: its name.
      trainable: whether it is trained.
      read: returns its value.
    """
    value = read()  # of which the type is not always the one that the library tells
    return Source(
        variable,
        name,
        tuple(value.shape),
        value.dtype,
        trainable,
        VariableSynchronization.AUTO,
        agreement_of(trainable, value.dtype),
        lambda: iter([np.asarray(read())]),
    )


def pieces(variable: Variable | ShardedVariable, at_once: int = _AT_ONCE) -> Iterator[Array]:
    """Yield the rows of a variable in order, no more of them than there is need for at a time."""
    for shard in getattr(variable, "variables", (variable,)):
        if isinstance(shard, RemoteVariable) and shard.shape and shard.size:
            yield from _spans(shard, at_once)
        else:
            yield np.asarray(shard.numpy() if shard.is_remote else shard.value())


def _spans(shard: RemoteVariable, at_once: int) -> Iterator[Array]:
    session, task = shard.session, shard.described.task
    rows = shard.shape[0]
    step = max(1, at_once // max(1, shard.described.nbytes // rows))
    for start in range(0, rows, step):
        span = ps.Span(shard.number, start, min(start + step, rows))
        replies = session.ask({task: (ps.Read(session.origin, [span]), ())}, "rows of a variable")
        reply, frames = replies[task]
        yield as_array(reply.types[0], frames[0])
