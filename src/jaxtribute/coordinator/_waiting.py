"""Waits of the coordinator that can be interrupted, and say what they wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .._limits import say

__all__ = ["wait_until"]

_FIRST_NOTICE = 10.0
_LONGEST_PAUSE = 300.0
_STEP = 1.0


def wait_until(
    changed: threading.Condition,
    is_over: Callable[[], bool],
    what: Callable[[], str],
    limit: float | None = None,
) -> bool:
    """Wait until something is so; after a while, and now and then, print what is waited for.

    Args:
      changed: held by the caller, and notified when `is_over` may have changed.
      is_over: what is waited for.
      what: says it in words.
      limit: how many seconds to wait at most.

    Returns:
      False when the limit passed.
    """
    if is_over():
        return True
    began = time.monotonic()
    notice = _FIRST_NOTICE
    while not is_over():
        waited = time.monotonic() - began
        if limit is not None and waited >= limit:
            return False
        if waited >= notice:
            say(f"still waiting after {waited:.0f} s for {what()}.")
            notice = waited + min(3 * waited, _LONGEST_PAUSE)
        left = _STEP if limit is None else min(_STEP, limit - waited)
        changed.wait(max(0.0, left))
    return True
