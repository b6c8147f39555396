"""A job with parameter servers: the chief runs the script, and workers and servers serve it."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Sequence

from .._job import EXIT_PREEMPTED
from ..cluster._this_machine import free_ports
from ._children import Child, start_all
from ._display import Display
from ._evaluator import EvaluatorTask
from ._failures import exit_status
from ._job import Job
from ._local_cluster import LocalCluster, tf_config
from ._progress import JobProgress, counted, duration
from ._restarts import CHIEF, Restarts
from ._server_supervisor import ServerSupervisor

__all__ = ["DEFAULT_MAX_RESTARTS", "run_with_servers"]

DEFAULT_MAX_RESTARTS = 100
"""How often a worker or a parameter server is started again if nothing was said about it."""

# Without the working directory on the module path, which is no part of it for a script either.
_SERVE = ("-P", "-m", "jaxtribute.cli", "server")


def run_with_servers(
    job: Job,
    cluster: LocalCluster,
    display: Display,
    progress: JobProgress,
    signals: socket.socket,
    reports: socket.socket,
    evaluator: EvaluatorTask | None = None,
) -> int:
    """Run the chief, with workers and servers for as long as it runs; return the exit code."""
    began = time.monotonic()
    tasks = cluster.tasks
    ports = free_ports(len(tasks))
    _say_start(job, display, tasks, ports)

    def start(task: str, restarts: int = 0) -> Child:
        environment = cluster.environment(os.environ, ports, tasks.index(task), restarts)
        command = job.command if task == CHIEF else _SERVE
        return Child(task, [sys.executable, *command], environment, job.log_file(task))

    limit = DEFAULT_MAX_RESTARTS if job.max_restarts is None else job.max_restarts
    restarts = Restarts(limit, chief_limit=job.max_restarts or 0)
    children = start_all(tasks, start)
    if evaluator is not None:
        evaluator.begin(ports)
    display.keep_quiet_about(progress, time.monotonic())  # that they start was just said
    supervisor = ServerSupervisor(
        children, start, restarts, display, progress, signals, reports, job.grace_seconds, evaluator
    )
    outcome = supervisor.run()
    if supervisor.preempted:
        display.say(f"preempted: {CHIEF} saved and ended, and goes on when started again")
    if outcome.interrupted_by is not None:
        return 128 + outcome.interrupted_by
    if supervisor.failure is not None:
        first, *others = supervisor.report()
        display.say(first, style="bold red")
        display.say(*others)
        # A server that ends by itself without an error has failed as well.
        return exit_status(supervisor.failure.returncode) or 1
    if supervisor.preempted:
        return EXIT_PREEMPTED
    took = duration(time.monotonic() - began)
    display.say(f"{CHIEF} finished after {took}{progress.reached()}", style="green")
    return 0


def _say_start(job: Job, display: Display, tasks: Sequence[str], ports: Sequence[int]) -> None:
    workers = counted(job.workers, "worker")
    if job.devices_per_worker is not None:
        workers += f" ({counted(job.devices_per_worker, 'CPU device')} each)"
    servers = counted(job.servers, "parameter server")
    others = f", {servers} and an evaluator" if job.evaluator else f" and {servers}"
    job.say_start(display, f"a chief, {workers}{others}")
    cluster = json.loads(tf_config(tasks, ports, 0))["cluster"]
    del cluster["chief"]
    display.say(f"to watch them: jaxtribute status --cluster {shlex.quote(json.dumps(cluster))}")
