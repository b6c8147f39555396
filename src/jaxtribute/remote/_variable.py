"""Variables whose values live on a parameter server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .. import _context
from .._jax_compat import is_tracing
from .._reduce import VariableAggregation, VariableSynchronization
from ..rpc import owned
from ..values import DistributedValues, IndexedSlices, Mirrored, PerReplica
from ..variables import Variable, _checks, _frames
from ..variables._base import Combine, describe, replace
from ..variables._convert import matching
from ..variables._effects import Effect
from . import _current

if TYPE_CHECKING:
    from ._session import Session

__all__ = ["RemoteVariable"]


class Slot(NamedTuple):
    """What a part of the state of an optimizer is."""

    optimizer: int
    owner: int  # the number of the variable
    leaf: int


@dataclass(frozen=True)
class Described:
    """All there is to know of a variable but its value."""

    number: int
    task: int  # the index of the parameter server
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    trainable: bool
    synchronization: VariableSynchronization
    aggregation: VariableAggregation
    slot: Slot | None = None

    @property
    def nbytes(self) -> int:
        """How large the value is."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class RemoteVariable(Variable):
    """A variable whose value lives on a parameter server.

    Made by `jt.Variable` in the scope of a `ParameterServerStrategy`. Reading it asks the server.
    An assignment is sent as what is to be done, so that `assign_add` of several workers at the
    same time loses nothing. Sent to a worker as part of a function, it stays the same variable.
    """

    def __init__(self, described: Described, session: Session) -> None:
        # Not the base's, which keeps the value here.
        self.described = described
        self.session = session
        self._name = described.name
        self._shape = described.shape
        self._dtype = described.dtype
        self._trainable = described.trainable
        self._synchronization = described.synchronization
        self._aggregation = described.aggregation

    # --- What it is ------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """How servers know it."""
        return self.described.number

    @property
    def slot(self) -> Slot | None:
        """Which part of the state of an optimizer it is, if it is one."""
        return self.described.slot

    @property
    def copies(self) -> Sequence[RemoteVariable]:
        """The variables of servers that all have this value; itself, as a rule."""
        return [self]

    @property
    def is_remote(self) -> bool:
        return True

    @property
    def device(self) -> str:
        """The name of the parameter server that holds the value."""
        return f"/job:ps/replica:0/task:{self.described.task}/device:CPU:0"

    @property
    def distribute_strategy(self) -> Any:
        return self.session.strategy

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return self._shape

    def first_device(self) -> jax.Device:
        return jax.local_devices()[0]  # where it is when it has been read

    # --- Reading ---------------------------------------------------------------------------

    def value(self) -> jax.Array:
        with _context.accessing(self.distribute_strategy, f"the variable {self.name!r}"):
            return self._read(_frames.current())

    def numpy(self) -> np.ndarray[Any, Any]:
        frame = _frames.current()
        if frame is _frames.STORAGE and not frame.effects and not is_tracing():
            return owned(self.session.read([self])[0])
        return super().numpy()

    def load(self) -> jax.Array:
        return self.share()

    def share(self) -> jax.Array:
        return jax.device_put(self.session.read([self])[0])

    def share_all(self, variables: Sequence[Any]) -> list[Any]:
        return list(self.session.read(variables))

    def component_data(self, index: int) -> jax.Array:
        return self.share()

    def read_in_foreign_trace(self, on_all_devices: bool = False) -> Any:
        """Return the value inside a `jax.jit` or the like, which reads it whenever it runs."""
        kind = jax.ShapeDtypeStruct(self.shape, self.dtype)
        return jax.pure_callback(lambda: self.session.read([self])[0], kind)

    def fetch(self, ids: Any, of: Any = None) -> Any:
        """Return some rows, also where `ids` is known only when the program runs.

        Args:
          ids: of the rows.
          of: the table that they are rows of, if this is only the first of its parts.
        """
        table = self if of is None else of
        if not isinstance(ids, Tracer):
            return jnp.asarray(self.fetch_all([(table, np.asarray(ids))])[0])
        kind = jax.ShapeDtypeStruct((*ids.shape, *table.shape[1:]), table.dtype)
        is_guarded = _frames.current().is_guarded

        def fetch(ids: Any) -> Any:
            try:
                return self.fetch_all([(table, np.asarray(ids))])[0]
            except Exception as error:
                if not is_guarded:  # then JAX keeps only its text
                    self.session.failures.append(error)
                raise

        return jax.pure_callback(fetch, kind, ids)

    def fetch_all(self, lookups: Sequence[tuple[Any, np.ndarray[Any, Any]]]) -> list[Any]:
        """Return rows of several tables."""
        return self.session.gather([(table.name, shards_of(table), ids) for table, ids in lookups])

    # --- Writing ---------------------------------------------------------------------------

    def _update(self, combine: Combine, value: Any) -> Any:
        kind = "assign" if combine is replace else combine.__name__.strip("_")
        return self._record(_KINDS[kind], value)

    def _scatter(self, kind: str, sparse_delta: IndexedSlices) -> Any:
        rows = _checks.checked_rows(self, sparse_delta)
        if kind == "div":
            _checks.check_divisors(self, rows.values)
        return self._record(f"scatter_{kind}", rows)

    def _record(self, kind: str, value: Any) -> Any:
        with _context.accessing(self.distribute_strategy, f"the variable {self.name!r}"):
            context = _context.get_replica_context()
            if context is not None and isinstance(value, PerReplica):
                topology = self.distribute_strategy.topology
                value = value.component(context.replica_id_in_sync_group, topology)
            if context is not None and context.num_replicas_in_sync > 1:
                value = self._aggregated(context, value)
            elif isinstance(value, Mirrored):
                value = value.component(0)
            elif isinstance(value, DistributedValues):
                raise ValueError(
                    f"The variable {self.name!r} has one value, on a parameter server, and cannot "
                    f"be assigned {value!r}, which has one for each replica. Combine them first, "
                    "with strategy.reduce."
                )
            _frames.current().record([self._effect(kind, value)])
        return self

    def _aggregated(self, context: _context.ReplicaContextLike, value: Any) -> Any:
        if self.aggregation is VariableAggregation.NONE:
            raise ValueError(
                f"You must specify an aggregation method to update the variable {self.name!r} "
                f"inside `run` with {context.num_replicas_in_sync} replicas on each worker: it "
                "does not say how what they assign is to be combined. Create it with aggregation="
                "jt.VariableAggregation.SUM, MEAN or ONLY_FIRST_REPLICA."
            )
        return context.aggregate(self.aggregation, value)

    def _effect(self, kind: str, value: Any) -> Effect:
        fitting = matching(self, value)
        if isinstance(fitting, IndexedSlices):
            return Effect(self, kind, (fitting.values, jnp.asarray(fitting.indices)))
        return Effect(self, kind, (fitting,))

    def assign_synchronized(self, value: Any) -> None:
        _frames.current().record([self._effect("assign", value)])

    def store(self, data: Any, shared: bool = False) -> None:
        self.carry_out([self._effect("assign", data)])

    def carry_out(self, effects: Sequence[Effect]) -> None:
        self.session.update(effects)

    # --- Python's protocols ----------------------------------------------------------------

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        strategy = self.distribute_strategy
        with _context.accessing(strategy, f"a copy of the variable {self.name!r}"):
            duplicate = strategy.create_beside(self, self.numpy())
        memo[id(self)] = duplicate
        return duplicate

    def __reduce__(self) -> tuple[Any, ...]:
        _frames.current()  # it is about to be used by a worker: a value that waits for it comes now
        return _arrived, (self.described,)

    def __repr__(self) -> str:
        if self.size <= _SHOWN and not _frames.current().in_program:
            return describe(self, self.name, self.value())
        text = f"<jt.Variable '{self.name}:0' shape={self.shape} dtype={self.dtype}"
        return f"{text}, on ps:{self.described.task}>"


_SHOWN = 1000  # elements; more are not fetched to be printed
_KINDS = {"assign": "assign", "add": "add", "subtract": "sub"}


def shards_of(table: Any) -> Sequence[RemoteVariable]:
    """Return the variables that hold the rows of a table, in order."""
    return table.variables if hasattr(table, "variables") else (table,)


def _arrived(described: Described) -> RemoteVariable:
    """Return a variable that was sent here, as the session of this process has it."""
    return _current.session(f"the variable {described.name!r}").variable(described)
