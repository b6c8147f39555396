"""`jaxtribute status`: what a running parameter-server cluster is doing."""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from ..cluster import ClusterSpec, Task, default_resolver
from ..cluster._validation import find_problems
from ..errors import JaxtributeError
from ..rpc import ClusterKey
from ._observer import Observer
from ._rates import Samples, rows
from ._status_table import as_json, render

__all__ = ["status"]

_WIDTH_OF_A_FILE = 140
_JOBS = ("worker", "ps")


@click.command()
@click.option(
    "--cluster",
    metavar="JSON",
    help="""The tasks to ask, as in '{"worker": ["host1:2222"], "ps": ["host2:2222"]}'. Default: """
    "those of TF_CONFIG.",
)
@click.option("--once", is_flag=True, help="Print the table once.")
@click.option("--json", "wants_json", is_flag=True, help="Print JSON once.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait before asking again. Rates are over this time.",
)
@click.option("--no-encryption", is_flag=True, help="As given to the servers.")
def status(
    cluster: str | None, once: bool, wants_json: bool, interval: float, no_encryption: bool
) -> None:
    """Show what a running parameter-server cluster is doing, until Ctrl-C.

    Every worker and parameter server is asked, with the key of the cluster. One that does not
    answer within two seconds is shown as down. The exit code is 1 if all are.
    """
    addresses = tasks_to_ask(cluster)
    try:
        key = ClusterKey.load()
    except JaxtributeError as error:
        raise click.ClickException(str(error)) from error
    observer = Observer(addresses, key, encryption=not no_encryption)
    try:
        if once or wants_json:
            sys.exit(_show_once(observer, interval, wants_json))
        _show_until_interrupted(observer, interval)
    except KeyboardInterrupt:
        sys.exit(0)
    finally:
        observer.close()


def tasks_to_ask(text: str | None) -> dict[str, str]:
    """Return the addresses of the workers and parameter servers of a cluster.

    Args:
      text: the cluster in JSON; None for the one the environment describes.

    Raises:
      click.UsageError: when there are none.
    """
    spec = _environment_cluster() if text is None else _given_cluster(text)
    problems = find_problems(spec, "evaluator", None)  # whoever asks is none of its tasks
    if problems:
        raise click.UsageError("\n".join(f"{p.part}: {p.why}" for p in problems))
    addresses = {
        str(Task(job, index)): spec.task_address(job, index)
        for job in _JOBS
        if job in spec.jobs
        for index in spec.task_indices(job)
    }
    if not addresses:
        raise click.UsageError(
            "There is no worker and no parameter server to ask. Set TF_CONFIG, or give --cluster "
            """'{"worker": ["host1:2222"], "ps": ["host2:2222"]}'."""
        )
    return addresses


def _environment_cluster() -> ClusterSpec:
    try:
        return default_resolver().cluster_spec()
    except (ValueError, TypeError, RuntimeError) as error:
        raise click.UsageError(str(error)) from error


def _given_cluster(text: str) -> ClusterSpec:
    try:
        given: Any = json.loads(text)
        return ClusterSpec(given)
    except (ValueError, TypeError) as error:
        raise click.BadParameter(
            f"{text!r} describes no cluster: {error}", param_hint="--cluster"
        ) from error


def _show_once(observer: Observer, interval: float, wants_json: bool) -> int:
    before = observer.ask()
    time.sleep(interval)  # a rate needs two
    cluster, workers, servers = rows(before, observer.ask())
    if wants_json:
        click.echo(json.dumps(as_json(cluster, workers, servers), indent=2))
    else:
        console = _console()
        console.print(render(cluster, workers, servers, console.width))
    return 0 if cluster.up else 1


def _show_until_interrupted(observer: Observer, interval: float) -> None:
    before = Samples()
    console = _console()
    # Where nothing can be drawn over, one table follows the other.
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    with live or nullcontext():
        while True:
            now = observer.ask()
            table = render(*rows(before, now), console.width)
            if live is not None:
                live.update(table, refresh=True)
            else:
                console.print(table, "")
            before = now
            time.sleep(interval)


def _console() -> Console:
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_A_FILE
    return console
