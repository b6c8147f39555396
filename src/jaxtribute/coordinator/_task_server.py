"""One task of a cluster that serves: its listener, what answers there, and their threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .._limits import say
from ..cluster import ClusterSpec, Task
from ..ps._server import ParameterServer
from ..rpc import ClusterKey, Handler, Listener
from ._worker import Worker

__all__ = ["TaskServer"]


class TaskServer:
    """A worker or a parameter server, in threads of this process.

    Args:
      cluster: all tasks.
      task: the one that it is.
      key: the secret of the cluster.
      encryption: whether what goes to other machines is encrypted.
      announce: told, in words, what a user should know.
      reached: called by the thread of closures at points where a test may hold it.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        task: Task,
        key: ClusterKey,
        *,
        encryption: bool = True,
        announce: Callable[[str], None] = say,
        reached: Callable[[str], None] = lambda point: None,
    ) -> None:
        self.task = task
        self.address = cluster.task_address(task.job, task.index)
        self._key = key
        self._encryption = encryption
        self.worker: Worker | None = None
        self._store: ParameterServer | None = None
        if task.job == "worker":
            self.worker = Worker(
                str(task), key, encryption=encryption, announce=announce, reached=reached
            )
            self._handler: Handler = self.worker
        else:
            self._handler = self._store = ParameterServer(str(task), key.derive("snapshots"))
        # Reentrant, as a signal may come to the thread that has it.
        self._changed = threading.Condition(threading.RLock())
        self._stopped = False
        self._joined = False
        self._error: BaseException | None = None
        self._listener: Listener | None = None
        self._closures: threading.Thread | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Listen, and run what arrives in threads of its own."""
        self._listen()
        if self.worker is not None:
            self.worker.start()
            executor = self.worker.executor
            self._closures = self._run("closures", lambda: executor.work(lambda: not self._joined))

    def _listen(self, incarnation: str | None = None) -> None:
        listener = Listener(
            self.address,
            str(self.task),
            self._key,
            self._handler,
            encryption=self._encryption,
            incarnation=incarnation,
        )
        if self.worker is not None:
            self.worker.send_by(listener)
        self._listener = listener
        self._run("messages", listener.serve)

    def disconnect(self) -> None:
        """Close the sockets without a word, and keep everything, as when a cable is pulled."""
        assert self._listener is not None
        self._listener.abandon()
        if self.worker is not None:
            self.worker.disconnected()

    def reconnect(self) -> None:
        """Listen again, after `disconnect`, as the same process."""
        assert self._listener is not None
        self._listen(self._listener.incarnation)

    def join(self) -> None:
        """Run closures in this thread, until the server is stopped.

        Raises:
          BaseException: what ended the server, if it was no `stop`.
        """
        with self._changed:
            first, self._joined = not self._joined, True
        if self.worker is not None and self._closures is not None and first:
            executor = self.worker.executor
            executor.wake()
            self._closures.join()
            if not self._stopped:
                executor.work()
        with self._changed:
            self._changed.wait_for(lambda: self._stopped)
        if self._error is not None:
            raise self._error

    def end_soon(self) -> bool:
        """Have `join` return, and tell whether a closure runs at the moment; for signals."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        return self.worker is not None and self.worker.executor.stop()

    def stop(self) -> None:
        """Say goodbye and close the sockets; nobody hears of a closure that still runs."""
        self.end_soon()
        if self.worker is not None:
            self.worker.stop()
        if self._store is not None:
            self._store.close()
        if self._listener is not None:
            self._listener.stop()

    def abandon(self) -> None:
        """Close the sockets without a word, as when the process is killed."""
        if self._listener is not None:
            self._listener.abandon()
        self.stop()

    def wait(self, seconds: float) -> list[str]:
        """Wait until all threads of a stopped server have ended, and return which have not."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(seconds)
        return [thread.name for thread in self._threads if thread.is_alive()]

    def _run(self, what: str, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # told by `join`: nothing stops in silence
                self._error = error
                say(f"{self.task} ends, as its thread of {what} failed: {error!r}")
                self.stop()

        thread = threading.Thread(target=guarded, name=f"{self.task} {what}", daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread
