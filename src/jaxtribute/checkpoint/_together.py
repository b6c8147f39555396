"""Workers that save and restore together: all succeed, or all fail."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

from .. import _context
from .._group import ALONE, Group
from .._jax_compat import is_tracing
from ..errors import AbortedError


def refuse_inside(what: str, done: str) -> None:
    """Refuse to save or restore where a program is being traced, or in one of several replicas.

    Args:
      what: what is saved, such as "A checkpoint".
      done: what happens to it, such as "saved".

    Raises:
      RuntimeError: there.
    """
    if is_tracing():
        raise RuntimeError(
            f"{what} cannot be {done} inside a compiled function, which has no values while it is "
            "traced. Do it between calls of the function."
        )
    if _context.has_strategy() and _context.get_replica_context() is not None:
        raise RuntimeError(
            f"{what} cannot be {done} inside a replica: it is about all of them. Do it outside of "
            "the function given to `run`."
        )


def group_of(variables: Iterable[Any]) -> Group:
    """Return the workers that have variables in common."""
    strategies = [variable.distribute_strategy for variable in variables]
    if _context.has_strategy():
        strategies.append(_context.get_strategy())
    groups = [strategy.topology.group for strategy in strategies if strategy is not None]
    return max(groups, key=lambda group: len(group.tasks), default=ALONE)


def together(group: Group, what: str, work: Callable[[], Any]) -> list[Any]:
    """Do something on each worker, and return what came out on all of them, by worker.

    Args:
      group: the workers.
      what: what is done, as in "worker:0 could not `what`"; the same on all workers.
      work: returns something that can be written as JSON.

    Raises:
      Exception: what `work` raised here.
      AbortedError: when it failed on another worker.
    """
    error: Exception | None = None
    result: Any = None
    try:
        result = work()
    except Exception as raised:
        error = raised
    failure = None if error is None else f"{type(error).__name__}: {error}"
    sent = json.dumps({"failure": failure, "result": result})
    reports = [json.loads(text) for text in group.agree(what, sent)]
    if error is not None:
        raise error
    for task, report in zip(group.tasks, reports, strict=True):
        if report["failure"] is not None:
            raise AbortedError(
                f"{task} could not {what}, so no worker goes on: {report['failure']}"
            )
    return [report["result"] for report in reports]


def make_own_directory(own: str, chiefs: str) -> None:
    """Make the directory that a worker was told to save to, if the chief was told another one.

    Nothing is written there. But programs for the reference have all workers save, and all but the
    chief remove their directory afterwards.
    """
    own = os.path.abspath(own)
    if own != os.path.abspath(chiefs):
        os.makedirs(own, exist_ok=True)
