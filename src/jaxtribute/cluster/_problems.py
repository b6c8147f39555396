"""What is wrong with the description of a cluster, and how it would be right.

A `Draft` is a description while it is checked. Whoever finds something wrong reports it and
corrects the draft, so that in the end one example is left in which everything is put right.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidArgumentError
from ._spec import ClusterSpec
from ._task import Task

__all__ = ["EXAMPLE", "Draft", "Problem", "raise_for"]

EXAMPLE = (
    'TF_CONFIG=\'{"cluster": {"worker": ["host0:2222", "host1:2222"]}, '
    '"task": {"type": "worker", "index": 0}}\''
)
"""A description of two workers, for when nothing of what was given can be kept."""


@dataclass(frozen=True)
class Problem:
    """Something that cannot be right."""

    part: str
    """The piece in question, as in `cluster.worker[1] = "host0:2222"`."""
    why: str
    """Why it cannot be right."""
    fix: str
    """The whole description with everything put right, as one line."""

    def __str__(self) -> str:
        return f"{self.part}: {self.why}"


def raise_for(problems: Sequence[Problem]) -> None:
    """Raise an error that prints all problems and a corrected example, if there are any.

    Raises:
      InvalidArgumentError: when there are problems.
    """
    if not problems:
        return
    lines = ["The description of the cluster cannot work."]
    for problem in problems:
        lines += [*(f"  {line}" for line in problem.part.splitlines()), f"    {problem.why}"]
    lines += ["It should look like this:", f"  {problems[0].fix}"]
    raise InvalidArgumentError("\n".join(lines))


class Draft:
    """The description of a cluster while it is checked.

    Args:
      cluster: the addresses of each job, by index.
      task_type: the job of this process.
      task_id: the index of this process.
      others: what else the description holds, to be kept in the example.
    """

    def __init__(
        self,
        cluster: Mapping[str, Mapping[int, str]],
        task_type: str | None,
        task_id: int | None,
        others: Mapping[str, Any] | None = None,
    ) -> None:
        self.cluster = {job: dict(tasks) for job, tasks in cluster.items()}
        self.task_type = task_type
        self.task_id = task_id
        self._others = dict(others or {})
        self._found: list[tuple[str, str]] = []

    def report(self, part: str, why: str) -> None:
        """Note that a piece cannot be right."""
        self._found.append((part, why))

    def tasks(self) -> Iterator[tuple[Task, str]]:
        """Yield all tasks and their addresses, in order."""
        for job, addresses in self.cluster.items():
            for index, address in sorted(addresses.items()):
                yield Task(job, index), address

    def count(self, job: str) -> int:
        """Return how many tasks a job has."""
        return len(self.cluster.get(job, {}))

    def move(self, task: Task, job: str) -> None:
        """Make a task the last one of another job; if it is this process, that moves along."""
        address = self.cluster[task.job].pop(task.index)
        to = self.cluster.setdefault(job, {})
        index = task.index if not to else max(to) + 1
        to[index] = address
        if (self.task_type, self.task_id) == (task.job, task.index):
            self.task_type, self.task_id = job, index

    def problems(self) -> list[Problem]:
        """Return what was reported, each with the corrected example."""
        fix = self._example() if self._found else ""
        return [Problem(part, why, fix) for part, why in self._found]

    def _example(self) -> str:
        cluster = ClusterSpec({job: tasks for job, tasks in self.cluster.items() if tasks})
        if not cluster:
            return EXAMPLE
        task = {"type": self.task_type, "index": self.task_id}
        config = {"cluster": cluster.as_dict(), "task": task, **self._others}
        return f"TF_CONFIG={shlex.quote(json.dumps(config))}"
