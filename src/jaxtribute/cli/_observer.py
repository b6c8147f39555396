"""Asks the tasks of a running cluster how they are.

Each task is asked in a thread of its own, which owns the connection to it: one that does not
answer keeps nobody else waiting, and is asked again once it has.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..coordinator._messages import Status as AskWorker
from ..coordinator._messages import WorkerStatus
from ..errors import JaxtributeError
from ..ps._messages import ServerStatus
from ..ps._messages import Status as AskServer
from ..rpc import Channel, ClusterKey, exchange
from ..rpc._sockets import client_context
from ._rates import Sample, Samples

__all__ = ["Observer"]

_ANSWER_SECONDS = 2.0
_CONNECT_SECONDS = 1.7  # less: why there is no connection says more than that there is no answer
_OWN_NAME = "observer"
_REQUESTS = {
    "worker": (AskWorker(), WorkerStatus),
    "ps": (AskServer(), ServerStatus),
}


class Observer:
    """Asks workers and parameter servers how they are.

    Args:
      addresses: of the tasks, such as `worker:0`.
      key: the key of the cluster.
      encryption: whether connections to other machines are encrypted.
    """

    def __init__(self, addresses: Mapping[str, str], key: ClusterKey, *, encryption: bool) -> None:
        client_context()  # for which ZeroMQ is imported: that is not the tasks' time
        self._askers = [_Asker(t, a, key, encryption=encryption) for t, a in addresses.items()]

    def ask(self) -> Samples:
        """Return what the tasks answer, after two seconds and a little at most."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        for asker in self._askers:
            asker.ask()
        samples = [asker.answer(deadline) for asker in self._askers]
        return Samples(
            [sample for sample in samples if sample.task.startswith("worker:")],
            [sample for sample in samples if sample.task.startswith("ps:")],
        )

    def close(self) -> None:
        """End the threads and close the connections."""
        for asker in self._askers:
            asker.close()
        for asker in self._askers:
            asker.join()


class _Asker:
    """The thread that asks one task."""

    def __init__(self, task: str, address: str, key: ClusterKey, *, encryption: bool) -> None:
        self._task = task
        self._address = address
        self._key = key
        self._encryption = encryption
        self._wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Sample[Any]] = queue.SimpleQueue()
        self._asked_at: float | None = None  # None when nothing is awaited
        self._channel: Channel | None = None
        self._thread = threading.Thread(target=self._run, name=f"ask {task}", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Ask the task, if it does not owe an answer already."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            self._wanted.put(True)

    def answer(self, deadline: float) -> Sample[Any]:
        """Return the answer, or that there is none yet."""
        assert self._asked_at is not None
        try:
            sample = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            waited = time.monotonic() - self._asked_at
            why = f"it has not answered for {waited:.0f} s"
            return Sample(self._task, self._address, why=why)
        self._asked_at = None
        return sample

    def close(self) -> None:
        """Have the thread end, also if it waits for an answer."""
        self._wanted.put(False)
        if (channel := self._channel) is not None:
            channel.close()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _run(self) -> None:
        while self._wanted.get():
            try:
                self._channel = self._channel or self._connect()
                self._answers.put(self._sample(self._channel))
            except JaxtributeError as error:
                self._disconnect()
                self._answers.put(Sample(self._task, self._address, why=_why(error)))
        self._disconnect()

    def _disconnect(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _connect(self) -> Channel:
        _, reply = _REQUESTS[self._task.partition(":")[0]]
        return Channel(
            self._address, self._task, _OWN_NAME, self._key, reply, encryption=self._encryption
        )

    def _sample(self, channel: Channel) -> Sample[Any]:
        request, _ = _REQUESTS[self._task.partition(":")[0]]
        calls: Sequence[tuple[Channel, Any, Sequence[Any]]] = [(channel, request, ())]
        (reply,) = exchange(calls, what="its status", patience=_CONNECT_SECONDS)
        return Sample(self._task, self._address, reply.body, channel.incarnation or "")


def _why(error: JaxtributeError) -> str:
    return str(getattr(error, "why", error))
