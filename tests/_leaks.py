"""What a test must not leave behind.

Each check is a context manager around one test. Apart from threads, which cannot be stopped from
outside, and open scopes, a leak is also cleaned up, so that only the guilty test fails.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

import jaxtribute as jt

GRACE_SECONDS = 10.0
"""How long something that is already ending may take to end, on a busy machine."""

# pytest's own, and those that a library writes when it is first imported.
_IGNORED_VARIABLES = {
    "CRC32C_SW_MODE",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "PYTEST_CURRENT_TEST",
}

# Helpers of `multiprocessing`: they serve the whole session once something has needed them.
_IGNORED_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


@contextmanager
def no_new_threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + GRACE_SECONDS
    new = [t for t in threading.enumerate() if t not in before and not _is_a_librarys(t)]
    for thread in new:
        thread.join(max(0.0, deadline - time.monotonic()))
    if left := [thread.name for thread in new if thread.is_alive()]:
        pytest.fail(f"The test left threads running: {left}.", pytrace=False)


def _is_a_librarys(thread: threading.Thread) -> bool:
    """Tell whether a thread serves the whole session once something has needed it."""
    # "Dummy" threads are XLA's own, seen by Python because they once ran a callback; the other one
    # is pyzmq's, which frees what was sent without copying.
    return thread.name.startswith("Dummy-") or type(thread).__name__ == "GarbageCollectorThread"


@contextmanager
def no_new_processes() -> Iterator[None]:
    before = set(_children())
    yield
    new = [process for process in _children() if process not in before]
    _, left = psutil.wait_procs(new, timeout=GRACE_SECONDS)
    if left:
        described = [str(process) for process in left]
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=GRACE_SECONDS)
        pytest.fail(f"The test left processes running: {described}.", pytrace=False)


@contextmanager
def no_environment_changes() -> Iterator[None]:
    before = _environment()
    yield
    after = _environment()
    changed = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
    if changed:
        for name in changed:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]
        pytest.fail(f"The test left environment variables changed: {changed}.", pytrace=False)


@contextmanager
def no_open_strategy_scope() -> Iterator[None]:
    open_before = jt.has_strategy()
    yield
    if jt.has_strategy() and not open_before:
        pytest.fail("The test left a strategy scope open.", pytrace=False)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _IGNORED_VARIABLES}


def _children() -> list[psutil.Process]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # there are none, which is known without a look at all processes
        return []
    return [child for child in psutil.Process().children(recursive=True) if not _ignored(child)]


def _ignored(process: psutil.Process) -> bool:
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:  # it ended meanwhile
        return True
    return any(name in command for name in _IGNORED_PROCESSES)
