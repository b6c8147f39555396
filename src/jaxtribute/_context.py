"""Which strategy is in force, and on which side of `run` the program is.

Each thread has one stack of open contexts: strategy scopes, replica contexts, device scopes and
variable creator scopes. They close in the reverse order of opening, which is checked.

This module knows nothing of strategies and replica contexts but the protocol below, so that
everything else may import it.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol

import jax

P = ParamSpec("P")

__all__ = [
    "experimental_set_strategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]


class ReplicaContextLike(Protocol):
    """What the lower layers need to know of a replica context."""

    @property
    def strategy(self) -> Any: ...

    @property
    def num_replicas_in_sync(self) -> int: ...

    @property
    def replica_id_in_sync_group(self) -> Any: ...

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any: ...

    def expect_sum(self, value: Any) -> None: ...

    def aggregate(self, aggregation: Any, value: Any) -> Any: ...

    def has_in_common(self, value: Any) -> bool: ...

    def merge_call(
        self, merge_fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any: ...


@dataclass(eq=False)
class Side:
    """A stretch of the program under one strategy, outside its replicas or inside one."""

    strategy: Any
    replica_context: Any = None  # None outside the replicas


@dataclass(eq=False)
class Creator:
    """An open `variable_creator_scope`."""

    create: Callable[..., Any]


@dataclass(eq=False)
class Device:
    """An open `jt.device` scope."""

    device: Any


@dataclass(eq=False)
class Together:
    """A stretch in which what is created is state of one object, and has to agree with itself."""

    owner: Any


Entry = Side | Creator | Device | Together


class _Thread(threading.local):
    def __init__(self) -> None:
        self.stack: list[Entry] = []


_thread = _Thread()
_default: list[Side] = []  # filled by the default strategy when it is made


def install_default(strategy: Any, replica_context: Any) -> None:
    """Say which strategy is in force when no other is."""
    _default[:] = [Side(strategy, replica_context)]


def current() -> Side:
    """Return the innermost side of this thread, or the default one."""
    for entry in reversed(_thread.stack):
        if isinstance(entry, Side):
            return entry
    return _default[0]


def stack() -> list[Entry]:
    """Return this thread's open contexts, outermost first."""
    return list(_thread.stack)


def adopt(entries: list[Entry]) -> None:
    """Start this thread with another thread's open contexts."""
    _thread.stack = list(entries)


def opened(entry: Entry) -> AbstractContextManager[None]:
    """Keep `entry` open, checking that what was opened inside it is closed first."""
    return _Opened(entry)


class _Opened(AbstractContextManager[None]):
    # Not a generator, which would close when it is collected: a scope entered by hand, as in a
    # notebook, stays open whether or not anybody keeps the object.

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._stacks: list[list[Entry]] = []

    def __enter__(self) -> None:
        self._stacks.append(_thread.stack)
        _thread.stack.append(self._entry)

    def __exit__(self, *exc: object) -> None:
        open_entries, entry = self._stacks.pop(), self._entry
        if open_entries and open_entries[-1] is entry:
            open_entries.pop()
            return
        if entry in open_entries:
            del open_entries[open_entries.index(entry) :]
        raise RuntimeError(
            "Variable creator, device and strategy scopes have a nesting error: one was "
            "closed while a scope opened inside it was still open. Close them in the reverse "
            "order of opening, best with `with` blocks."
        )


class _Lasting(ContextDecorator, AbstractContextManager[None]):
    """Enters what `make` returns, and keeps it until it is left."""

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self._make = make
        self._entered: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        entered = self._make()
        entered.__enter__()
        self._entered.append(entered)
        _lasting.append(self)

    def __exit__(self, *exc: Any) -> bool | None:
        _lasting.remove(self)
        return self._entered.pop().__exit__(*exc)


_lasting: list[_Lasting] = []  # those that are entered


def lasting(fn: Callable[P, Generator[None]]) -> Callable[P, _Lasting]:
    """Do as `contextlib.contextmanager`, but stay entered whether or not the object is kept."""
    make = contextmanager(fn)

    @functools.wraps(fn)
    def made(*args: P.args, **kwargs: P.kwargs) -> _Lasting:
        return _Lasting(functools.partial(make, *args, **kwargs))

    return made


def creators() -> list[Callable[..., Any]]:
    """Return the open variable creators, outermost first."""
    return [entry.create for entry in _thread.stack if isinstance(entry, Creator)]


def owners() -> list[Any]:
    """Return the objects whose state is being created, the outermost first."""
    return [entry.owner for entry in _thread.stack if isinstance(entry, Together)]


def device_in_scope() -> Any | None:
    """Return the device of the innermost `jt.device` scope, if one is open."""
    for entry in reversed(_thread.stack):
        if isinstance(entry, Device):
            return entry.device
    return None


# --- Questions -----------------------------------------------------------------------------


def get_strategy() -> Any:
    """Return the strategy in force; outside any scope, the default one.

    >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     jt.get_strategy() is strategy
    True
    >>> jt.get_strategy().num_replicas_in_sync
    1
    """
    return current().strategy


def has_strategy() -> bool:
    """Tell whether a strategy other than the default one is in force.

    >>> jt.has_strategy()
    False
    """
    return current().strategy is not _default[0].strategy


def is_in_scope() -> bool:
    """Tell whether a strategy's scope is open, be it the default one's."""
    return any(isinstance(entry, Side) for entry in _thread.stack)


def get_replica_context() -> Any | None:
    """Return the context of the replica that is running, or None outside the replicas.

    >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> ids = strategy.run(lambda: jt.get_replica_context().replica_id_in_sync_group)
    >>> strategy.reduce("SUM", ids, axis=None)
    Array(1, dtype=int32)
    """
    return current().replica_context


def in_cross_replica_context() -> bool:
    """Tell whether the program is in a strategy's scope but outside its replicas.

    >>> with jt.MirroredStrategy(["CPU:0"]).scope():
    ...     jt.in_cross_replica_context()
    True
    """
    return current().replica_context is None


# --- Entering ------------------------------------------------------------------------------


def mixing_error(current_strategy: Any, other: Any, what: str) -> RuntimeError:
    """Say that two strategies met where one is needed."""
    return RuntimeError(
        f"Mixing different strategies: {what} of {other!r} was used while {current_strategy!r} is "
        "in force. Leave the scope of the one before using the other."
    )


@contextmanager
def cross_replica(strategy: Any, what: str) -> Generator[None]:
    """Be in the cross-replica context of `strategy`, entering it when no strategy is in force.

    Raises:
      RuntimeError: inside a replica, or under another strategy.
    """
    side = current()
    if side.strategy is not strategy:
        if side.strategy is not _default[0].strategy:
            raise mixing_error(side.strategy, strategy, what)
        with opened(Side(strategy)), _noting_mesh():
            yield
        return
    if side.replica_context is not None and strategy is not _default[0].strategy:
        raise RuntimeError(
            f"{what} requires being in cross-replica context, and was called inside a replica, "
            "that is in a function given to `run`. Call it outside that function, or in a "
            "function given to `get_replica_context().merge_call`."
        )
    with _noting_mesh():
        yield


@contextmanager
def _noting_mesh() -> Generator[None]:
    try:
        yield
    except ValueError as error:
        note_mesh(error)
        raise


def note_mesh(error: ValueError) -> None:
    """Say that `jax.set_mesh` is in force, if an error may be due to that."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or "replica" in mesh.axis_names or not _MESH.search(str(error)):
        return
    note = (
        f"jax.set_mesh is in force, with the mesh {dict(mesh.shape)}. Strategies, their variables "
        "and jt.function have devices of their own, and cannot run inside another mesh. Leave the "
        "mesh before, and use it around computations of your own only."
    )
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


_MESH = re.compile("mesh|incompatible devices", re.IGNORECASE)


@contextmanager
def accessing(strategy: Any, what: str) -> Generator[None]:
    """Use a variable of `strategy` wherever the program is, but not under another strategy."""
    side = current()
    if side.strategy is strategy:
        yield
    elif side.strategy is _default[0].strategy:
        with opened(Side(strategy)), _noting_mesh():
            yield
    else:
        raise mixing_error(side.strategy, strategy, what)


@contextmanager
def outside() -> Generator[None]:
    """Be outside of every scope, for what is no part of the user's program."""
    before, _thread.stack = _thread.stack, []
    try:
        yield
    finally:
        _thread.stack = before


def experimental_set_strategy(strategy: Any | None) -> None:
    """Make `strategy` the one in force until another call, as a scope that is never closed.

    >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> jt.experimental_set_strategy(strategy)
    >>> jt.get_strategy() is strategy
    True
    >>> jt.experimental_set_strategy(None)

    Args:
      strategy: the strategy, or None to return to the default one.

    Raises:
      TypeError: when `strategy` is something else.
      RuntimeError: inside a scope or a replica.
    """
    if strategy is not None and not hasattr(strategy, "num_replicas_in_sync"):
        raise TypeError(f"Expected a strategy or None, got {strategy!r}.")
    entries = _thread.stack
    unclosed = len(entries) == 1 and isinstance(entries[0], _Unclosed)
    if entries and not unclosed:
        raise RuntimeError(
            "Must not be called inside a strategy's scope or a replica: "
            "experimental_set_strategy(...) sets the strategy of the whole program."
        )
    entries.clear()
    if strategy is not None and strategy is not _default[0].strategy:
        entries.append(_Unclosed(strategy))


class DefaultScope(Side):
    """The side made by entering the default strategy's own scope, which changes nothing."""


def check_may_create_variable() -> None:
    """Refuse variables of a strategy inside the default strategy's scope.

    Raises:
      RuntimeError: when both are open.
    """
    if has_strategy() and any(isinstance(entry, DefaultScope) for entry in _thread.stack):
        raise mixing_error(_default[0].strategy, current().strategy, "the scope")


class _Unclosed(Side):
    """The side made by `experimental_set_strategy`."""
