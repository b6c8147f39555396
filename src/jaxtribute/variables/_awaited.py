"""Values of a checkpoint that wait for what they belong to.

A checkpoint may be restored before all objects exist. Whoever gives an object a part calls
`attached`, and the part gets its value then. Lists and dicts tell nobody what is put into them: as
long as values wait, they are looked at before any variable is read or written. So no variable is
ever read that a checkpoint has a value for and that did not get it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

from .. import _context
from .._jax_compat import is_tracing
from . import _frames


class Restorer(Protocol):
    """Has values that wait."""

    def has_new(self) -> bool:
        """Tell, at little cost, whether something may have come that was not told of."""
        ...

    def restore_new(self) -> None:
        """Give what has come into being the values that wait for it."""
        ...

    def check_nothing_missed(self) -> None:
        """Refuse to go on with what has come into being, and did not get the values that wait.

        Raises:
          FailedPreconditionError: when there is any.
        """
        ...


class _Thread(threading.local):
    is_restoring = False


# Insertion-ordered, as all workers have to go through them in the same order.
_waiting: dict[int, tuple[weakref.ref[Restorer], int | None]] = {}
_locks: weakref.WeakKeyDictionary[Restorer, Any] = weakref.WeakKeyDictionary()
_thread = _Thread()


def wait(restorer: Restorer, in_order: bool) -> None:
    """Remember who has values that wait, as long as it is there.

    Args:
      restorer: who.
      in_order: whether it is restored by several workers together, and so in the flow of the
        program that calls this, in which all of them come by in the same order.
    """
    key = id(restorer)
    thread = threading.get_ident() if in_order else None
    _waiting[key] = weakref.ref(restorer, lambda _: _forget(key)), thread
    _frames.before_access = _before_access


def is_over(restorer: Restorer) -> None:
    """Take note that no value of somebody waits any more."""
    _forget(id(restorer))


class _KeptAlive:
    """Refers to those who have values for an object that waits, as an attribute of the object.

    So they live as long as it does, also if the program has let go of them, and no longer.
    """

    def __init__(self) -> None:
        self.restorers: dict[int, Restorer] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _KeptAlive, ()  # what is copied, or sent to a worker, does not wait


_KEPT_ALIVE = "_jaxtribute_awaited"


def keep_alive(restorer: Restorer, objects: Iterable[Any], waits: bool) -> None:
    """Have somebody live as long as one of some objects, while it has values that wait."""
    for each in objects:
        if waits:
            kept = vars(each).setdefault(_KEPT_ALIVE, _KeptAlive())
            kept.restorers[id(restorer)] = restorer
        elif _KEPT_ALIVE in vars(each):
            vars(each)[_KEPT_ALIVE].restorers.pop(id(restorer), None)


def _forget(key: int) -> None:
    _waiting.pop(key, None)
    if not _waiting:
        _frames.before_access = None


def is_waiting() -> bool:
    """Tell whether any values wait for what does not exist yet."""
    return bool(_waiting)


def attached() -> None:
    """Restore what has come into being: an object was given to another one.

    Raises:
      InvalidArgumentError: when a value does not fit what it belongs to.
    """
    if _waiting and _may_restore():
        _restore_new(lambda restorer: True)


@contextmanager
def unconcerned() -> Generator[None]:
    """Create what is no part of the user's program, as a parameter server does in a test."""
    before, _thread.is_restoring = _thread.is_restoring, True
    try:
        yield
    finally:
        _thread.is_restoring = before


@contextmanager
def too_late() -> Generator[None]:
    """Tell of what was in use before it is known here, rather than restore it.

    Raises:
      FailedPreconditionError: when values wait for it.
    """
    with unconcerned():
        yield
    for restorer in restorers():
        restorer.check_nothing_missed()


def _before_access() -> None:
    if _may_restore() and any(each.has_new() for each in restorers()):
        _restore_new(lambda restorer: restorer.has_new())


def _may_restore() -> bool:
    if _thread.is_restoring:
        return False
    # What a worker uses has been restored by the coordinator, before it was sent.
    return not getattr(_context.get_strategy(), "is_on_worker", False)


def restorers() -> list[Restorer]:
    """Return who has values that wait, and can be given them here."""
    # A replica in a thread of its own is part of the flow of the program, which waits for it.
    inside = _context.has_strategy() and _context.get_replica_context() is not None
    found = [
        reference()
        for reference, thread in list(_waiting.values())
        if inside or thread in (None, threading.get_ident())
    ]
    return [restorer for restorer in found if restorer is not None]


def _restore_new(concerned: Callable[[Restorer], bool]) -> None:
    for restorer in restorers():
        # Who comes second must not go on before it is done.
        with _locks.setdefault(restorer, threading.RLock()):
            if concerned(restorer):
                _outside(restorer.restore_new)


def _outside(restore: Callable[[], None]) -> None:
    """Restore outside of steps and replicas: what is stored must not be part of one, or be undone.

    A thread of its own knows nothing of what is traced, open or in force here.
    """

    def work() -> None:
        before, _thread.is_restoring = _thread.is_restoring, True
        try:
            restore()
        finally:
            _thread.is_restoring = before

    inside = _context.has_strategy() and _context.get_replica_context() is not None
    if _frames.is_outermost() and not inside and not is_tracing():
        work()
        return
    with ThreadPoolExecutor(1) as thread:
        thread.submit(work).result()
