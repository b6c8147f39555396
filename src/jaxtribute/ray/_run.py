"""`run`: a training function on several workers of a Ray cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._job import CLUSTER_KEY, EXIT_PREEMPTED, RESTART_COUNT
from .._limits import say
from .._threads import thread_variables
from ..coordinator._packing import load_error, load_result
from ..errors import (
    AbortedError,
    DeadlineExceededError,
    InvalidArgumentError,
    UnavailableError,
    WorkerLostError,
)
from ._actors import Program, TrainingTask, pack_program
from ._placement import Placement, checked_count, checked_resources
from ._secret import job_secret

__all__ = ["run"]

_SECONDS_FOR_THE_CAUSE = 5.0  # Ray tells of a lost process later than the other workers do


def run(
    train_fn: Callable[..., Any],
    workers: int = 2,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    resources_per_worker: Mapping[str, float] | None = None,
    max_restarts: int = 0,
    environment: Mapping[str, str] | None = None,
    placement: str = "PACK",
    ports: Sequence[int] | None = None,
    timeout_seconds: float = 120.0,
) -> list[Any]:
    """Run a function on several workers of a Ray cluster, and return what each returned.

    Each worker is an actor of Ray with a process of its own, in which `TF_CONFIG` describes all of
    them, so that `MultiWorkerMirroredStrategy` trains as under `jaxtribute launch`. What the
    function refers to is sent as to workers of a `ClusterCoordinator`, and arrays of JAX come back
    as NumPy's.

    >>> import ray
    >>> _ = ray.init(ignore_reinit_error=True)
    >>> def train(words):
    ...     resolver = jt.cluster_resolver.TFConfigClusterResolver()
    ...     return f"{words} {resolver.task_type}:{resolver.task_id}"
    >>> jt.ray.run(train, workers=2, args=("trained by",))
    ['trained by worker:0', 'trained by worker:1']

    When one fails, the others are ended, and the failure they follow from is raised, with the
    traceback of that worker. No actor or process outlives the call.

    Args:
      train_fn: what each worker calls.
      workers: how many there are.
      args: its positional arguments.
      kwargs: its arguments by name.
      resources_per_worker: what Ray is to set aside for each, such as `{"CPU": 4, "GPU": 1}`; one
        core by default. A worker sees the GPUs that Ray gives it, and no others.
      max_restarts: how often to start all of them again after a failure, as processes that know
        nothing of the last ones: restore a checkpoint at the top of `train_fn`.
      environment: more environment variables for the workers, such as `JAX_NUM_CPU_DEVICES`.
      placement: how Ray chooses nodes: "PACK" for few, "SPREAD" for many, or "STRICT_PACK" and
        "STRICT_SPREAD" where nothing else will do.
      ports: where workers may listen; by default one of 20000 to 31999 that is free.
      timeout_seconds: how long to wait for room in the cluster, and then for processes to start.

    Raises:
      ImportError: when Ray is not installed.
      FailedPreconditionError: when the program is not connected to a cluster.
      InvalidArgumentError: when an argument cannot work, or the key in the environment.
      TypeError: when `train_fn` or its arguments cannot be sent.
      ResourceExhaustedError: when there is no room in time; it says what was asked and what there
        is.
      DeadlineExceededError: when processes do not start in time.
      WorkerLostError: when the process of a worker ended.
      AbortedError: when a worker called `sys.exit` with an exit code.
      Exception: what `train_fn` raised.
    """
    workers = checked_count("workers", workers)
    needed = checked_resources("resources_per_worker", resources_per_worker)
    if isinstance(max_restarts, bool) or not isinstance(max_restarts, int) or max_restarts < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgumentError(
            f"max_restarts must be a whole number from 0 on, got {max_restarts!r}."
        )
    if not callable(train_fn):
        raise InvalidArgumentError(f"train_fn must be a function, got {train_fn!r}.")
    program = pack_program(train_fn, tuple(args), dict(kwargs or {}))
    room = Placement(
        {f"worker:{index}": needed for index in range(workers)},
        strategy=placement,
        ports=ports,
        environment=environment,
        timeout_seconds=timeout_seconds,
    )
    secret = job_secret()
    restarts = 0
    with room:
        job = _Job(room, program, secret)
        while True:
            results, failure = job.run_once(restarts)
            if failure is None:
                return results
            if restarts == max_restarts:
                if restarts:
                    failure.error.add_note(f"All workers were started again {restarts} times.")
                raise failure.error
            restarts += 1
            say(
                f"{failure.task} failed: {failure.summary}; starting all workers again "
                f"({restarts} of {max_restarts})"
            )


@dataclass(frozen=True)
class _Failure:
    """How a worker failed."""

    task: str
    error: Exception
    itself: bool = False
    """Whether the error is about this worker, not one that it has raised."""

    @property
    def may_follow_from_another(self) -> bool:
        """Whether the error is about other workers, which are lost or late."""
        about_others = (UnavailableError, DeadlineExceededError, AbortedError)
        return isinstance(self.error, about_others) and not self.itself

    @property
    def summary(self) -> str:
        text = f"{type(self.error).__name__}: {self.error}".splitlines()[0]
        return text if len(text) < 160 else f"{text[:157]}..."


class _Job:
    """A program, and how its workers end."""

    def __init__(self, room: Placement, program: Program, secret: str) -> None:
        self._room = room
        self._ray = room.ray
        self._program = self._ray.put(program)
        self._secret = secret

    def run_once(self, restarts: int) -> tuple[list[Any], _Failure | None]:
        """Run all workers, and return what they returned, or the failure of the first that did."""
        room = self._room
        addresses = room.addresses()
        try:
            actors = {
                task: room.start(
                    task,
                    TrainingTask,
                    task,
                    self._environment(list(addresses.values()), index, restarts),
                    threads=thread_variables(room.cores_of(task), room.devices),
                )
                for index, task in enumerate(addresses)
            }
            failed = room.not_started(actors)
            failures = [self._failure(task, error) for task, error in failed.items()]
            if not failures:
                running = {actor.train.remote(self._program): t for t, actor in actors.items()}
                results, failures = self._outcome(running)
                if not failures:
                    return [results[task] for task in actors], None
            return [], _first(failures)
        finally:
            room.end_actors()

    def _environment(self, addresses: list[str], index: int, restarts: int) -> dict[str, str]:
        task = {"type": "worker", "index": index}
        return {
            "TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task}),
            RESTART_COUNT: str(restarts),
            CLUSTER_KEY: self._secret,
        }

    def _outcome(self, running: dict[Any, str]) -> tuple[dict[str, Any], list[_Failure]]:
        results: dict[str, Any] = {}
        failures: list[_Failure] = []
        deadline: float | None = None
        while running:
            limit = None if deadline is None else max(0.0, deadline - time.monotonic())
            done, _ = self._ray.wait(list(running), num_returns=1, timeout=limit)
            if not done:
                break
            task = running.pop(done[0])
            ending = self._ending(done[0], task)
            if not isinstance(ending, _Failure):
                results[task] = ending
                continue
            failures.append(ending)
            if not ending.may_follow_from_another:
                break
            deadline = deadline or time.monotonic() + _SECONDS_FOR_THE_CAUSE
        return results, failures

    def _ending(self, reference: Any, task: str) -> Any:
        """Return what a worker returned, or how it failed."""
        try:
            ending = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return self._failure(task, error)
        kind, value = ending
        if kind == "exit":
            saved = ": it has saved, to go on when started again" if value == EXIT_PREEMPTED else ""
            return _Failure(
                task, AbortedError(f"{task} ended with exit code {value}{saved}."), itself=True
            )
        return load_result(value) if kind == "result" else _Failure(task, load_error(value))

    def _failure(self, task: str, error: Exception) -> _Failure:
        """Return what Ray says of a worker as a failure."""
        if isinstance(error, self._ray.exceptions.RayActorError):
            lost = WorkerLostError([task], "its process has ended")
            lost.add_note(f"Ray says: {error}")
            return _Failure(task, lost, itself=True)
        error.add_note(f"Raised by Ray about {task}.")
        return _Failure(task, error, itself=True)


def _first(failures: Sequence[_Failure]) -> _Failure:
    """Return the failure that the others follow from, which are noted with it."""
    causes = [failure for failure in failures if not failure.may_follow_from_another]
    first = (causes or list(failures))[0]
    for other in failures:
        if other is not first:
            first.error.add_note(f"{other.task} failed as a consequence: {other.summary}")
    return first
