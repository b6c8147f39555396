"""The one world of this process, joined when it is first asked for."""

from __future__ import annotations

import logging
import time

from .. import _devices
from .._limits import join_limit, say
from ..cluster._reachability import check_can_bind, resolve_host
from ..cluster._task import Task
from ..cluster._workers import Workers
from ..errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)
from . import _jax_runtime
from ._world import World, described

_RETRY = 0.2  # seconds

_log = logging.getLogger("jaxtribute")

_world: World | None = None


def current_world() -> World | None:
    """Return the world of this process, if it has joined one."""
    return _world


def joined_world(workers: Workers, options: str) -> World:
    """Return the world of this process, which is joined when it is first asked for.

    Raises:
      FailedPreconditionError: when JAX has started already, or another cluster was joined.
    """
    global _world
    if _world is not None:
        if _world.roll != workers:
            raise FailedPreconditionError(
                f"This process has joined the cluster {described(_world.roll)}, and cannot be part "
                f"of {described(workers)} as well: JAX can be started only once. Use one cluster "
                "in a process."
            )
        return _world
    if _devices.jax_has_started() or _jax_runtime.is_running():
        raise FailedPreconditionError(
            "MultiWorkerMirroredStrategy was created after JAX had been used, and JAX cannot be "
            "joined with other workers any more. Create the strategy at the top of the program, "
            "before anything makes an array, asks for jax.devices() or calls "
            "jax.distributed.initialize."
        )
    _check_addresses(workers)
    world = World(workers, options)
    world.join()
    _world = world
    return world


def _check_addresses(workers: Workers) -> None:
    chief, address = workers.tasks[0], workers.addresses[0]
    if workers.index != 0:
        _wait_for_name(address, chief, workers.task)
        return
    try:
        check_can_bind(chief, address)
    except InvalidArgumentError as error:  # it may be reached under another machine's address
        _log.warning("%s", error)


def _wait_for_name(address: str, chief: Task, own: Task) -> None:
    """Wait until the chief's host is known, which in some clusters it is once it has started."""
    limit = join_limit()
    started = time.monotonic()
    told = False
    while True:
        try:
            resolve_host(address, chief)
            return
        except (UnavailableError, DeadlineExceededError) as error:
            if time.monotonic() - started > limit:
                raise
            if not told:
                told = True
                say(f"{own} waits up to {limit:.0f} s for {chief}: {error}")
            time.sleep(_RETRY)
