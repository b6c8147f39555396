"""Which worker runs the code of this thread."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["experimental_get_current_worker_index"]


class _Thread(threading.local):
    index: int | None = None


_thread = _Thread()


@contextmanager
def running_on(worker: int) -> Generator[None]:
    """Let the code of this thread know which worker it runs on."""
    before = _thread.index
    _thread.index = worker
    try:
        yield
    finally:
        _thread.index = before


def experimental_get_current_worker_index() -> int:
    """Return the index of the worker that runs this code.

    For scheduled functions, and for those that make something on each worker, such as a dataset:

    >>> def dataset_fn():
    ...     worker = jt.experimental.coordinator.experimental_get_current_worker_index()
    ...     return jt.data.Dataset.range(10).shard(5, worker)

    Raises:
      RuntimeError: when called elsewhere.
    """
    if _thread.index is None:
        raise RuntimeError(
            "experimental_get_current_worker_index() was called where no worker runs. Call it in a "
            "function given to `schedule`, `create_per_worker_dataset` or "
            "`create_per_worker_values`, which workers run."
        )
    return _thread.index
