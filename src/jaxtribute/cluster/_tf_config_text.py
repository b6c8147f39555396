"""Checks of the text of TF_CONFIG, which may be anything.

What can be understood is read in spite of what is wrong, so that all problems are told at once, and
the corrected example is made of what was given.
"""

from __future__ import annotations

import ast
import itertools
import json
from collections.abc import Mapping
from typing import Any

from ._problems import EXAMPLE, Draft, Problem
from ._task import Task
from ._validation import examine, host_of

__all__ = ["find_text_problems"]

_SHOWN = 32  # characters on each side of a mistake


def find_text_problems(
    text: str, task_type: str | None = None, task_id: int | None = None
) -> list[Problem]:
    """Return what is wrong with the text of TF_CONFIG.

    Args:
      text: what `TF_CONFIG` holds.
      task_type: the job of this process, if it is known from elsewhere.
      task_id: the index of this process, if it is known from elsewhere.
    """
    problem = None
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        problem = (_pointed_at(text, error.pos), _why_no_json(text, error))
        config = _repaired(text)
    else:
        if not isinstance(config, dict):
            kind = "text" if isinstance(config, str) else json.dumps(config)
            problem = (f"TF_CONFIG = {_shortened(text)}", f"It must be a JSON object, not {kind}.")
            config = _repaired(config) if isinstance(config, str) else None
    if config is None:
        assert problem is not None
        return [Problem(*problem, fix=EXAMPLE)]
    draft = Draft({}, None, None, {k: v for k, v in config.items() if k not in ("cluster", "task")})
    if problem is not None:
        draft.report(*problem)
    _read_task(draft, config.get("task", {}))
    draft.task_type = draft.task_type if task_type is None else task_type
    draft.task_id = draft.task_id if task_id is None else task_id
    _read_cluster(draft, config)
    return examine(draft)


def _read_task(draft: Draft, task: Any) -> None:
    if not isinstance(task, Mapping):
        why = 'A task is a JSON object such as {"type": "worker", "index": 0}.'
        draft.report(f"task = {json.dumps(task)}", why)
        task = _as_task(task)
    if "type" in task:
        draft.task_type = str(task["type"])
    if "index" in task:
        index = task["index"]
        # Text is taken as the reference takes it; a fraction or a truth value is a mistake.
        draft.task_id = int(index) if isinstance(index, int | str) and _is_integer(index) else None
        if draft.task_id is None:
            draft.report(f"task.index = {json.dumps(index)}", "The index of a task is a number.")
            draft.task_id = 0


def _read_cluster(draft: Draft, config: Mapping[str, Any]) -> None:
    cluster = config.get("cluster", {})
    if not isinstance(cluster, Mapping):
        why = 'A cluster is a JSON object from jobs to addresses, as {"worker": ["host0:2222"]}.'
        draft.report(f"cluster = {json.dumps(cluster)}", why)
        if isinstance(cluster, list | str):
            draft.cluster["worker"] = _read_job(draft, "worker", cluster)
        return
    if not cluster and draft.task_type not in (None, "evaluator"):
        why = 'This says which task the process is, and there is no "cluster" to find it in.'
        if "sparseCluster" in config:
            why += (
                ' "sparseCluster" does not name all tasks, which workers must know to train '
                "together; in a TFJob, set enableDynamicWorker to false."
            )
        draft.report(f"task = {json.dumps(config.get('task'))}", why)
        draft.cluster = _example_cluster(draft.task_type, max(draft.task_id or 0, 0))
    for job, addresses in cluster.items():
        draft.cluster[job] = _read_job(draft, job, addresses)


def _example_cluster(task_type: str | None, task_id: int) -> dict[str, dict[int, str]]:
    """Return a cluster in which there is such a task."""
    hosts = (f"host{number}:2222" for number in itertools.count())
    cluster: dict[str, dict[int, str]] = {}
    if task_type in ("chief", "ps"):
        cluster[task_type] = {task_id: next(hosts)}
    last = task_id if task_type == "worker" else 1
    indices = range(max(1, last) + 1) if last < 8 else (0, 1, last)
    return {**cluster, "worker": {index: next(hosts) for index in indices}}


def _read_job(draft: Draft, job: str, addresses: Any) -> dict[int, str]:
    if isinstance(addresses, str):
        why = "The tasks of a job are a list of addresses, even if there is only one."
        draft.report(f"cluster.{job} = {json.dumps(addresses)}", why)
        addresses = [address.strip() for address in addresses.split(",")]
    if isinstance(addresses, Mapping):
        numbered = _by_number(draft, job, addresses)
    elif isinstance(addresses, list):
        numbered = dict(enumerate(addresses))
    else:
        why = "The tasks of a job are a list of addresses, or an object from index to address."
        draft.report(f"cluster.{job} = {json.dumps(addresses)}", why)
        numbered = {0: f"{host_of(Task(job, 0))}:2222"}
    return {i: _read_address(draft, Task(job, i), address) for i, address in numbered.items()}


def _by_number(draft: Draft, job: str, addresses: Mapping[str, Any]) -> dict[int, Any]:
    numbered: dict[int, Any] = {}
    without: list[Any] = []
    for index, address in addresses.items():
        if _is_integer(index) and int(index) >= 0 and int(index) not in numbered:
            numbered[int(index)] = address
            continue
        again = _is_integer(index) and int(index) in numbered
        why = f"{index!r} is no index" if not again else f"{index!r} is one that is taken"
        part = f"cluster.{job}[{json.dumps(index)}] = {json.dumps(address)}"
        draft.report(part, f"The tasks of a job are numbered from 0, and {why}.")
        without.append(address)
    return numbered | dict(enumerate(without, start=max(numbered, default=-1) + 1))


def _read_address(draft: Draft, task: Task, address: Any) -> str:
    if isinstance(address, str):
        return address
    part = f"cluster.{task.job}[{task.index}] = {json.dumps(address)}"
    draft.report(part, 'An address is text, as in "host0:2222".')
    is_port = isinstance(address, int) and 1 < address <= 65535
    return f"{host_of(task)}:{address if is_port else 2222}"


def _as_task(task: Any) -> dict[str, Any]:
    """Return what may have been meant by `"worker:0"` or `["worker", 0]`."""
    if isinstance(task, list) and len(task) == 2:
        task = f"{task[0]}:{task[1]}"
    try:
        parsed = Task.parse(str(task))
    except ValueError:
        return {}
    return {"type": parsed.job, "index": parsed.index}


def _repaired(text: str) -> dict[str, Any] | None:
    """Return what JSON with the usual mistakes may have meant: no commas, or written by Python."""
    for read in (json.loads, _with_commas, ast.literal_eval):
        try:
            config = json.loads(json.dumps(read(text.strip())))
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            continue
        if isinstance(config, dict):
            return config
    return None


def _with_commas(text: str) -> Any:
    missing = "Expecting ',' delimiter"
    for _ in range(text.count(" ")):
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            if error.msg != missing:
                raise
            text = f"{text[: error.pos]},{text[error.pos :]}"
    return json.loads(text)


def _is_integer(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    try:
        int(value)
    except (TypeError, ValueError):
        return False
    return True


def _why_no_json(text: str, error: json.JSONDecodeError) -> str:
    if not text.strip():
        return (
            "TF_CONFIG is set and empty, which is no JSON. Unset it for a program that runs alone."
        )
    why = f"TF_CONFIG is not valid JSON: {error.msg} at character {error.pos}."
    if "'" in text and '"' not in text:
        why += " JSON has double quotes; json.dumps writes them, and str or print do not."
    return why


def _pointed_at(text: str, position: int) -> str:
    """Return the text around a position, and a line with a caret under it."""
    if not text.strip():
        return f"TF_CONFIG = {json.dumps(text)}"
    start, end = max(0, position - _SHOWN), position + _SHOWN
    shown = "".join(c if c.isprintable() else " " for c in text[start:end])
    before, after = "..." if start else "", "..." if end < len(text) else ""
    return f"{before}{shown}{after}\n{' ' * (len(before) + position - start)}^"


def _shortened(text: str) -> str:
    return text if len(text) <= 2 * _SHOWN else f"{text[: 2 * _SHOWN]}..."
