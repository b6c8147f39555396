"""The public `Server`: what runs on workers and parameter servers."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import jax

from .. import _devices
from .._limits import say
from ..cluster._this_machine import free_ports
from ..rpc import ClusterKey
from ._adoption import Stopped
from ._server_def import ServerDef, server_def
from ._task_server import TaskServer

__all__ = ["Server"]

_LAST_WORDS = 2.0  # seconds; also for a function that runs in another thread, which is given up


class Server:
    """Serves as one worker or parameter server of a cluster.

    A worker runs the functions that the coordinator schedules; a parameter server keeps variables.
    Both run the same two lines:

    >>> cluster = jt.ClusterSpec({"worker": ["localhost:2222"], "ps": ["localhost:2223"]})
    >>> server = jt.Server(cluster, job_name="worker", task_index=0, start=False)
    >>> server.target
    'jaxtribute://localhost:2222'

    and then `server.join()`, which returns when the process is told to end.

    Whoever connects must know the key of the cluster: `JAXTRIBUTE_CLUSTER_KEY`, or what is in the
    file `jaxtribute/cluster_key` in the user's directory for configuration.

    Args:
      server_or_cluster_def: the cluster, as a `ClusterSpec`, a dict or a cluster resolver, or the
        `server_def` of another server.
      job_name: "worker" or "ps"; may be left out where only one task is possible.
      task_index: the index of the task; may be left out where only one task is possible.
      protocol: accepted for compatibility; servers always speak jaxtribute's own protocol.
      config: accepted for compatibility.
      start: whether to listen at once, rather than when `start` is called.
      encryption: whether what goes to other machines is encrypted. Without it everybody still has
        to prove that they know the key.

    Raises:
      TypeError: when an argument is of another type.
      ValueError: when the cluster cannot work, or the task is not in it or does not serve.
      FailedPreconditionError: when the port is in use, or there is no key for a public address.
    """

    def __init__(
        self,
        server_or_cluster_def: Any,
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: Any = None,
        start: bool = True,
        *,
        encryption: bool = True,
    ) -> None:
        self._definition = server_def(server_or_cluster_def, job_name, task_index, protocol)
        self._encryption = encryption
        self._server: TaskServer | None = None
        if start:
            self.start()

    @staticmethod
    def create_local_server(config: Any = None, start: bool = True) -> Server:
        """Return the only worker of a cluster, on a free port of this machine.

        >>> server = jt.Server.create_local_server(start=False)
        >>> server.server_def.job_name, server.server_def.task_index
        ('worker', 0)

        Args:
          config: accepted for compatibility.
          start: whether to listen at once.
        """
        (port,) = free_ports(1)
        return Server({"worker": [f"127.0.0.1:{port}"]}, config=config, start=start)

    @property
    def server_def(self) -> ServerDef:
        """The cluster, and which of its tasks this server is."""
        return self._definition

    @property
    def target(self) -> str:
        """Where it listens, as text such as 'jaxtribute://127.0.0.1:2222'."""
        return f"jaxtribute://{self._definition.address}"

    def start(self) -> None:
        """Listen, and answer in the background; a server that listens already does nothing.

        Raises:
          FailedPreconditionError: when the port is in use, or there is no key for a public address.
        """
        if self._server is not None:
            return
        definition = self._definition
        if definition.job_name == "ps" and not _devices.jax_has_started():
            # It computes next to nothing, and an accelerator it took would be lost to a worker.
            jax.config.update("jax_platforms", "cpu")
        key = ClusterKey.load(definition.address)
        server = TaskServer(definition.cluster, definition.task, key, encryption=self._encryption)
        server.start()
        self._server = server
        protection = "encrypted" if self._encryption else "authenticated, not encrypted"
        say(f"{definition.task} listens on {definition.address} (tcp, {protection}; ipc)")

    def join(self) -> None:
        """Serve until the server is stopped: by `stop`, by Ctrl-C or by SIGTERM.

        A worker runs the coordinator's functions in the thread that calls this. In the main thread,
        the two signals make it return, so that the program ends as any other; a function that runs
        at that time is given up.
        """
        try:
            with _signals_call(self._end_soon), suppress(Stopped):
                self.start()
                assert self._server is not None
                self._server.join()
        finally:
            self.stop()  # and wait, or the program may end before it has cleaned up

    def stop(self) -> None:
        """Stop serving, and free the address; a function that runs is hardly waited for."""
        if self._server is not None:
            self._server.stop()
            self._server.wait(_LAST_WORDS)

    def _end_soon(self, number: int, frame: FrameType | None) -> None:
        """Have `join` return; also when a signal comes as soon as anybody sees that it listens."""
        if self._server is None or self._server.end_soon():
            raise Stopped  # out of starting, or of the function that runs in this thread


@contextmanager
def _signals_call(end: Callable[[int, FrameType | None], None]) -> Generator[None]:
    """Have Ctrl-C and SIGTERM call a function, where nobody else has asked for them."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        before = {number: own for number, own in usual.items() if signal.getsignal(number) == own}
        for number in before:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, own in before.items():
            signal.signal(number, own)
