"""The messages of a worker: what its coordinator tells it, and what it tells its coordinator.

A worker belongs to the coordinator that adopted it last. It takes nothing from another one, and
answers anybody of the cluster how it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import msgspec

from .._limits import say
from ..errors import FailedPreconditionError, PermissionDeniedError
from ..rpc import Buffer, ClusterKey, Peer, Reply, WireError
from ._adoption import BLOB_BYTES, Adoption, Job
from ._executor import Executor
from ._messages import (
    Adopt,
    Beat,
    Blobs,
    Build,
    Built,
    Cancel,
    Forget,
    Need,
    Pulse,
    Ready,
    Recall,
    Replaced,
    Run,
    Status,
    ToWorker,
    WorkerStatus,
)
from ._outbox import Outbox

__all__ = ["Worker"]

_BEAT_SECONDS = 0.25
_KEPT_SECONDS = 600.0  # of what a coordinator that is gone has left here


class _Sender(Protocol):
    """The part of `rpc.Listener` that a worker uses."""

    bytes_in: int
    bytes_out: int

    def send(self, peer: Peer, body: msgspec.Struct, frames: Sequence[Buffer] = ()) -> None: ...


class Worker:
    """One worker: a handler of messages, and the executor they are for.

    Args:
      task: its name.
      key: the secret of the cluster.
      encryption: whether connections to parameter servers are encrypted.
      announce: told, in words, what a user should know.
      reached: called by the thread of closures at points where a test may hold it.
      blob_bytes: how much of functions and constants to keep.
    """

    bodies: Any = ToWorker

    def __init__(
        self,
        task: str,
        key: ClusterKey,
        *,
        encryption: bool = True,
        announce: Callable[[str], None] = say,
        reached: Callable[[str], None] = lambda point: None,
        blob_bytes: int = BLOB_BYTES,
    ) -> None:
        self._task = task
        self._key = key
        self._encryption = encryption
        self._announce = announce
        self._reached = reached
        self._blob_bytes = blob_bytes
        self._sender: _Sender | None = None
        self._coordinator: Peer | None = None
        self._left_at: float | None = None
        self._earlier: set[str] = set()  # lives of coordinators that others have replaced
        self._pulse = Pulse(0, 0, 0)
        self._started = time.monotonic()
        self._outbox = Outbox(self._send)
        self._stopping = threading.Event()
        self._beats = threading.Thread(target=self._beat, name=f"{task} beats", daemon=True)
        self.executor = Executor(self._outbox, self)

    def start(self) -> None:
        """Begin to give signs of life."""
        self._beats.start()

    def send_by(self, sender: _Sender) -> None:
        """Send by this listener, of which the worker is the handler."""
        self._sender = sender

    def stop(self) -> None:
        """Send no more, and begin no closure."""
        self.executor.stop()
        self._stopping.set()
        self._outbox.wake()
        if self._beats.is_alive() and self._beats is not threading.current_thread():
            self._beats.join()

    # --- rpc.Handler -----------------------------------------------------------------------

    def joined(self, peer: Peer) -> None:
        """Nothing is owed to whoever connects: a coordinator speaks first."""

    def left(self, peer: Peer) -> None:
        """Wait for the coordinator to return; it may, with all its closures."""
        if peer == self._coordinator:
            self.disconnected()

    def disconnected(self) -> None:
        """Begin no closure until the coordinator is back."""
        self._coordinator = None
        self._left_at = time.monotonic()
        self.executor.detach()

    def received(self, peer: Peer, request: int, body: Any, frames: list[Buffer]) -> Reply | None:
        """Do what a message says.

        Raises:
          PermissionDeniedError: when its sender is no coordinator.
          FailedPreconditionError: when its sender is a coordinator of earlier.
        """
        if isinstance(body, Status):
            return Reply(self.status())
        if peer.task.partition(":")[0] != "chief":
            raise PermissionDeniedError(
                f"{peer.task} may not tell {self._task} what to do: only the coordinator may."
            )
        if isinstance(body, Adopt):
            self._adopt(peer, body)
        elif peer != self._coordinator:
            raise FailedPreconditionError(
                f"{self._task} does not work for this coordinator: another coordinator has taken "
                "over, or the worker was restarted."
            )
        else:
            self._obey(body, frames)
        return None

    def _adopt(self, peer: Peer, message: Adopt) -> None:
        if message.origin in self._earlier:  # it was away, and does not know
            self._tell_replaced(peer)
            return
        known = self.executor.adoption
        if known is None or known.origin != message.origin:
            self._announce(f"{self._task} works for a coordinator now")
        if known is not None and known.origin != message.origin:
            self._earlier.add(known.origin)
            self._tell_replaced(self._coordinator)
        self._coordinator = peer
        self._left_at = None
        self.executor.adopt(
            Adoption(
                self._task,
                message,
                self._key,
                encryption=self._encryption,
                blob_bytes=self._blob_bytes,
            )
        )

    def _obey(self, body: Any, frames: list[Buffer]) -> None:
        executor = self.executor
        adoption = executor.adoption
        assert adoption is not None  # as it has a coordinator
        match body:
            case Run():
                executor.add(_jobs(body, frames))
            case Blobs():
                if len(body.digests) != len(frames):
                    raise WireError(f"{len(body.digests)} blobs came in {len(frames)} frames.")
                executor.add_blobs(body.digests, frames)
            case Build():
                adoption.add_builder(body.resource, body.function)
            case Forget():
                adoption.forget(body.resources)
            case Cancel():
                executor.cancel(body.numbers)
            case Recall():
                executor.recall(body.count)
            case Pulse():
                self._pulse = body
            case _:
                raise WireError(f"A worker does not understand {type(body).__name__}.")

    def status(self) -> WorkerStatus:
        """Return the figures of this worker."""
        executor = self.executor
        adoption = executor.adoption
        return WorkerStatus(
            task=self._task,
            seconds=time.monotonic() - self._started,
            origin="" if adoption is None else adoption.origin,
            running=executor.running,
            waiting=executor.waiting,
            finished=executor.finished,
            failed=executor.failed,
            bytes_in=0 if self._sender is None else self._sender.bytes_in,
            bytes_out=0 if self._sender is None else self._sender.bytes_out,
            queued=self._pulse.queued,
            running_everywhere=self._pulse.running,
            finished_everywhere=self._pulse.finished,
        )

    # --- executor's Listeners --------------------------------------------------------------

    def opened(self, adoption: Adoption) -> None:
        """Tell the coordinator that closures may come."""
        self._send(Ready(adoption.origin, jax.local_device_count()))

    def needs(self, adoption: Adoption, digests: list[str]) -> None:
        """Ask the coordinator for blobs."""
        self._send(Need(adoption.origin, digests))

    def built(self, adoption: Adoption, optimizer: int, variables: list[list[int]]) -> None:
        """Tell the coordinator that the state of an optimizer is on the servers."""
        self._send(Built(adoption.origin, optimizer, variables))

    def reached(self, point: str) -> None:
        """Let a test hold the thread of closures here."""
        self._reached(point)

    # --- Sending ---------------------------------------------------------------------------

    def _tell_replaced(self, peer: Peer | None) -> None:
        if peer is not None and self._sender is not None:
            self._sender.send(peer, Replaced())

    def _send(self, body: msgspec.Struct, frames: Sequence[Buffer] = ()) -> bool:
        peer, sender = self._coordinator, self._sender
        if peer is None or sender is None or self._stopping.is_set():
            return False
        sender.send(peer, body, frames)
        return True

    def _beat(self) -> None:
        """Tell the coordinator a few times a second that this process lives."""
        next_beat = 0.0
        while not self._stopping.is_set():
            now = time.monotonic()
            if now >= next_beat:
                next_beat = now + _BEAT_SECONDS
                executor = self.executor
                self._send(Beat(executor.running, executor.waiting, executor.finished))
                if self._left_at is not None and now - self._left_at > _KEPT_SECONDS:
                    self._left_at = None
                    executor.give_up()
            self._outbox.wait(max(0.0, next_beat - time.monotonic()))


def _jobs(message: Run, frames: list[Buffer]) -> list[Job]:
    """Divide the frames of a message between its closures."""
    jobs: list[Job] = []
    first = 0
    for work in message.works:
        if work.frames < 0:
            raise WireError(f"A closure came with {work.frames} frames.")
        jobs.append(Job(work, frames[first : first + work.frames], message.settled))
        first += work.frames
    if first != len(frames):
        raise WireError(f"Closures in {first} frames came in {len(frames)}.")
    return jobs
