"""`jaxtribute launch`: a script on a cluster on this machine."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from .._job import TRAINING_ENDED
from ..errors import JaxtributeError
from ..rpc import ClusterKey
from ._children import Child
from ._display import Display
from ._evaluator import EvaluatorTask
from ._job import Job
from ._last_evaluation import finish_evaluation
from ._local_cluster import EVALUATOR, LocalCluster, available_cores, task_names
from ._program import check_program, module_path
from ._progress import JobProgress
from ._server_job import DEFAULT_MAX_RESTARTS, run_with_servers
from ._signals import caught_signals
from ._supervisor import FORWARDED
from ._worker_job import run_workers

_LONGEST_SOCKET_PATH = 100  # the kernel takes 107 bytes
# The first character keeps click from making one paragraph of it.
_EXAMPLES = """\b
Examples:
  jaxtribute launch --workers 2 train.py --learning-rate 0.1
  jaxtribute launch --workers 2 --devices-per-worker 2 --max-restarts 3 -m my.training
  jaxtribute launch --workers 2 --ps 2 train.py
  jaxtribute launch --workers 2 --evaluator train.py
"""


@click.command(
    context_settings={"allow_interspersed_args": False},  # what follows the script is its own
    epilog=_EXAMPLES,
)
@click.option(
    "--workers", "-n", type=click.IntRange(min=1), required=True, help="How many workers."
)
@click.option(
    "--ps",
    "servers",
    type=click.IntRange(min=1),
    help="How many parameter servers. With them there is a chief, and it alone runs SCRIPT.",
)
@click.option(
    "--evaluator",
    is_flag=True,
    help="Also start an evaluator, which runs SCRIPT as well, and is told when training is over.",
)
@click.option(
    "--devices-per-worker",
    type=click.IntRange(min=1),
    help="How many CPU devices each has. Default: what the environment says, else 1.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    help="How often to start all workers again after a failure. Default: 0. With --ps: how often "
    "to start each task again by itself, the chief included. Default: each worker and server "
    f"{DEFAULT_MAX_RESTARTS} times, the chief never.",
)
@click.option(
    "--log-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write what each task prints to a file of its own here.",
)
@click.option(
    "--grace-period",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long tasks may take to end after Ctrl-C or SIGTERM, before they are killed.",
)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
def launch(
    workers: int,
    servers: int | None,
    evaluator: bool,
    devices_per_worker: int | None,
    max_restarts: int | None,
    log_dir: Path | None,
    grace_period: float,
    is_module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run SCRIPT on a cluster on this machine.

    Without --ps, every worker runs it: a process that finds the cluster in TF_CONFIG, as it would
    on many machines. When one fails, the others are ended, and the first failure is told with its
    traceback. The exit code is that of the first failure, or 128 plus the number of the signal
    that ended it.

    With --ps, a chief runs it, which schedules work on the workers and keeps variables on the
    parameter servers. Those run `jaxtribute server`, and import modules from where SCRIPT is. One
    that fails is started again at the same address. The job ends when the chief does, and the exit
    code is the chief's.

    With --evaluator, one more process runs it beside the others, to evaluate checkpoints with a
    SidecarEvaluator. It is started again when it fails, and training goes on. When training is
    over, it evaluates the last checkpoint and ends.
    """
    check_program(script, is_module)
    if servers:
        _check_key()
    if log_dir is not None:
        log_dir.mkdir(parents=True, exist_ok=True)
    job = Job(
        command=[*(["-m"] if is_module else []), script, *arguments],
        workers=workers,
        servers=servers or 0,
        devices_per_worker=devices_per_worker,
        max_restarts=max_restarts,
        log_dir=log_dir,
        grace_seconds=grace_period,
        evaluator=evaluator,
    )
    sys.exit(run_job(job, module_path(script, is_module)))


def run_job(job: Job, modules: str) -> int:
    """Run all tasks of a job, and return the exit code.

    Args:
      job: what the launcher was asked to do.
      modules: where the program finds its modules.
    """
    tasks = [*task_names(job.workers, job.servers), *([EVALUATOR] if job.evaluator else [])]
    progress = JobProgress(tasks, time.monotonic(), job.max_restarts or 0)
    display = Display(tasks)
    job.clear_logs(tasks)
    try:
        # SIGCHLD only ends the wait of the loop.
        with caught_signals([*FORWARDED, signal.SIGCHLD]) as signals, _report_socket() as reports:
            cluster = LocalCluster(
                job.workers,
                job.devices_per_worker,
                available_cores(),
                # With the key of the user, `jaxtribute status` may ask the servers as well.
                cluster_key="" if job.servers else secrets.token_hex(32),
                status_socket=reports.getsockname(),
                servers=job.servers,
                module_path=modules if job.servers else "",
            )
            run = run_with_servers if job.servers else run_workers
            if not job.evaluator:
                return run(job, cluster, display, progress, signals, reports)
            evaluator = _evaluator(job, cluster, display, progress)
            try:
                status = run(job, cluster, display, progress, signals, reports, evaluator)
                return finish_evaluation(
                    evaluator, status, job, display, progress, signals, reports
                )
            finally:
                evaluator.destroy()
    finally:
        display.close()


def _evaluator(
    job: Job, cluster: LocalCluster, display: Display, progress: JobProgress
) -> EvaluatorTask:
    training_ended = Path(cluster.status_socket).with_name("training-ended")

    def start(ports: Sequence[int], restarts: int) -> Child:
        environment = cluster.evaluator_environment(os.environ, ports, restarts)
        environment[TRAINING_ENDED] = str(training_ended)
        command = [sys.executable, *job.command]
        return Child(EVALUATOR, command, environment, job.log_file(EVALUATOR))

    limit = DEFAULT_MAX_RESTARTS if job.max_restarts is None else job.max_restarts
    return EvaluatorTask(start, limit, training_ended, display, progress)


@contextmanager
def _report_socket() -> Generator[socket.socket]:
    """Yield the socket for reports of progress, in a directory only this user may enter."""
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) + len("/jaxtribute-12345678/status") > _LONGEST_SOCKET_PATH:
        parent = "/tmp"
    with (
        tempfile.TemporaryDirectory(prefix="jaxtribute-", dir=parent) as directory,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reports,
    ):
        reports.setblocking(False)
        reports.bind(str(Path(directory) / "status"))
        yield reports


def _check_key() -> None:
    """Make the key of this user if there is none: the tasks would all at once.

    Raises:
      click.ClickException: when there can be none.
    """
    try:
        ClusterKey.load()
    except JaxtributeError as error:
        raise click.ClickException(str(error)) from error
