"""Results of closures, on their way to the coordinator or there already."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .. import _tree
from ..errors import CancelledError, ResourceExhaustedError
from ._results import as_jax, load_result
from ._waiting import wait_until

if TYPE_CHECKING:
    from ..rpc import Buffer

__all__ = ["RemoteValue", "Results"]

RESULT_BYTES = 1 << 30

_NOT_READY, _READY, _FAILED, _ABORTED = range(4)


class Results:
    """What all results of one coordinator share: whom to wait for, and how much they may hold.

    Args:
      changed: notified when results arrive.
      waiting_for: says in words what a result waits for.
      fetched: called when a result was fetched.
      limit: how many bytes may wait to be fetched.
    """

    def __init__(
        self,
        changed: threading.Condition,
        waiting_for: Callable[[], str],
        fetched: Callable[[], None],
        limit: int = RESULT_BYTES,
    ) -> None:
        self.changed: Final = changed
        self.waiting_for: Final = waiting_for
        self.fetched: Final = fetched
        self.limit: Final = limit
        self._used = 0
        # Results may be dropped at any moment in any thread, so this is only appended to there.
        self._released: deque[int] = deque()

    def reserve(self, size: int) -> bool:
        """Tell whether a result of this size may be kept; `changed` is held."""
        while self._released:
            self._used -= self._released.popleft()
        if self._used + size > self.limit:
            return False
        self._used += size
        return True

    def release(self, size: int) -> None:
        """Note that a result is fetched, or wanted by nobody."""
        self._released.append(size)


class RemoteValue:
    """What a scheduled function will have returned; made by `ClusterCoordinator.schedule`.

    >>> with jt.testing.LocalCluster(workers=2, ps=1) as cluster:
    ...     coordinator = cluster.coordinator()
    ...     value = coordinator.schedule(lambda: {"total": jnp.float32(1) + 2})
    ...     value.fetch()
    {'total': np.float32(3.0)}

    A result that nobody holds any more when its function is about to run is not sent at all.
    """

    __slots__ = ("__weakref__", "_error", "_frames", "_results", "_size", "_state", "_value")

    def __init__(self, results: Results) -> None:
        self._results = results
        self._state = _NOT_READY
        self._frames: Sequence[Buffer] | None = None
        self._size = 0
        self._value: Any = None
        self._error: BaseException | None = None

    def fetch(self) -> Any:
        """Wait for the result and return it, with NumPy's arrays and numbers for those of JAX.

        Raises:
          CancelledError: when it was cancelled, as another function had raised an error.
          ResourceExhaustedError: when it came while too many results waited to be fetched.
          Exception: what the function raised, with the worker's traceback as a note.
        """
        return _tree.map_leaves(_as_numpy, self._loaded())

    def get(self) -> Any:
        """Wait for the result and return it, with arrays of JAX on this process's device.

        Raises:
          Exception: as `fetch` does.
        """
        return _tree.map_leaves(as_jax, self._loaded())

    def __repr__(self) -> str:
        state = ("not ready", "ready", "failed", "aborted")[self._state]
        return f"<RemoteValue, {state}>"

    def __reduce__(self) -> Any:
        raise ValueError(
            "A RemoteValue cannot be an argument of a scheduled function, nor be captured by one: "
            "it exists on the coordinator. Pass `remote_value.fetch()`, or let one function do "
            "both steps."
        )

    def __del__(self) -> None:
        if self._size:
            self._results.release(self._size)

    # --- For the dispatcher, which holds `changed` -----------------------------------------

    def finish(self, frames: Sequence[Buffer]) -> None:
        """Take a result."""
        size = sum(memoryview(frame).nbytes for frame in frames)
        if not self._results.reserve(size):
            limit = self._results.limit
            self.fail(
                ResourceExhaustedError(
                    f"This result of {size} bytes came while others waited that would have held "
                    f"more than {limit} bytes together with it, and was dropped. Fetch results, or "
                    "drop their RemoteValues, before scheduling more; or return less."
                )
            )
            return
        self._size = size
        self._frames = frames
        self._state = _READY

    def fail(self, error: BaseException) -> None:
        """Take an error in place of a result."""
        self._error = error
        self._state = _FAILED

    def cancel(self, why: str) -> None:
        """Note that there will be no result."""
        self._error = CancelledError(why)
        self._state = _ABORTED

    # --- Inside ----------------------------------------------------------------------------

    def _loaded(self) -> Any:
        results = self._results
        if self._state == _NOT_READY:
            with results.changed:
                wait_until(results.changed, lambda: self._state != _NOT_READY, results.waiting_for)
        results.fetched()
        if self._error is not None:
            raise self._error.with_traceback(None)
        frames = self._frames
        if frames is not None:
            self._value = load_result(frames)
            self._frames = None
            size, self._size = self._size, 0
            results.release(size)
        return self._value


def _as_numpy(leaf: Any) -> Any:
    """Return what `fetch` returns for a leaf; arrays arrive as NumPy's already."""
    return leaf[()] if isinstance(leaf, np.ndarray) and not leaf.shape else leaf
