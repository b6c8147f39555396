"""Connections to many tasks, in one thread of their own, for messages that nobody waits for."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from .._limits import say
from ..errors import AlreadyExistsError, FailedPreconditionError, NotFoundError
from ._key import ClusterKey
from ._link import Link
from ._wakeup import Wakeup
from ._wire import Buffer, Kind, WireError, checked_frames, decoder, encode_body
from ._zmq import zmq

_LOOK_EVERY = 0.1  # seconds; at what happens to connections
_TICK_EVERY = 0.25
_LOOK_WHILE_CONNECTING = 0.02
_RETRY_SENDING = 0.005
_MOST_AT_ONCE = 100
_LAST_WORDS = 0.5  # seconds; how long the last messages may take to leave


class ConnectionsHandler(Protocol):
    """What happens with the connections; all of it is called in their thread."""

    def up(self, task: str, incarnation: str) -> None:
        """A task is there, or there again; another incarnation if it was restarted meanwhile."""
        ...

    def down(self, task: str, why: str) -> None:
        """A task has gone; or it does not come for a reason that waiting will not change."""
        ...

    def received(self, task: str, body: Any, frames: list[Buffer]) -> None:
        """A message has come."""
        ...

    def woken(self) -> None:
        """`wake` has been called."""
        ...

    def tick(self, now: float) -> None:
        """Some time has passed: called about four times a second."""
        ...


class _Connection:
    """A link, and what is known of it elsewhere."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.told_up = False
        self.told_why = link.why
        self.queue: deque[tuple[bytes, list[Buffer]]] = deque()


class Connections:
    """Connections to tasks that are made again whenever they end.

    Args:
      own_task: the name of this task.
      key: of the cluster.
      handler: what is told what happens.
      bodies: the Structs that may arrive.
      encryption: whether TCP is encrypted, as it must be on both sides or on none.
    """

    def __init__(
        self,
        own_task: str,
        key: ClusterKey,
        handler: ConnectionsHandler,
        bodies: Any,
        *,
        encryption: bool = True,
    ) -> None:
        self._own_task = own_task
        self._key = key
        self._handler = handler
        self._decode = decoder(bodies)
        self._encryption = encryption
        self._connections: dict[str, _Connection] = {}
        self._new: deque[_Connection] = deque()
        self._posts: deque[tuple[_Connection, int, bytes, list[Buffer]]] = deque()
        self._wakeup = Wakeup()
        self._woken = False
        self._closing = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self._run, name=f"jaxtribute connections of {own_task}", daemon=True
        )
        self._thread.start()

    def connect(self, task: str, address: str) -> None:
        """Connect to a task as soon as it is there, and whenever it is there again.

        Raises:
          AlreadyExistsError: when there is a connection to it.
          InvalidArgumentError: when the address is none.
          FailedPreconditionError: when they are closed.
        """
        link = Link(task, address, self._own_task, self._key, encryption=self._encryption)
        with self._lock:
            self._check_open()
            if task in self._connections:
                raise AlreadyExistsError(f"There is a connection to {task} already.")
            connection = self._connections[task] = _Connection(link)
        self._new.append(connection)
        self._wakeup.wake()

    def post(self, task: str, body: msgspec.Struct, frames: Sequence[Buffer] = ()) -> None:
        """Send a message without waiting; it is dropped when the task is not there.

        Raises:
          InvalidArgumentError: when it cannot be sent.
          NotFoundError: when there is no connection to the task.
          FailedPreconditionError: when they are closed, and it is not the handler that posts.
        """
        # Others may close them while the handler is about to post, which it cannot know.
        if threading.current_thread() is not self._thread:
            self._check_open()
        connection = self._connections.get(task)
        if connection is None:
            raise NotFoundError(f"There is no connection to {task}.")
        encoded = encode_body(body)
        # A message of now is none for a task that has gone and come back before it is sent.
        self._posts.append(
            (connection, connection.link.session, encoded, [*checked_frames(frames)])
        )
        self._wakeup.wake()

    def wake(self) -> None:
        """Have the handler's `woken` called soon."""
        self._woken = True
        self._wakeup.wake()

    def close(self) -> None:
        """End all connections and the thread, when what was posted has left. May repeat."""
        with self._lock:
            self._closing = True
        self._wakeup.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _check_open(self) -> None:
        if self._closing:
            raise FailedPreconditionError(f"The connections of {self._own_task} are closed.")
        if not self._thread.is_alive():
            raise FailedPreconditionError(
                f"The connections of {self._own_task} have ended with an error, printed above."
            )

    def _run(self) -> None:
        connected: list[_Connection] = []
        next_look = next_tick = 0.0
        try:
            while not self._closing:
                now = time.monotonic()
                while self._new:
                    connected.append(self._new.popleft())
                    next_look = now
                if now >= next_look:
                    next_look = now + _LOOK_EVERY
                    for connection in connected:
                        connection.link.advance(now)
                        self._tell(connection)
                        if not connection.link.up:  # it is being made: there is more to see soon
                            next_look = now + _LOOK_WHILE_CONNECTING
                if now >= next_tick:
                    next_tick = now + _TICK_EVERY
                    self._handler.tick(now)
                if self._woken:
                    self._woken = False
                    self._handler.woken()
                full = self._flush(connected)
                until = now + _RETRY_SENDING if full else min(next_look, next_tick)
                self._wait(connected, until)
            self._flush(connected)
        finally:
            self._closing = True
            for connection in connected:
                connection.link.close(_LAST_WORDS)
            self._wakeup.close()

    def _wait(self, connected: list[_Connection], until: float) -> None:
        """Wait until something is to be done, and take what has arrived."""
        open_ones = [c for c in connected if c.link.socket is not None]
        sockets: list[Any] = [(c.link.socket, zmq.POLLIN) for c in open_ones]
        sockets.append((self._wakeup.fileno(), zmq.POLLIN))
        seconds = 0.0 if self._posts or self._woken or self._new else until - time.monotonic()
        ready = {found for found, _ in zmq.zmq_poll(sockets, max(0, round(seconds * 1000 + 0.5)))}
        if self._wakeup.fileno() in ready:
            self._wakeup.clear()
        for connection in open_ones:
            if connection.link.socket in ready:
                self._receive(connection)

    def _receive(self, connection: _Connection) -> None:
        link = connection.link
        for _ in range(_MOST_AT_ONCE):
            arrived = link.receive()
            self._tell(connection)
            if arrived is None:
                return
            envelope, frames = arrived
            try:
                if envelope.kind is not Kind.NOTICE:
                    raise WireError(f"A {envelope.kind.name} arrived, and nothing was asked.")
                body = self._decode(envelope.body)
            except WireError as error:
                say(f"{self._own_task} ends the connection to {link.task}: {error}")
                link.reset(f"it sends what is no message: {error}")
                self._tell(connection)
                return
            self._handler.received(link.task, body, frames)

    def _tell(self, connection: _Connection) -> None:
        link = connection.link
        if link.up and not connection.told_up:
            connection.told_up = True
            assert link.incarnation is not None
            self._handler.up(link.task, link.incarnation)
        elif not link.up and (
            connection.told_up or (link.needs_attention and link.why != connection.told_why)
        ):
            connection.told_up = False
            connection.told_why = link.why
            connection.queue.clear()
            self._handler.down(link.task, link.why)

    def _flush(self, connected: list[_Connection]) -> bool:
        """Send what has been posted; return whether some of it has to wait for room."""
        while self._posts:
            connection, session, body, frames = self._posts.popleft()
            if connection.link.up and connection.link.session == session:
                connection.queue.append((body, frames))
        full = False
        for connection in connected:
            while connection.queue:
                if not connection.link.send(Kind.NOTICE, 0, *connection.queue[0]):
                    full = True
                    break
                connection.queue.popleft()
        return full
