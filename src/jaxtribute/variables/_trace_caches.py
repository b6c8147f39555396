"""Keeps what JAX remembers of functions that read variables apart.

JAX traces a function given to `jit`, `scan`, `cond` and the like once, and remembers the result by
function object. If that function reads a variable, the value it read is remembered with it, and is
wrong elsewhere: in another program, inside a gradient, after an assignment. So each frame traces
under a key of its own, of which JAX's caches are told (`jax.make_user_context`).

Another key also means that everything else is traced and compiled again. So frames share a key
until one of them lends a value to a function that JAX may remember. From then on the key belongs to
that frame, until JAX has forgotten the value.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import jax
from jax.core import Tracer

if TYPE_CHECKING:
    from ._frames import Frame

_key: Callable[[int | None], AbstractContextManager[None]] = jax.make_user_context(None)


class TraceCache:
    """What JAX remembers under one key."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._owner: weakref.ref[Frame] | None = None
        self._lent: list[Callable[[], Any]] = []
        self.users = 0  # frames that are open, all in one thread

    def enter(self) -> None:
        """Have JAX use this cache until the block in which another was entered is left."""
        _key(self.number).__enter__()

    def belongs_to(self, frame: Frame) -> bool:
        """Tell whether JAX may remember values of a frame here."""
        return self._owner is not None and self._owner() is frame

    def is_clean(self) -> bool:
        """Tell whether JAX remembers no value of any frame here."""
        if self._owner is not None and all(lent() is None for lent in self._lent):
            self._owner = None
            self._lent.clear()
        return self._owner is None

    def lend(self, frame: Frame, value: Any) -> Any:
        """Return a value of a frame for a function that JAX may remember."""
        if not isinstance(value, Tracer):
            # Another array of the same memory: it lives as long as JAX remembers it.
            shards = [shard.data for shard in value.addressable_shards]
            value = jax.make_array_from_single_device_arrays(value.shape, value.sharding, shards)
        self._owner = weakref.ref(frame)
        self._lent.append(weakref.ref(value))
        return value

    def lend_for_good(self, frame: Frame) -> None:
        """Take note that JAX may remember something of a frame that cannot be watched."""
        self._owner = weakref.ref(frame)
        self._lent.append(lambda: self)


_caches: list[TraceCache] = []
_numbers = itertools.count(1)
_lock = threading.Lock()


def take(preferred: TraceCache | None = None) -> TraceCache:
    """Return a clean cache that no other thread uses, and count its new user.

    Args:
      preferred: one that this thread uses already.
    """
    with _lock:
        if preferred is None or not preferred.is_clean():
            free = (cache for cache in _caches if not cache.users and cache.is_clean())
            preferred = next(free, None)
            if preferred is None:
                preferred = TraceCache(next(_numbers))
                _caches.append(preferred)
        preferred.users += 1
        return preferred


def release(cache: TraceCache) -> None:
    """Count a user less."""
    with _lock:
        cache.users -= 1


def entered(cache: TraceCache | None) -> AbstractContextManager[None]:
    """Have JAX use a cache in a block; None stands for the one that belongs to no frame."""
    return _key(None if cache is None else cache.number)


def outside_frames() -> AbstractContextManager[None]:
    """Have JAX use the cache that belongs to no frame, as for programs that are complete."""
    return entered(None)
