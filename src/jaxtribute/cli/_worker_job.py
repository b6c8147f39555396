"""A job of workers that run the same script: all start together, and again together."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence

from .._job import EXIT_PREEMPTED
from ..cluster._this_machine import free_ports
from ._children import Child, start_all
from ._display import Display
from ._evaluator import EvaluatorTask
from ._failures import exit_status, failure_report, first_failure
from ._job import Job
from ._local_cluster import LocalCluster
from ._progress import JobProgress, counted, duration
from ._supervisor import Outcome, Supervisor

__all__ = ["run_workers"]


def run_workers(
    job: Job,
    cluster: LocalCluster,
    display: Display,
    progress: JobProgress,
    signals: socket.socket,
    reports: socket.socket,
    evaluator: EvaluatorTask | None = None,
) -> int:
    """Run all workers, again if need be and allowed, and return the exit code."""
    began = time.monotonic()
    _say_start(job, display)
    max_restarts = job.max_restarts or 0
    restarts = 0
    while True:
        outcome = _run_once(job, cluster, restarts, display, progress, signals, reports, evaluator)
        failure = first_failure(outcome.endings, cluster.tasks)
        preempted = failure is None and any(ending.preempted for ending in outcome.endings)
        if preempted:
            _say_preempted(outcome, cluster.tasks, display)
        if outcome.interrupted_by is not None:
            return 128 + outcome.interrupted_by
        if failure is None and not preempted:
            took = duration(time.monotonic() - began)
            display.say(
                f"{counted(job.workers, 'worker')} finished after {took}{progress.reached()}",
                style="green",
            )
            return 0
        if failure is not None:
            _say_failure(outcome, cluster.tasks, display)
        if restarts == max_restarts:
            if restarts and failure is not None:
                display.say(f"giving up after {counted(restarts, 'restart')}", style="bold red")
            return EXIT_PREEMPTED if failure is None else exit_status(failure.returncode)
        restarts += 1
        display.say(f"restarting ({restarts} of {max_restarts})", style="bold")
        progress.restart()


def _run_once(
    job: Job,
    cluster: LocalCluster,
    restarts: int,
    display: Display,
    progress: JobProgress,
    signals: socket.socket,
    reports: socket.socket,
    evaluator: EvaluatorTask | None,
) -> Outcome:
    ports = free_ports(len(cluster.tasks))

    def start(task: str) -> Child:
        index = cluster.tasks.index(task)
        environment = cluster.environment(os.environ, ports, index, restarts)
        return Child(task, [sys.executable, *job.command], environment, job.log_file(task))

    children = start_all(cluster.tasks, start)
    if evaluator is not None:
        evaluator.begin(ports)
    display.keep_quiet_about(progress, time.monotonic())  # that they start was just said
    supervisor = Supervisor(
        children, display, progress, signals, reports, job.grace_seconds, evaluator
    )
    return supervisor.run()


def _say_start(job: Job, display: Display) -> None:
    workers = counted(job.workers, "worker")
    if job.devices_per_worker is not None:
        workers += f", {counted(job.devices_per_worker, 'CPU device')} each"
    job.say_start(display, f"{workers} and an evaluator" if job.evaluator else workers)


def _say_preempted(outcome: Outcome, tasks: Sequence[str], display: Display) -> None:
    saved = [task for task in tasks if any(e.task == task and e.preempted for e in outcome.endings)]
    who = "all workers" if len(saved) == len(tasks) else ", ".join(saved)
    display.say(f"preempted: {who} saved and ended, and go on when started again", style="bold")


def _say_failure(outcome: Outcome, tasks: Sequence[str], display: Display) -> None:
    first, *others = failure_report(outcome.endings, tasks, outcome.states)
    display.say(first, style="bold red")
    display.say(*others)
