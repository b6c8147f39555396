"""All workers of a cluster, joined to train together: `World` is the `Group` of this process."""

from __future__ import annotations

import asyncio
import atexit
import faulthandler
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import jax

from .. import _devices, _job
from .._limits import join_limit, say, silence_limit
from .._topology import PER_REPLICA, REPLICATED, Topology
from ..cluster._address import Address
from ..cluster._workers import Workers
from ..errors import FailedPreconditionError, JaxtributeError, UnavailableError
from . import _jax_runtime
from ._facts import differences, differing, own_facts
from ._hub import Hub
from ._interrupt import Connections
from ._link import Link
from ._roster import Roster
from ._tunnel import Tunnel

_T = TypeVar("_T")

_BEAT = 0.25  # seconds
_LAST_RESORT = 15.0  # seconds that a wait may last after it has lost its sense
_SECONDS_TO_END = 5.0
_SECONDS_TO_FAIL = 1.0  # for a collective to notice that its connections have ended
_SHORTEST_POLL = 5e-5  # seconds
_LONGEST_POLL = 1e-3
_POLL_SHARE = 0.03  # of the time waited, so that long steps are not slowed down by looking
_PATIENCE = 5.0  # seconds that a worker which has finished waits for others to get as far


class World:
    """The workers of one cluster; there is one in a process, as JAX can be started only once."""

    def __init__(self, roll: Workers, options: str) -> None:
        self.roll = roll
        self.index = roll.index
        self.tasks = tuple(str(task) for task in roll.tasks)
        self.phases: dict[str, float] = {}  # how long each part of the start took
        self._options = options
        # In that of the launcher, if there is one, which removes it should this process be killed.
        parent = os.path.dirname(os.environ.get(_job.STATUS_SOCKET, "")) or None
        self._folder = tempfile.TemporaryDirectory(prefix="jaxtribute-", dir=parent)
        self._connections = Connections()
        self._hub: Hub | None = None
        self._tunnel: Tunnel | None = None
        self._failure: str | None = None
        self._left = False
        self._too_late: JaxtributeError | None = None
        self._numbers: dict[str, int] = {}
        self._waits = True
        self.time_limit: float | None = None  # for others to come, in seconds
        limit = silence_limit()
        self._explain_limit = limit + 2.0
        self._link = Link(self.tasks, self.index, limit, _BEAT, self._broken)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="jaxtribute-workers", daemon=True
        )

    # --- Joining and leaving ---------------------------------------------------------------

    def join(self) -> None:
        """Meet the others, start JAX, and make sure that all agree.

        Raises:
          DeadlineExceededError: when a worker does not come.
          FailedPreconditionError: when workers differ in what they must agree on.
          WorkerLostError: when one is lost meanwhile.
        """
        self._thread.start()
        try:
            with self._phase("meeting the others"):
                limit = join_limit()
                facts = own_facts(described(self.roll), self._options)
                self._await(self._open(limit, facts))
                self._link.wait_for_all(limit)
            with self._phase("starting JAX"):
                self._interruptibly(self._start_jax)
            self._compare_devices()
            with self._phase("first all-reduce"), _stdout_on_stderr():
                self._interruptibly(self._connect_devices)
        except BaseException as error:
            self._failure = f"{type(error).__name__}: {error}"
            self.leave()
            raise
        _job.report(task=self.tasks[self.index], phase="running")
        self._previous_hook = sys.excepthook
        sys.excepthook = self._on_exception
        atexit.register(self.leave)

    async def _open(self, limit: float, facts: dict[str, Any]) -> None:
        chief = Address.parse(self.roll.addresses[0])
        host, port = chief.host, chief.port
        folder = Path(self._folder.name)
        if self.index == 0:
            roster = Roster(self.tasks, silence_limit())
            self._hub = Hub(roster, folder / "service", _BEAT)
            await self._hub.open(host if chief.is_loopback else None, port)
        await self._link.join(host, port, facts, limit)
        self._tunnel = Tunnel(folder / "client", host, port, self.index)
        await self._tunnel.open()

    def _start_jax(self) -> None:
        folder = Path(self._folder.name)
        if self.index == 0:
            _jax_runtime.serve(folder / "service", len(self.tasks))
        limit = join_limit()
        _jax_runtime.connect(folder / "client", self.index, len(self.tasks), limit)
        _devices.default_devices()

    def _compare_devices(self) -> None:
        local = jax.local_devices()
        platform, kind = local[0].platform, local[0].device_kind
        detail = "" if kind == platform else f" ({kind})"
        own = {"devices": f"{len(local)} {platform.upper()}{detail}"}
        reports = self.agree("devices", json.dumps(own))
        found = differences(self.tasks, [json.loads(report) for report in reports])
        if found is not None:
            raise differing(found)
        self._waits = local[0].platform == "cpu"

    def _connect_devices(self) -> None:
        """Make the connections that collectives use, so that they are known and tried."""
        topology = Topology(jax.devices(), self)
        program = jax.jit(
            topology.on_each_device(
                lambda x: jax.lax.psum(x[0], "replica"), in_specs=PER_REPLICA, out_specs=REPLICATED
            )
        )
        ones = topology.stack([jax.numpy.ones(())] * topology.num_local)
        with self._connections:
            self.carry_out(program, ones, what="the first all-reduce")

    def leave(self) -> None:
        """Part from the others: they learn whether this worker has finished or failed."""
        if self._left:
            return
        self._left = True
        if self._link.is_broken:  # what hangs in C++ must not keep the process from ending
            last_resort = threading.Timer(_LAST_RESORT, os._exit, [_job.EXIT_STUCK])
            last_resort.daemon = True
            last_resort.start()
        if _jax_runtime.is_running():
            _jax_runtime.disconnect()
        self._await(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._folder.cleanup()
        if isinstance(self._too_late, FailedPreconditionError):  # nothing can be raised any more
            say(f"{self.tasks[self.index]}: {self._too_late}")
            sys.stdout.flush()
            os._exit(1)

    async def _close(self) -> None:
        if self._link.joined:
            if self._failure is None:
                await self._link.others_out(_PATIENCE)
                if not self._link.was_raised:
                    self._too_late = self._link.verdict_within(0.0)
            self._link.tell_end(self._failure)
            await self._link.close()
        if self._tunnel is not None:
            await self._tunnel.close()
        if self._hub is not None:
            await self._hub.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await asyncio.sleep(0.01)  # for the connections to close

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        self._failure = f"it raised {kind.__name__}: {error}"
        if not self._left:
            self._link.tell_end(self._failure)
        self._previous_hook(kind, error, trace)

    # --- What all do together --------------------------------------------------------------

    def exchange(self, about: str, report: str, cancelled: Event | None = None) -> list[str]:
        """Send a short text to all workers, and return those of all, by number."""
        return self._link.exchange(about, report, cancelled)

    def agree(self, what: str, report: str) -> list[str]:
        """Exchange in the main flow of the program, where all workers come by in the same order."""
        number = self._numbers[what] = self._numbers.get(what, 0) + 1
        self._link.enter(what, self.time_limit)
        try:
            return self._link.exchange(f"{what}#{number}", report)
        finally:
            self._link.leave()

    def tell(self, about: str) -> None:
        """Let the others know of something that they do not wait for."""
        self._link.tell(about)

    def hear(self, about: str, listener: Callable[[int], None]) -> None:
        """Have a function called when another worker tells of something, or has done so before."""
        self._link.hear(about, listener)

    def give_up(self, why: str) -> None:
        """Have all workers fail with an `AbortedError`, also those that wait in a collective."""
        self._link.tell_broken(why)

    def carry_out(
        self, program: Callable[..., Any], *args: Any, what: str, timeout: float | None = None
    ) -> Any:
        """Run a program in which all workers take part, and wait until it is done."""
        self._link.check()
        self._link.enter(what, self.time_limit if timeout is None else timeout)
        try:
            result = program(*args)
            if self._waits:  # so that a failure is raised here, and not where the result is read
                self._wait_for(result)
            return result
        except (ValueError, RuntimeError) as error:  # what JAX raises when a connection breaks
            if isinstance(error, JaxtributeError) or not _is_broken_connection(error):
                raise
            raise self._explained(error) from None
        finally:
            self._link.leave()

    def _wait_for(self, result: Any) -> None:
        """Wait for a program; its results are there at the same time.

        In Python, as what waits in C++ cannot be reached: Gloo forgets a collective whose
        connection ends in the middle of sending or receiving, and lets it wait.
        """
        arrays = (leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array))
        awaited: Any = next(arrays, None)
        if awaited is None:
            return
        hopeless: float | None = None
        began = time.monotonic()
        while not awaited.is_ready():
            waited = time.monotonic() - began
            time.sleep(min(max(_SHORTEST_POLL, _POLL_SHARE * waited), _LONGEST_POLL))
            if self._link.is_broken:
                hopeless = hopeless or time.monotonic() + _SECONDS_TO_FAIL
                if time.monotonic() > hopeless:
                    _jax_runtime.abandon()
                    self._link.check()
        awaited.block_until_ready()  # which raises what went wrong

    @contextmanager
    def limited(self, seconds: float | None) -> Generator[None]:
        """Wait no longer than this for others to come to what is done inside."""
        before = self.time_limit
        self.time_limit = before if seconds is None else seconds
        try:
            yield
        finally:
            self.time_limit = before

    def _explained(self, error: Exception) -> JaxtributeError:
        verdict = self._link.verdict_within(self._explain_limit)
        if verdict is not None:
            self._link.was_raised = True
            return type(verdict)(*verdict.args)
        first = str(error).splitlines()[0]
        return UnavailableError(f"The connection to another worker broke: {first}")

    def _broken(self) -> None:
        self._connections.shut_down()
        if self._link.is_waiting:
            self._loop.call_soon_threadsafe(
                self._loop.call_later, _LAST_RESORT, self._end_if_stuck, self._link.place
            )

    def _end_if_stuck(self, place: Any) -> None:
        """End a process whose main thread waits in a collective that nothing can interrupt."""
        if self._link.place is not place or self._left:
            return
        verdict = self._link.verdict_within(0.0)
        say(
            f"{self.tasks[self.index]} cannot get out of {place.what}, and ends. "
            f"{type(verdict).__name__}: {verdict}"
        )
        faulthandler.dump_traceback()
        os._exit(_job.EXIT_STUCK)

    # --- Threads ---------------------------------------------------------------------------

    def _await(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _interruptibly(self, fn: Callable[[], None]) -> None:
        """Call what may wait in C++ for another worker, and give up on it when that is lost."""
        outcome: list[BaseException | None] = []

        def run() -> None:
            try:
                fn()
                outcome.append(None)
            except BaseException as error:
                outcome.append(error)

        thread = threading.Thread(target=run, name="jaxtribute-start", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.05)
            try:
                self._link.check()
            except JaxtributeError:
                thread.join(_SECONDS_TO_END)  # C++ must not be left in the middle of it
                raise
        if outcome[0] is not None:
            raise outcome[0]

    @contextmanager
    def _phase(self, name: str) -> Generator[None]:
        _job.report(task=self.tasks[self.index], phase=name)
        started = time.monotonic()
        yield
        self.phases[name] = time.monotonic() - started


@contextmanager
def _stdout_on_stderr() -> Generator[None]:
    """Keep out of the program's output what Gloo prints when it connects."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def described(roll: Workers) -> str:
    """Return all tasks and their addresses, in one line."""
    pairs = zip(roll.tasks, roll.addresses, strict=True)
    return ", ".join(f"{task}={address}" for task, address in pairs)


def _is_broken_connection(error: Exception) -> bool:
    return "Gloo" in str(error) or "onnection closed" in str(error) or "NCCL" in str(error)
