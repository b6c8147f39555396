"""Where variables are read and written.

Outside of everything a variable is read from, and written to, its own storage. While a function
is traced, a replica runs or a gradient is taken, a `Frame` stands in between: it hands out what
the variable is worth there, and keeps what is written until whoever opened the frame stores it.
So a failing step changes nothing. Variables that live elsewhere are not written: what is to be done
to them is recorded, and passed on in the same way.

A frame's values are global (one array for all replicas; stacked for variables that differ between
them) or local (those of one replica).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from .. import _integrations
from .._ids import numbered
from .._jax_compat import (
    CannotBeInput,
    belongs_to,
    is_staging,
    is_tracing,
    is_within,
    new_input,
    on_trace,
    trace_in_progress,
)
from .._topology import REPLICA_AXIS
from ..errors import TracerLeakError
from . import _trace_caches
from ._effects import Effect, after, rows_after
from ._journal import Journal
from ._trace_caches import TraceCache

if TYPE_CHECKING:
    from .._topology import Topology
    from ._base import Variable


class TraceAgain(BaseException):
    """A function that is being traced has made what it should have had before: trace it again.

    Not an Exception, which the function might catch.
    """


class Frame:
    """What variables are worth in one stretch of the program."""

    local = False
    has_own_values = True  # other than those that functions read outside of all frames
    cache: TraceCache | None = None  # what JAX remembers while the frame is open

    def __init__(self, parent: Frame, values: Iterable[tuple[Variable, Any]] = ()) -> None:
        self.parent = parent
        self._trace = trace_in_progress()
        self._values: dict[int, Any] = {id(variable): value for variable, value in values}
        self._written: dict[int, Variable] = {}
        self.effects: list[Effect] = []
        self.started: list[tuple[Variable, Any]] = []  # created here, with what they start from

    @property
    def written(self) -> list[tuple[Variable, Any]]:
        """The variables written so far, with their values."""
        return [(variable, self._values[key]) for key, variable in self._written.items()]

    def read(self, variable: Variable) -> Any:
        """Return what `variable` is worth here."""
        key = id(variable)
        if key in self._values:
            value = self._values[key]
        else:
            with on_trace(self._trace):  # whichever trace inside asks
                value = self.load(variable)
        value = self._lent(variable, value)
        return self.with_effects(variable, value) if self.effects else value

    def _lent(self, variable: Variable, value: Any) -> Any:
        """Return a value that is read here, which JAX may remember if it traces a function."""
        if self is not current() or self.cache is None or self.here:
            return value
        is_derived = variable.topology is not None and not self.local  # one of its copies, often
        if self.effects or (is_derived and not isinstance(value, Tracer)):
            self.cache.lend_for_good(self)
            return value
        return self.cache.lend(self, value)

    def renew_cache(self) -> None:
        """Keep JAX from using what it may remember of values that the frame had before."""
        if self.cache is not None and self.cache.belongs_to(self):
            _trace_caches.release(self.cache)
            self.cache = _trace_caches.take()
            self.cache.enter()

    def keep_apart(self) -> None:
        """Keep JAX from using elsewhere what a function that is traced here has of this frame."""
        if self.cache is not None and not self.here:
            self.cache.lend_for_good(self)

    def take_own_cache(self) -> None:
        """Have JAX remember from now on what belongs to this frame elsewhere."""
        if self.cache is None:
            self.cache = _trace_caches.take()
            self.cache.enter()

    def with_effects(self, variable: Variable, value: Any) -> Any:
        """Return what a variable that was worth `value` is worth after what was recorded here."""
        return after(variable, value, self.effects, self.before)

    def before(self, variables: Sequence[Variable]) -> list[Any]:
        """Return what variables were worth before what was recorded here."""
        known = self._values
        return [known[id(v)] if id(v) in known else self.load(v) for v in variables]

    @property
    def has_effects(self) -> bool:
        """Whether anything is to be done to variables that live elsewhere."""
        return bool(self.effects) or self.parent.has_effects

    def read_all(self, variables: Sequence[Variable]) -> list[Any]:
        """Return what several variables are worth here."""
        return [self.read(variable) for variable in variables]

    def record(self, effects: Sequence[Effect]) -> None:
        """Have something done to variables that live elsewhere.

        Raises:
          TracerLeakError: inside a JAX transformation that the frame knows nothing of.
        """
        if effects and not self.here:
            raise leak_error(effects[0].variable)
        self.effects += effects
        self.renew_cache()

    def lookup(self, table: Any, ids: Any, nested: bool = False) -> Any:
        """Return rows of a table, which need not be read as a whole.

        Args:
          table: a variable, or a `ShardedVariable`.
          ids: which rows; one axis.
          nested: whether a trace was opened inside this frame that it knows nothing of.
        """
        if not table.is_remote:
            return table.take(self, ids)
        rows = self.fetch(table, ids, nested)
        if not self.effects:
            return rows
        self.keep_apart()
        return self._rows_with_effects(table, ids, rows, nested)

    def fetch(self, table: Any, ids: Any, nested: bool) -> Any:
        """Return rows of a table that lives elsewhere, before what was recorded here."""
        return self.parent.lookup(table, ids, nested or not self.here)

    def _rows_with_effects(self, table: Any, ids: Any, rows: Any, nested: bool) -> Any:
        start = 0
        for shard in getattr(table, "variables", (table,)):
            size = shard.shape[0]
            inside = (ids >= start) & (ids < start + size)
            own = rows_after(
                shard,
                jnp.where(inside, ids - start, size),
                rows,
                self.effects,
                self.before,
                lambda table, ids: self.fetch(table, ids, nested),
            )
            if own is not rows:
                rows = jnp.where(inside.reshape(-1, *(1,) * (rows.ndim - 1)), own, rows)
            start += size
        return rows

    def write(self, variable: Variable, value: Any) -> None:
        """Make `variable` worth `value` from here on.

        Raises:
          TracerLeakError: inside a JAX transformation that the frame knows nothing of.
        """
        if not self.here:
            raise leak_error(variable)
        self._values[id(variable)] = value
        self._written[id(variable)] = variable
        self.renew_cache()

    def keeper_of(self, value: Any) -> Frame | None:
        """Return the frame in whose program a tracer is known, if variables can start from it."""
        return self.parent.keeper_of(value)

    def start(self, variable: Variable, value: Any) -> None:
        """Have a variable that was just created start from a value that a program computes."""
        self._values[id(variable)] = value
        self.started.append((variable, value))

    def on_own_trace(self) -> AbstractContextManager[Any]:
        """Have operations become part of the trace that the frame was opened in."""
        return on_trace(self._trace)

    def was_created(self, variable: Any) -> None:
        """Take note of a variable that came into being here."""
        self.parent.was_created(variable)

    def trace_again(self, at_once: bool) -> None:
        """Have the function traced once more that is being traced, if one is.

        Args:
          at_once: do not wait for its end.
        """
        self.parent.trace_again(at_once)

    @property
    def here(self) -> bool:
        """Whether the program is in no further trace since the frame was opened."""
        return trace_in_progress() is self._trace

    def load(self, variable: Variable) -> Any:
        """Return what a variable not met before is worth here."""
        return self.parent.read(variable)

    def replaced(self) -> list[Variable]:
        """Return the variables whose values are tracers of a trace inside the program's own."""
        return self.parent.replaced()

    @property
    def in_program(self) -> bool:
        """Whether a program is being traced of which variables are inputs."""
        return self.parent.in_program

    @property
    def combined(self) -> bool:
        """Whether variables that differ between replicas are worth their combined value here."""
        return self.parent.combined

    def read_for_replicas(self, variable: Variable) -> Any:
        """Return what `variable` is worth here, to be used on all devices."""
        key = id(variable)
        known = key in self._values
        value = self._values[key] if known else self.parent.read_for_replicas(variable)
        return self.with_effects(variable, value) if self.effects else value

    def miss(self, variable: Variable) -> None:
        """Take note that replicas use a variable of which each should have been given its part."""
        self.parent.miss(variable)

    def touch(self, topology: Topology) -> None:
        """Take note of the devices in use."""
        self.parent.touch(topology)

    def limit(self, seconds: float | None) -> None:
        """Take note of how long other workers may keep the program waiting."""
        self.parent.limit(seconds)

    @property
    def is_guarded(self) -> bool:
        """Whether what callbacks of the program raise is raised by whoever runs it."""
        return self.parent.is_guarded


class _Storage(Frame):
    """The outermost frame: the variables' own storage."""

    def __init__(self) -> None:
        pass

    @property
    def effects(self) -> list[Effect]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return [] if _thread.journal is None else _thread.journal.effects

    def read(self, variable: Variable) -> Any:
        if not is_staging():
            value = variable.share()
            return self.with_effects(variable, value) if self.effects else value
        value = variable.read_in_foreign_trace()
        if self.effects and self.with_effects(variable, value) is not value:
            raise TracerLeakError(
                f"The variable {variable.name!r}, which is on parameter servers, was changed in "
                "this step and is read inside a JAX transformation (jax.jit, jax.lax.scan ...), "
                "which would keep that value for other steps. Compile the step with jt.function, "
                "or read the variable outside and pass the transformed function its value."
            )
        return value

    def read_all(self, variables: Sequence[Variable]) -> list[Any]:
        if not variables or self.effects or is_staging():
            return super().read_all(variables)
        return variables[0].share_all(variables)

    def record(self, effects: Sequence[Effect]) -> None:
        if effects and is_tracing():
            raise leak_error(effects[0].variable)
        if _thread.journal is not None:
            _thread.journal.effects += effects
        elif effects:
            effects[0].variable.carry_out(effects)

    def fetch(self, table: Any, ids: Any, nested: bool) -> Any:
        return table.fetch(ids)

    def before(self, variables: Sequence[Variable]) -> list[Any]:
        return [v.read_in_foreign_trace() if is_staging() else v.share() for v in variables]

    @property
    def has_effects(self) -> bool:
        return bool(self.effects)

    def read_for_replicas(self, variable: Variable) -> Any:
        if is_staging():
            return variable.read_in_foreign_trace(on_all_devices=True)
        return variable.share()

    def write(self, variable: Variable, value: Any) -> None:
        if is_tracing():
            raise leak_error(variable)
        if _thread.journal is not None:
            _thread.journal.note(variable)
        variable.store(value, shared=True)

    def replaced(self) -> list[Variable]:
        return []

    def miss(self, variable: Variable) -> None:
        pass

    def keeper_of(self, value: Any) -> Frame | None:
        return None

    def was_created(self, variable: Any) -> None:
        pass

    def trace_again(self, at_once: bool) -> None:
        pass

    @property
    def in_program(self) -> bool:
        return False

    @property
    def combined(self) -> bool:
        return False

    @property
    def here(self) -> bool:
        return not is_tracing()

    def touch(self, topology: Topology) -> None:
        pass

    def limit(self, seconds: float | None) -> None:
        pass

    @property
    def is_guarded(self) -> bool:
        return False


class Rows:
    """Rows of a table that lives elsewhere, as an input of a program."""

    def __init__(self, table: Any) -> None:
        self.table = table


class LiftingFrame(Frame):
    """Variables as inputs of a program that is being traced.

    They become inputs when they are first used, wherever that is: the tracer of an input belongs to
    the program's own trace, also if a trace inside it asks.
    """

    def __init__(self) -> None:
        super().__init__(STORAGE)
        self.sources: list[Any] = []  # of the inputs that turned up: variables, `Rows`, elements
        self.is_preliminary = False  # and the function has to be traced again
        self.topologies: dict[int, Topology] = {}
        self.time_limit: float | None = None  # seconds

    def new_input(self, source: Any, shape: Sequence[int], dtype: Any) -> Any:
        """Return a tracer of the program for what turned out to be an input of it."""
        with on_trace(self._trace):
            tracer = new_input(len(self.sources), shape, dtype)
        self.sources.append(source)
        return tracer

    def load(self, variable: Variable) -> Any:
        try:
            value = self.new_input(variable, variable.stored_shape, variable.dtype)
        except CannotBeInput:  # such as for the initial value of another variable
            return variable.share()
        self._values[id(variable)] = value
        return value

    def read_for_replicas(self, variable: Variable) -> Any:
        return self.read(variable)

    def fetch(self, table: Any, ids: Any, nested: bool) -> Any:
        if nested:
            return super().fetch(table, ids, nested)
        # Fetched before the program runs: asking for them while it runs costs more.
        shape = (*ids.shape, *table.shape[1:])
        rows = new_input(len(self.sources), shape, table.dtype, jax.lax.stop_gradient(ids))
        self.sources.append(Rows(table))
        return rows

    def replaced(self) -> list[Variable]:
        return []

    @property
    def in_program(self) -> bool:
        return True

    def miss(self, variable: Variable) -> None:
        self.is_preliminary = True

    def keeper_of(self, value: Any) -> Frame | None:
        return self if belongs_to(value, self._trace) else None

    def trace_again(self, at_once: bool) -> None:
        self.is_preliminary = True
        if at_once:
            raise TraceAgain

    def as_far_as_possible(self, call: Callable[[], Any]) -> Any:
        """Call a function, or the part of it before it asked to be traced again at once."""
        try:
            return call()
        except TraceAgain:
            return ()

    def touch(self, topology: Topology) -> None:
        self.topologies[id(topology)] = topology

    def limit(self, seconds: float | None) -> None:
        if seconds is not None:
            self.time_limit = min(seconds, self.time_limit or seconds)

    @property
    def is_guarded(self) -> bool:
        return True


class SpmdFrame(Frame):
    """Variables inside a compiled `run`: those of the replica on each device.

    Args:
      parent: the frame around.
      values: those that each replica was given.
      outside: the trace in which `run` was called.
    """

    local = True

    def __init__(self, parent: Frame, values: Iterable[tuple[Variable, Any]], outside: Any) -> None:
        super().__init__(parent, values)
        self._outside = outside

    def keeper_of(self, value: Any) -> Frame | None:
        if belongs_to(value, self._trace):
            return self if self.in_program else None
        return self.parent.keeper_of(value)

    def start(self, variable: Variable, value: Any) -> None:
        with self.on_own_trace():  # all start from what the first replica has
            value = jax.lax.all_gather(value, REPLICA_AXIS)[0]
        super().start(variable, value)

    def lookup(self, table: Any, ids: Any, nested: bool = False) -> Any:
        return super().lookup(table, ids, nested=True)  # each replica has ids of its own

    def load(self, variable: Variable) -> Any:
        with on_trace(self._outside):
            value = self.parent.read_for_replicas(variable)
        if variable.differs_between_replicas:
            # Each replica holds all of it now, so it had better be given its part.
            self.miss(variable)
            return value[jax.lax.axis_index(REPLICA_AXIS)]
        self._values[id(variable)] = value
        return value


class EagerReplicaFrame(Frame):
    """Variables inside an eager `run`: the copies on one replica's device."""

    local = True

    def __init__(self, index: int, outer: Frame | None = None) -> None:
        super().__init__(STORAGE)
        self._index = index  # among the replicas of this process
        self._outer = outer or STORAGE

    def load(self, variable: Variable) -> Any:
        if variable.is_remote:
            return self._outer.read(variable)
        variable.share()
        return variable.component_data(self._index)

    def fetch(self, table: Any, ids: Any, nested: bool) -> Any:
        return self._outer.lookup(table, ids, nested or not self.here)

    @property
    def has_effects(self) -> bool:
        return bool(self.effects) or self._outer.has_effects

    def clear(self) -> None:
        """Forget everything, once it has been stored."""
        self._values.clear()
        self._written.clear()
        self.effects.clear()


class GradientFrame(Frame):
    """Variables while a gradient is taken: those differentiated by are replaced by tracers."""

    def __init__(self, parent: Frame, values: Iterable[tuple[Variable, Any]]) -> None:
        values = list(values)
        super().__init__(parent, values)
        self.local = parent.local  # pyright: ignore[reportIncompatibleVariableOverride]
        self._replaced = {id(variable): variable for variable, _ in values}

    def read(self, variable: Variable) -> Any:
        key = id(variable)
        if (key in self._replaced or key in self._written) and not is_within(self._trace):
            raise TracerLeakError(
                f"The variable {variable.name!r} was read inside a jax.custom_vjp or "
                "jax.custom_jvp function, in a function whose gradient is taken with respect to "
                "it, or that has assigned it. JAX differentiates such functions by their arguments "
                "only, and the gradient would be wrong. Pass the variable to it as an argument."
            )
        return super().read(variable)

    def replaced(self) -> list[Variable]:
        own = self._replaced | self._written
        return [*own.values(), *(v for v in self.parent.replaced() if id(v) not in own)]


STORAGE = _Storage()


def start(variable: Variable, value: Any) -> None:
    """Have a variable that was just created start from a value that a program computes.

    Args:
      variable: the variable.
      value: what all its copies start from, or, of one that differs between replicas, each its own.
    """
    value = jax.lax.stop_gradient(value)
    frame = current().keeper_of(value)
    assert frame is not None  # as was checked before the variable was created
    with frame.on_own_trace():
        if variable.differs_between_replicas and not frame.local:
            value = jnp.broadcast_to(value, variable.stored_shape)
    frame.start(variable, value)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.journal: Journal | None = None


_thread = _Thread()


def opened_here() -> list[Frame]:
    """Return the frames of this thread, the innermost last."""
    return _thread.frames


def is_journaling() -> bool:
    """Tell whether what is stored in this thread is put back, should an exception pass."""
    return _thread.journal is not None and not is_tracing()


def note(variable: Variable) -> None:
    """Remember a variable that is about to be stored otherwise than through a frame."""
    if _thread.journal is not None:
        _thread.journal.note(variable)


# Called before anything is read or written, while values of a checkpoint wait for what they are of.
before_access: Callable[[], None] | None = None


def current() -> Frame:
    """Return the innermost frame of this thread."""
    if before_access is not None:
        before_access()
    return _thread.frames[-1] if _thread.frames else STORAGE


def is_outermost() -> bool:
    """Tell whether what is written here is stored at once, and stays."""
    return not _thread.frames and _thread.journal is None


def lookup(table: Any, ids: Any) -> Any:
    """Return rows of a table, a variable or a `ShardedVariable`, as they are worth here."""
    frame = current()
    return frame.lookup(table, numbered(ids), nested=not frame.here)


@contextmanager
def opened(frame: Frame) -> Generator[Frame]:
    """Read and write variables through `frame`."""
    _integrations.load()
    outer = current()
    if frame.has_own_values:
        frame.cache = _trace_caches.take(outer.cache)
    _thread.frames.append(frame)
    try:
        with _trace_caches.entered(frame.cache):
            yield frame
    finally:
        _thread.frames.pop()
        if frame.cache is not None:
            _trace_caches.release(frame.cache)
            frame.cache = None
        if outer.cache is not None and not outer.cache.belongs_to(outer):
            _trace_caches.release(outer.cache)
            outer.cache = _trace_caches.take(outer.cache)
            outer.cache.enter()


@contextmanager
def all_or_nothing() -> Generator[Journal]:
    """Put back everything that is stored in this thread, should an exception pass."""
    outer, journal = _thread.journal, Journal()
    recorded = current().effects
    count = len(recorded)
    _thread.journal = journal
    try:
        yield journal
    except BaseException:
        journal.undo()
        del recorded[count:]
        raise
    finally:
        _thread.journal = outer
    if journal.effects:
        STORAGE.record(journal.effects)


@contextmanager
def sharing(journal: Journal | None) -> Generator[None]:
    """Have this thread take part in what another one does as a whole."""
    before, _thread.journal = _thread.journal, journal
    try:
        yield
    finally:
        _thread.journal = before


def leak_error(variable: Variable) -> TracerLeakError:
    """Say that a variable was written where its new value could not outlive the trace."""
    return TracerLeakError(
        f"The variable {variable.name!r} was assigned inside a JAX transformation (jax.jit, "
        "jax.grad, jax.vmap, jax.lax.scan, jax.lax.cond, jax.checkpoint ...) that began inside the "
        "step or has nothing to do with jaxtribute. The new value is a tracer of that "
        "transformation and would leak out of it. Return the value from the transformed function "
        "and assign it afterwards; use jt.function for jax.jit, and jt.value_and_grad for "
        "jax.value_and_grad, which carry assignments out."
    )
