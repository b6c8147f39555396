"""Workers that save and restore together: all succeed, or all fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .._group import Group
from ..errors import AbortedError


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
