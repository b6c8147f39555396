"""`jaxtribute launch`: a script on every worker of a cluster on this machine."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import secrets
import shlex
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from ._children import Child
from ._display import Display
from ._failures import exit_status, failure_report, first_failure
from ._local_cluster import LocalCluster, available_cores, free_ports, task_names
from ._progress import JobProgress, counted, duration
from ._signals import caught_signals
from ._supervisor import FORWARDED, Outcome, Supervisor

_LONGEST_SOCKET_PATH = 100  # the kernel takes 107 bytes
# The first character keeps click from making one paragraph of it.
_EXAMPLES = """\b
Examples:
  jaxtribute launch --workers 2 train.py --learning-rate 0.1
  jaxtribute launch --workers 2 --devices-per-worker 2 --max-restarts 3 -m my.training
"""


@click.command(
    context_settings={"allow_interspersed_args": False},  # what follows the script is its own
    epilog=_EXAMPLES,
)
@click.option(
    "--workers", "-n", type=click.IntRange(min=1), required=True, help="How many processes."
)
@click.option(
    "--devices-per-worker",
    type=click.IntRange(min=1),
    help="How many CPU devices each has. Default: what the environment says, else 1.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How often to start all workers again after a failure.",
)
@click.option(
    "--log-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write what each worker prints to a file of its own here.",
)
@click.option(
    "--grace-period",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long workers may take to end after Ctrl-C or SIGTERM, before they are killed.",
)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
def launch(
    workers: int,
    devices_per_worker: int | None,
    max_restarts: int,
    log_dir: Path | None,
    grace_period: float,
    is_module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run SCRIPT on every worker of a cluster on this machine.

    Each worker is a process that finds the cluster in TF_CONFIG, as it would on many machines. When
    one fails, the others are ended, and the first failure is told with its traceback. The exit code
    is that of the first failure, or 128 plus the number of the signal that ended it.
    """
    _check_program(script, is_module)
    if log_dir is not None:
        log_dir.mkdir(parents=True, exist_ok=True)
    job = Job(
        command=[*(["-m"] if is_module else []), script, *arguments],
        workers=workers,
        devices_per_worker=devices_per_worker,
        max_restarts=max_restarts,
        log_dir=log_dir,
        grace_seconds=grace_period,
    )
    sys.exit(run_job(job))


@dataclass(frozen=True)
class Job:
    """What the launcher was asked to do."""

    command: Sequence[str]
    """What comes after `python`."""
    workers: int
    devices_per_worker: int | None
    max_restarts: int
    log_dir: Path | None
    grace_seconds: float


def run_job(job: Job) -> int:
    """Run all workers, again if need be and allowed, and return the exit code."""
    tasks = task_names(job.workers)
    progress = JobProgress(tasks, time.monotonic(), job.max_restarts)
    display = Display(tasks)
    try:
        # SIGCHLD only ends the wait of the loop.
        with caught_signals([*FORWARDED, signal.SIGCHLD]) as signals, _report_socket() as reports:
            cluster = LocalCluster(
                job.workers,
                job.devices_per_worker,
                available_cores(),
                cluster_key=secrets.token_hex(32),
                status_socket=reports.getsockname(),
            )
            return _run_until_done(job, cluster, display, progress, signals, reports)
    finally:
        display.close()


def _run_until_done(
    job: Job,
    cluster: LocalCluster,
    display: Display,
    progress: JobProgress,
    signals: socket.socket,
    reports: socket.socket,
) -> int:
    tasks = task_names(job.workers)
    began = time.monotonic()
    _clear_logs(job, tasks)
    _say_start(job, display)
    restarts = 0
    while True:
        outcome = _run_once(job, cluster, restarts, display, progress, signals, reports)
        if outcome.interrupted_by is not None:
            return 128 + outcome.interrupted_by
        failure = first_failure(outcome.endings, tasks)
        if failure is None:
            took = duration(time.monotonic() - began)
            display.say(
                f"{counted(job.workers, 'worker')} finished after {took}{progress.reached()}",
                style="green",
            )
            return 0
        _say_failure(outcome, tasks, display)
        if restarts == job.max_restarts:
            if restarts:
                display.say(f"giving up after {counted(restarts, 'restart')}", style="bold red")
            return exit_status(failure.returncode)
        restarts += 1
        display.say(f"restarting ({restarts} of {job.max_restarts})", style="bold")
        progress.restart()


def _run_once(
    job: Job,
    cluster: LocalCluster,
    restarts: int,
    display: Display,
    progress: JobProgress,
    signals: socket.socket,
    reports: socket.socket,
) -> Outcome:
    children = _start(job, cluster, restarts)
    display.keep_quiet_about(progress, time.monotonic())  # that they start was just said
    try:
        return Supervisor(children, display, progress, signals, reports, job.grace_seconds).run()
    finally:
        for child in children:
            child.destroy()


def _start(job: Job, cluster: LocalCluster, restarts: int) -> list[Child]:
    ports = free_ports(job.workers)
    children: list[Child] = []
    try:
        for index, task in enumerate(task_names(job.workers)):
            environment = cluster.environment(os.environ, ports, index, restarts)
            log = _log_file(job, task)
            children.append(Child(task, [sys.executable, *job.command], environment, log))
    except BaseException:
        for child in children:
            child.destroy()
        raise
    return children


def _say_start(job: Job, display: Display) -> None:
    workers = counted(job.workers, "worker")
    if job.devices_per_worker is not None:
        workers += f", {counted(job.devices_per_worker, 'CPU device')} each"
    display.say(f"starting {workers}: python {shlex.join(job.command)}")
    if "TF_CONFIG" in os.environ:
        display.say("TF_CONFIG is set here, and is replaced by that of the local cluster")


def _say_failure(outcome: Outcome, tasks: Sequence[str], display: Display) -> None:
    first, *others = failure_report(outcome.endings, tasks, outcome.states)
    display.say(first, style="bold red")
    display.say(*others)


def _log_file(job: Job, task: str) -> Path | None:
    return None if job.log_dir is None else job.log_dir / f"{task.replace(':', '-')}.log"


def _clear_logs(job: Job, tasks: Sequence[str]) -> None:
    """Begin anew with each job; its restarts are appended."""
    for task in tasks:
        if (log := _log_file(job, task)) is not None:
            log.write_bytes(b"")


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


def _check_program(script: str, is_module: bool) -> None:
    """Refuse what Python could not run, before anything starts.

    Raises:
      click.BadParameter: when there is no such script or module.
    """
    if is_module:
        _check_module(script)
        return
    path = Path(script)
    if not path.exists():
        hint = " A module is given with -m." if not script.endswith(".py") else ""
        raise click.BadParameter(f"There is no file {script!r}.{hint}", param_hint="SCRIPT")
    if path.is_dir() and not (path / "__main__.py").exists():
        raise click.BadParameter(
            f"{script!r} is a directory without a __main__.py.", param_hint="SCRIPT"
        )


def _check_module(name: str) -> None:
    """Look for a module without importing its parents, which may be anything."""
    path: Sequence[str] | None = [os.getcwd(), *sys.path]
    so_far = ""
    for part in [*name.split("."), "__main__"]:
        so_far = f"{so_far}.{part}" if so_far else part
        spec = importlib.machinery.PathFinder.find_spec(so_far, path)
        if spec is None and "." not in so_far:
            spec = importlib.util.find_spec(so_far)  # such as an editable install
        if spec is None and part == "__main__":
            message = f"The package {name!r} cannot be run: it has no module '__main__'."
            raise click.BadParameter(message, param_hint="SCRIPT")
        if spec is None:
            raise click.BadParameter(f"There is no module {so_far!r}.", param_hint="SCRIPT")
        path = spec.submodule_search_locations
        if path is None:
            if so_far not in (name, f"{name}.__main__"):
                raise click.BadParameter(f"{so_far!r} is no package.", param_hint="SCRIPT")
            return
