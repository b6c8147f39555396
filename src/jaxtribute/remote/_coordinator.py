"""The coordinator's way to the parameter servers: it makes what workers use."""

from __future__ import annotations

import secrets
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import cloudpickle

from .. import ps
from .._limits import join_limit, say
from ..errors import DataLossError, PSUnavailableError
from ..rpc import ClusterKey, array_type, frame_of
from ..variables._effects import Effect
from ._rows import Array
from ._session import Requests, Session, pieces
from ._variable import Described, RemoteVariable

_IN_ONE_PIECE = 64 * 1024 * 1024  # bytes
_ASK_AGAIN = 0.1  # seconds


class CoordinatorSession(Session):
    """A session that creates variables, and knows what has to be there."""

    def __init__(
        self,
        own_task: str,
        servers: Sequence[str],
        key: ClusterKey,
        *,
        encryption: bool = True,
    ) -> None:
        super().__init__(own_task, servers, key, secrets.token_hex(8), encryption=encryption)
        self.epoch = 0
        self._next_variable = 0
        self._unused: deque[tuple[int, int]] = deque()  # servers, and variables nobody has any more
        self._optimizers: list[bytes] = []
        self.optimizers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._sizes: dict[int, set[int]] = {}  # numbers of the variables on each server
        self._heard = [0] * len(servers)  # of their clocks, from workers
        self.restore_seconds: float | None = None  # for which a lost server is waited for

    def adopt(self) -> None:
        """Take over the servers, waiting for those that are not up yet.

        Raises:
          PSUnavailableError: when one does not come up in time.
        """
        adopted = {task: (ps.Adopt(self.origin), ()) for task in range(len(self.servers))}
        self.ask(adopted, "the parameter servers to come up", patience=join_limit())

    def bump_epoch(self) -> None:
        """Have workers read values anew: something has happened that later closures must see."""
        self.epoch += 1

    def update(self, effects: Sequence[Effect]) -> None:
        super().update(effects)
        self.bump_epoch()

    # --- Variables -------------------------------------------------------------------------

    def create(self, described: dict[str, Any], task: int, value: Array) -> RemoteVariable:
        """Make a variable on a server.

        Args:
          described: what `Described` needs besides.
          task: the index of the server.
          value: the initial value.
        """
        self._delete_unused()
        number = self._next_variable
        self._next_variable += 1
        full = Described(
            number=number, task=task, shape=value.shape, dtype=value.dtype, **described
        )
        in_one_piece = full.nbytes <= _IN_ONE_PIECE or not value.shape
        made = ps.Create(self.origin, number, full.name, array_type(value))
        self.ask({task: (made, [frame_of(value)] if in_one_piece else [])}, "a new variable")
        if not in_one_piece:
            for start, stop in pieces(value.shape, full.nbytes):
                part = value[start:stop]
                write = ps.Write(self.origin, number, start, array_type(part))
                self.ask({task: (write, [frame_of(part)])}, "the value of a new variable")
        self._sizes.setdefault(task, set()).add(number)
        variable = self.variable(full)
        weakref.finalize(variable, self._unused.append, (task, number)).atexit = False
        return variable

    def _delete_unused(self) -> None:
        unused: dict[int, list[int]] = {}
        while self._unused:
            task, number = self._unused.popleft()
            unused.setdefault(task, []).append(number)
            self._sizes[task].discard(number)
        self.ask(
            {task: (ps.Delete(self.origin, own), ()) for task, own in unused.items()},
            "variables to be deleted",
        )

    # --- Optimizers ------------------------------------------------------------------------

    def register_optimizer(self, optimizer: Any, transformation: Any) -> int:
        """Teach the servers an Optax transformation, and return its number."""
        pickled: bytes = cloudpickle.dumps(transformation)
        number = len(self._optimizers)
        self._optimizers.append(pickled)
        self.optimizers[number] = optimizer
        self.ask(
            {
                task: (ps.RegisterOptimizer(self.origin, number), [pickled])
                for task in range(len(self.servers))
            },
            "an optimizer",
        )
        return number

    # --- When a server is lost -------------------------------------------------------------

    def ask(
        self, requests: Requests, what: str, patience: float | None = None
    ) -> dict[int, tuple[Any, Sequence[Any]]]:
        """Send requests as `Session` does, again if a server is restored meanwhile."""
        began = time.monotonic()
        told = False
        while True:
            try:
                return super().ask(requests, what, patience)
            except PSUnavailableError as error:
                limit = self.restore_seconds
                if limit is None or time.monotonic() - began > limit:
                    raise
                if not told:
                    say(f"waiting for {error.task} to be restored, for {what}.")
                    told = True
            time.sleep(_ASK_AGAIN)

    def note_clocks(self, clocks: Sequence[int]) -> None:
        """Take note of how many updates each server has had, as far as a worker knows."""
        for task, clock in enumerate(clocks):
            self._heard[task] = max(self._heard[task], clock)

    def _renew(self, task: int) -> None:
        self._heard[task] = max(self._heard[task], self.clocks[task])
        super()._renew(task)

    def keep_snapshots(self, directory: str, seconds: float) -> None:
        """Have all servers write what they hold, now and every so many seconds."""
        for interval in (0.0, seconds):
            self.ask(
                {
                    task: (ps.KeepSnapshots(self.origin, directory, interval), ())
                    for task in range(len(self.servers))
                },
                "snapshots",
            )

    def recover_server(self, task: int, directory: str, seconds: float) -> int:
        """Have a server that was restarted go on from its newest snapshot.

        Returns:
          How many updates are lost.

        Raises:
          PSUnavailableError: when it is gone again.
          NotFoundError: when it has no snapshot that can be used.
          DataLossError: when its snapshots are damaged, or lack variables.
        """
        ask = super().ask
        with self._lock:
            self._renew(task)
        before = self._heard[task]
        restored, _ = ask({task: (ps.Restore(self.origin, directory), ())}, "its snapshot")[task]
        missing = self._sizes.get(task, set()) - set(restored.numbers)
        if missing:
            raise DataLossError(
                f"it was restarted, and {len(missing)} of its variables were created after its "
                "last snapshot"
            )
        for number, pickled in enumerate(self._optimizers):
            message = ps.RegisterOptimizer(self.origin, number)
            ask({task: (message, [pickled])}, "an optimizer")
        ask({task: (ps.KeepSnapshots(self.origin, directory, seconds), ())}, "snapshots")
        self.clocks[task] = self._heard[task] = restored.clock
        self.bump_epoch()
        return max(0, before - restored.clock)
