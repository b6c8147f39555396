"""How a parameter server answers requests.

It translates between messages and the store, says who may ask for what, and counts. It knows peers
that have proved who they are, and nothing of sockets. Only what the coordinator sends is unpickled.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from .. import _array_files, rpc
from ..errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    PermissionDeniedError,
    PSUnavailableError,
)
from ..rpc import ArrayType, array_type, as_array, frame_of
from ._cell import Array, zeros
from ._file_jobs import FileJobs
from ._image import Image
from ._messages import (
    Adopt,
    AskFiles,
    BuildSlots,
    Create,
    Delete,
    Done,
    EndLoading,
    Files,
    Gather,
    KeepSnapshots,
    LoadArrays,
    Read,
    RegisterOptimizer,
    Request,
    Restore,
    Restored,
    SaveArrays,
    ServerStatus,
    Span,
    Status,
    Update,
    Updated,
    Values,
    Write,
)
from ._snapshot import Keeper, read_newest, write
from ._store import Store

_COORDINATOR = "chief"
_OBSERVER = "observer"

_FOR_COORDINATOR = (
    Adopt,
    Create,
    Delete,
    Write,
    RegisterOptimizer,
    KeepSnapshots,
    Restore,
    SaveArrays,
    LoadArrays,
    AskFiles,
    EndLoading,
)

# They end a thread that may be waiting for the store.
_WITHOUT_LOCK = (Adopt, KeepSnapshots)


class ParameterServer:
    """Answers what coordinator and workers ask of a parameter server.

    Args:
      task: which task this is, such as `ps:0`.
      key: what snapshots are sealed with.
      clock: tells the time in seconds.
    """

    bodies: Any = Request

    def __init__(
        self, task: str, key: bytes, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.task = task
        self._key = key
        self._clock = clock
        self._started = clock()
        self._store = Store()
        self._lock = threading.Lock()
        """Held by whoever uses the store."""
        self._writing = threading.Lock()
        """Held by whoever writes a snapshot."""
        self._file_jobs = FileJobs()
        self._loading: dict[str, list[int]] = {}  # jobs, and the variables they read for
        self._loaded: deque[str] = deque(maxlen=16)  # jobs that have ended
        self._keeper: Keeper | None = None
        self._kept: tuple[str, float] | None = None
        self._saved = -1
        self._is_restored = False
        self._peers: set[Any] = set()
        self._reads = 0
        self._updates = 0
        self._repeated = 0
        self._bytes_in = 0
        self._bytes_out = 0
        self._handlers: dict[type[Any], Callable[[Any, list[Any]], rpc.Reply]] = {
            Adopt: self._adopt,
            Create: self._create,
            Delete: self._delete,
            Read: self._read,
            Gather: self._gather,
            Write: self._write,
            Update: self._update,
            RegisterOptimizer: self._register_optimizer,
            BuildSlots: self._build_slots,
            KeepSnapshots: self._keep_snapshots,
            Restore: self._restore,
            SaveArrays: self._save_arrays,
            LoadArrays: self._load_arrays,
            AskFiles: self._ask_files,
            EndLoading: self._end_loading,
            Status: self._status,
        }

    def joined(self, peer: rpc.Peer) -> None:
        """Count a peer in."""
        self._peers.add(peer.id)

    def left(self, peer: rpc.Peer) -> None:
        """Count a peer out; what it updated stays."""
        self._peers.discard(peer.id)

    def received(self, peer: rpc.Peer, request: int, body: Any, frames: list[Any]) -> rpc.Reply:
        """Answer a request.

        Raises:
          PermissionDeniedError: when the peer may not ask for it.
          FailedPreconditionError: when it belongs to another coordinator.
          JaxtributeError: when it cannot be done, in which case nothing has changed.
        """
        self._check_permission(peer.task, body)
        kind = type(body)
        self._bytes_in += sum(memoryview(frame).nbytes for frame in frames)
        handler = self._handlers[kind]
        if kind in _WITHOUT_LOCK:
            reply = handler(body, frames)
        else:
            with self._lock:
                if not self._is_for_anybody(kind):
                    self._check_origin(body.origin)
                reply = handler(body, frames)
        self._bytes_out += sum(memoryview(frame).nbytes for frame in reply.frames)
        return reply

    def _is_for_anybody(self, kind: type[Any]) -> bool:
        """Tell whether a request is answered whose ever variables are here."""
        if kind is Restore:
            return self._store.origin is None
        return kind in (Status, AskFiles)

    def _check_origin(self, origin: str) -> None:
        if self._store.origin is None:  # of a new process, as another one asked the old
            raise PSUnavailableError(self.task, "it was restarted, and has lost its variables")
        self._store.check_origin(origin)

    def _check_permission(self, task: str, body: Any) -> None:
        kind = type(body)
        if task == _COORDINATOR or kind is Status:
            return
        if kind in _FOR_COORDINATOR or (kind is Update and body.direct):
            who = "the coordinator"
        elif task == _OBSERVER:
            who = "the coordinator and workers"
        else:
            return
        raise PermissionDeniedError(
            f"{task} asked {self.task} for {kind.__name__}, which only {who} may do."
        )

    def close(self) -> None:
        """End the threads that write and read files, if there are any."""
        self._file_jobs.close()
        self._end_snapshots()

    def _end_snapshots(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
        self._keeper = self._kept = None

    # --- Variables -------------------------------------------------------------------------

    def _adopt(self, body: Adopt, frames: list[Any]) -> rpc.Reply:
        is_new = body.origin != self._store.origin
        if is_new:
            self._end_snapshots()
            self._is_restored = False
        with self._lock:
            if is_new:
                # What is being written goes on: it is the values of then, of a checkpoint that the
                # coordinator before this one was promised. What it was reading for is gone.
                for job in self._loading:
                    self._file_jobs.forget(job)
                self._loading.clear()
            self._store.adopt(body.origin)
        return _done()

    def _create(self, body: Create, frames: list[Any]) -> rpc.Reply:
        # A copy, now: otherwise the first update of many tables would copy them all at once.
        value = _arrays([body.type], frames)[0].copy() if frames else zeros(body.type)
        self._store.create(body.number, body.name, value)
        return _done()

    def _delete(self, body: Delete, frames: list[Any]) -> rpc.Reply:
        self._store.delete(body.numbers)
        return _done()

    def _read(self, body: Read, frames: list[Any]) -> rpc.Reply:
        values = self._store.read(body.spans)
        self._reads += 1
        return self._values(values)

    def _gather(self, body: Gather, frames: list[Any]) -> rpc.Reply:
        types = [ArrayType("int64", (memoryview(frame).nbytes // 8,)) for frame in frames]
        rows = self._store.gather(body.numbers, _arrays(types, frames))
        self._reads += 1
        return self._values(rows)

    def _write(self, body: Write, frames: list[Any]) -> rpc.Reply:
        self._store.write(body.number, body.start, _arrays([body.type], frames)[0])
        return _done()

    def _update(self, body: Update, frames: list[Any]) -> rpc.Reply:
        types = [type for operation in body.operations for type in operation.arrays]
        arrays = iter(_arrays(types, frames))
        operations = [
            (operation, [next(arrays) for _ in operation.arrays]) for operation in body.operations
        ]
        applied, values = self._store.update(
            body.closure,
            body.settled,
            body.based_on,
            operations,
            body.wanted,
            direct=body.direct,
        )
        if applied:
            self._updates += 1
        else:
            self._repeated += 1
        updated = Updated(applied, self._store.clock, [array_type(v) for v in values])
        return rpc.Reply(updated, [frame_of(value) for value in values])

    def _values(self, values: Sequence[Array]) -> rpc.Reply:
        body = Values([array_type(value) for value in values], self._store.clock)
        return rpc.Reply(body, [frame_of(value) for value in values])

    # --- Optimizers ------------------------------------------------------------------------

    def _register_optimizer(self, body: RegisterOptimizer, frames: list[Any]) -> rpc.Reply:
        _check_count(1, frames)
        self._store.register_optimizer(body.number, bytes(frames[0]))
        return _done()

    def _build_slots(self, body: BuildSlots, frames: list[Any]) -> rpc.Reply:
        self._store.build_slots(body.optimizer, body.number, body.slots)
        return _done()

    # --- Snapshots -------------------------------------------------------------------------

    def _keep_snapshots(self, body: KeepSnapshots, frames: list[Any]) -> rpc.Reply:
        with self._lock:
            self._check_origin(body.origin)
        if not body.seconds >= 0:
            raise InvalidArgumentError(
                f"Snapshots are written every so many seconds, got {body.seconds}."
            )
        directory, seconds = body.directory, body.seconds
        if seconds == 0:
            with self._lock:
                image = self._store.image()
            try:
                with self._writing:
                    write(image, directory, self.task, self._key)
            except OSError as error:
                raise FailedPreconditionError(
                    f"{self.task} cannot write snapshots to {directory}: {error}. Choose a "
                    "directory that all parameter servers can write to."
                ) from error
        elif self._kept != (directory, seconds):
            self._end_snapshots()
            self._saved = -1
            self._kept = directory, seconds
            self._keeper = Keeper(
                self._take,
                lambda image, is_cancelled: self._save(image, directory, is_cancelled),
                f"a snapshot of {self.task} in {directory}",
                seconds,
            )
        return _done()

    def _take(self) -> Image | None:
        with self._lock:
            return None if self._store.changes == self._saved else self._store.image()

    def _save(self, image: Image, directory: str, is_cancelled: Callable[[], bool]) -> None:
        with self._writing:
            write(image, directory, self.task, self._key, is_cancelled)
        self._saved = image.changes

    def _restore(self, body: Restore, frames: list[Any]) -> rpc.Reply:
        # Asked again, it must not go back to the snapshot: updates may have come meanwhile.
        if not self._is_restored:
            image = read_newest(body.directory, self.task, self._key, body.origin)
            self._store.adopt(body.origin)  # not earlier: nobody may see it without variables
            self._store.load(image)
            self._is_restored = True
        return rpc.Reply(Restored(self._store.clock, self._store.numbers))

    # --- Checkpoints -----------------------------------------------------------------------

    def _save_arrays(self, body: SaveArrays, frames: list[Any]) -> rpc.Reply:
        values = self._store.read([Span(each.number) for each in body.arrays])
        parts = [(a.name, a.start, v) for a, v in zip(body.arrays, values, strict=True)]

        def work() -> list[_array_files.Checksums]:
            _array_files.write(Path(body.place), parts)
            return [_array_files.checksums(value) for value in values]

        self._file_jobs.begin(body.job, work)
        return _done()

    def _load_arrays(self, body: LoadArrays, frames: list[Any]) -> rpc.Reply:
        stored = [each.stored for each in body.arrays]
        numbers = [each.number for each in body.arrays]
        self._store.check_fit(numbers, stored)
        self._file_jobs.begin(
            body.job, lambda: list(_array_files.read(Path(body.directory), stored))
        )
        self._loading[body.job] = numbers
        return _done()

    def _ask_files(self, body: AskFiles, frames: list[Any]) -> rpc.Reply:
        files = self._file_jobs.ask(body.job)
        if files.is_done and files.failure is None and body.job not in self._loading:
            checksums = self._file_jobs.result(body.job)
            files = msgspec.structs.replace(files, checksums=checksums)
        return rpc.Reply(files)

    def _end_loading(self, body: EndLoading, frames: list[Any]) -> rpc.Reply:
        if body.job in self._loaded:  # requests may come twice
            return rpc.Reply(Files(True, None))
        if body.job not in self._loading:
            return rpc.Reply(self._file_jobs.ask(body.job))
        if body.is_used:
            values = self._file_jobs.result(body.job)
            for number, value in zip(self._loading[body.job], values, strict=True):
                self._store.write(number, 0, value)
        self._file_jobs.forget(body.job)
        del self._loading[body.job]
        self._loaded.append(body.job)
        return rpc.Reply(Files(True, None))

    # --- Figures ---------------------------------------------------------------------------

    def _status(self, body: Status, frames: list[Any]) -> rpc.Reply:
        return rpc.Reply(
            ServerStatus(
                task=self.task,
                seconds=self._clock() - self._started,
                variables=self._store.variable_count,
                bytes_held=self._store.bytes_held,
                updates=self._updates,
                repeated_updates=self._repeated,
                reads=self._reads,
                bytes_in=self._bytes_in,
                bytes_out=self._bytes_out,
                staleness=self._store.staleness,
                peers=len(self._peers),
            )
        )


def _done() -> rpc.Reply:
    return rpc.Reply(Done())


def _arrays(types: Sequence[ArrayType], frames: Sequence[Any]) -> list[Array]:
    _check_count(len(types), frames)
    return [as_array(type, frame) for type, frame in zip(types, frames, strict=True)]


def _check_count(expected: int, frames: Sequence[Any]) -> None:
    if len(frames) != expected:
        raise InvalidArgumentError(
            f"A request described {expected} arrays, and came with {len(frames)} frames."
        )
