"""Checks of a cluster and of this process's place in it, without asking the network."""

from __future__ import annotations

import difflib
import json
from collections.abc import Container

from ._address import Address
from ._problems import Draft, Problem, raise_for
from ._spec import ClusterSpec
from ._task import Task

__all__ = ["Problem", "check", "examine", "find_problems", "host_of"]

_JOBS = ("chief", "worker", "ps", "evaluator")
_OTHER_NAMES = {"master": "chief", "coordinator": "chief", "leader": "chief", "trainer": "worker"}
_USUAL_PORT = 2222


def check(spec: ClusterSpec, task_type: str | None, task_id: int | None) -> None:
    """Refuse a description that cannot work.

    Raises:
      InvalidArgumentError: with all that is wrong, and a corrected example.
    """
    raise_for(find_problems(spec, task_type, task_id))


def find_problems(spec: ClusterSpec, task_type: str | None, task_id: int | None) -> list[Problem]:
    """Return what cannot be right about a cluster and this process's task in it.

    A process without a task is right in a cluster of one task, and an empty cluster is right for
    a program that runs alone. An evaluator need not be part of the cluster.
    """
    return examine(Draft(spec.as_cluster_def(), task_type, task_id))


def examine(draft: Draft) -> list[Problem]:
    """Return the problems of a draft, those it has already and those found here."""
    task_type = draft.task_type
    _check_addresses(draft)
    _check_loopback(draft)
    _check_jobs(draft)
    _check_single(draft, "chief")
    _check_single(draft, "evaluator")
    if any(draft.cluster.values()):
        _check_task(draft, task_type)
    return draft.problems()


def host_of(task: Task) -> str:
    """Return a name to stand for the host of a task in an example."""
    return f"host-of-{task.job}-{task.index}".lower()


def _check_addresses(draft: Draft) -> None:
    """Each is a host and a port, and no two tasks that listen have the same."""
    owners: dict[tuple[str, int], Task] = {}
    for task, text in draft.tasks():
        as_given = True
        try:
            address = Address.parse(text)
        except ValueError as error:
            why = f"An address is a host and a port, as in 'host0:2222', and here {error}."
            draft.report(_part(task, text), why)
            address, as_given = _corrected(task, text), False
        key = _key(address)
        if task.job != "evaluator" and key in owners:
            if as_given:
                why = (
                    f"cluster.{owners[key].job}[{owners[key].index}] has the same address. Each "
                    "task listens on its own: give them different hosts or ports."
                )
                draft.report(_part(task, text), why)
            address = _next_free(address, owners)
            key = _key(address)
        if task.job != "evaluator":  # which listens nowhere
            owners[key] = task
        draft.cluster[task.job][task.index] = str(address)


def _check_loopback(draft: Draft) -> None:
    """An address that means another machine on each machine does not go with those that do not."""
    listening = {t: Address.parse(a) for t, a in draft.tasks() if t.job != "evaluator"}
    remote = [str(address) for address in listening.values() if not address.is_loopback]
    if not remote:
        return
    taken = {_key(address) for address in listening.values()}
    for task, address in listening.items():
        if address.is_loopback:
            why = (
                f"{address.host} means each machine itself, so that tasks elsewhere, such as the "
                f"one at {remote[0]}, cannot reach it. Write the name or the number under which "
                f"the others know the machine of {task}."
            )
            draft.report(_part(task, str(address)), why)
            better = _next_free(Address(host_of(task), address.port), taken)
            taken.add(_key(better))
            draft.cluster[task.job][task.index] = str(better)


def _check_jobs(draft: Draft) -> None:
    for job in [job for job in draft.cluster if job not in _JOBS]:
        why = f"Disallowed task type {job!r}: a cluster consists of {', '.join(_JOBS)}."
        draft.report(f"cluster.{job}", why)
        right = _closest(job)
        if right in ("chief", "evaluator") and draft.count(right):
            right = "worker"
        for index in sorted(draft.cluster[job]):
            draft.move(Task(job, index), right)
        del draft.cluster[job]
        if draft.task_type == job:
            draft.task_type = right


def _check_single(draft: Draft, job: str) -> None:
    if draft.count(job) <= 1:
        return
    addresses = draft.cluster[job]
    why = f"There may be at most one {job}, and here are {len(addresses)}."
    draft.report(f"cluster.{job}", why)
    first, *more = sorted(addresses)
    for index in more:
        if job == "chief":
            draft.move(Task(job, index), "worker")
        else:
            del addresses[index]
    if draft.task_type == job:
        draft.task_id = first


def _check_task(draft: Draft, task_type: str | None) -> None:
    tasks = [task for task, _ in draft.tasks()]
    if draft.task_type is None:
        if len(tasks) > 1:
            why = (
                f"The cluster has {len(tasks)} tasks, and nothing says which of them this process "
                'is. Give "task", with the type and the index of this process.'
            )
            draft.report("task", why)
            draft.task_id = tasks[0].index
        draft.task_type = task_type = tasks[0].job
    if task_type not in _JOBS:
        why = f"Unrecognized task_type {task_type!r}: a process is one of {', '.join(_JOBS)}."
        draft.report(f"task.type = {json.dumps(task_type)}", why)
        draft.task_type = draft.task_type if draft.task_type in _JOBS else _closest(str(task_type))
    indices = sorted(draft.cluster.get(draft.task_type, {}))
    if not indices and draft.task_type == "evaluator":
        draft.task_id = draft.task_id or 0
    elif not indices:
        jobs = list(dict.fromkeys(task.job for task in tasks))
        if task_type in _JOBS:
            why = f"The cluster has no job {task_type!r}; it has {', '.join(jobs)}."
            draft.report(f"task.type = {json.dumps(task_type)}", why)
        draft.task_type = "worker" if "worker" in jobs else jobs[0]
        draft.task_id = min(draft.cluster[draft.task_type])
    else:
        _check_index(draft, draft.task_type, indices)


def _check_index(draft: Draft, job: str, indices: list[int]) -> None:
    index = draft.task_id
    if index is None:
        if len(indices) > 1:
            why = f"Nothing says which {job} this process is: one of {_listed(indices)}."
            draft.report("task.index", why)
        draft.task_id = indices[0]
    elif index not in indices:
        if index < 0:
            why = f"Tasks are numbered from 0; the cluster has {job} {_listed(indices)}."
        elif index > indices[-1]:
            why = (
                f"It exceeds the maximum id of {job}, which is {indices[-1]}: tasks are numbered "
                f"from 0, and the cluster has {job} {_listed(indices)}."
            )
        else:
            why = f"There is no such task: the cluster has {job} {_listed(indices)}."
        draft.report(f"task.index = {index}", why)
        draft.task_id = min(indices, key=lambda present: abs(present - index))


def _corrected(task: Task, text: str) -> Address:
    """Return what may have been meant by something that is no address."""
    bare = text.rpartition("://")[2].strip().rstrip("/")
    host, _, port = bare.rpartition(":")
    for guess in (
        bare,
        f"{bare}:{_USUAL_PORT}",
        f"{host}:{_USUAL_PORT}",
        f"[{host}]:{port}",
        f"[{bare}]:{_USUAL_PORT}",
    ):
        try:
            return Address.parse(guess)
        except ValueError:
            continue
    return Address(host_of(task), _USUAL_PORT)


def _next_free(address: Address, taken: Container[tuple[str, int]]) -> Address:
    while _key(address) in taken:
        address = Address(address.host, address.port % 65535 + 1)
    return address


def _key(address: Address) -> tuple[str, int]:
    return address.host.lower(), address.port


def _closest(job: str) -> str:
    """Return the job that may have been meant by another name."""
    name = job.lower()
    begins = [known for known in _JOBS if name.startswith(known)]
    similar = difflib.get_close_matches(name, _JOBS, n=1)
    return _OTHER_NAMES.get(name) or next(iter(begins + similar), "worker")


def _part(task: Task, address: str) -> str:
    return f"cluster.{task.job}[{task.index}] = {json.dumps(address)}"


def _listed(indices: list[int]) -> str:
    if len(indices) > 2 and indices == list(range(indices[0], indices[-1] + 1)):
        return f"{indices[0]} to {indices[-1]}"
    return " and ".join(map(str, indices)) if len(indices) < 3 else ", ".join(map(str, indices))
