"""A server: where a task listens, and who is asked what to answer."""

from __future__ import annotations

import secrets
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from .._limits import say
from ..cluster._address import Address
from ..cluster._reachability import check_can_bind, resolve_host
from ..errors import FailedPreconditionError, JaxtributeError
from . import _endpoints, _sockets
from ._channel import Reply
from ._door import Door, Peer, Session
from ._errors import failure_of
from ._handshake import Hello, ServerHandshake
from ._key import ClusterKey
from ._wakeup import Wakeup
from ._wire import (
    Buffer,
    Envelope,
    Kind,
    WireError,
    checked_frames,
    decoder,
    encode_body,
)
from ._zmq import zmq

_TIDY_EVERY = 1.0
_RETRY_SENDING = 0.005
_MOST_AT_ONCE = 100
_LAST_WORDS = 0.5  # seconds; how long the last messages may take to leave


class Handler(Protocol):
    """What answers the peers of a `Listener`; all of it is called in the thread that serves."""

    @property
    def bodies(self) -> Any:
        """The Structs that it understands."""
        ...

    def joined(self, peer: Peer) -> None:
        """A peer has connected."""
        ...

    def left(self, peer: Peer) -> None:
        """A peer's connection has ended; not told of those that `stop` ends."""
        ...

    def received(self, peer: Peer, request: int, body: Any, frames: list[Buffer]) -> Reply | None:
        """Do what a peer asks, and return the answer, or None if that follows later.

        A `request` of 0 is none: a notice, which is not answered.
        """
        ...


class Listener:
    """A task's place in the network; it listens from the beginning, and answers in `serve`.

    Args:
      address: where to listen.
      task: the name of this task.
      key: of the cluster.
      handler: what answers.
      encryption: whether TCP is encrypted, as it must be on both sides or on none.
      incarnation: that of a listener before it, whose peers are to take it for the same.

    Raises:
      FailedPreconditionError: when the port is in use.
      InvalidArgumentError: when it is no address, or not one of this machine.
      PermissionDeniedError: when the port is not for everybody.
      UnavailableError: when the host is not known.
      DeadlineExceededError: when nobody answers who would know.
    """

    def __init__(
        self,
        address: str,
        task: str,
        key: ClusterKey,
        handler: Handler,
        *,
        encryption: bool = True,
        incarnation: str | None = None,
    ) -> None:
        self.address = address
        self.incarnation = incarnation or secrets.token_hex(8)
        self.bytes_in = 0
        self.bytes_out = 0
        self._task = task
        self._key = key
        self._reception = _Reception(task, self.incarnation, key, handler, self._post)
        self._outgoing: deque[tuple[bytes, Kind, int, bytes, list[Buffer]]] = deque()
        self._waiting: set[Session] = set()
        self._stopping = False
        self._linger = _LAST_WORDS
        self._serving = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        parsed = _endpoints.parsed(address, task)
        check_can_bind(task, address)
        self._context = _sockets.new_context()
        self._wakeup = Wakeup()
        self._doors: dict[bytes, Door] = {}
        self._path: Path | None = None
        try:
            self._open_tcp(parsed, encryption)
            self._open_unix_socket(parsed)
        except BaseException:
            self._close(0.0)
            raise

    def serve(self) -> None:
        """Answer in this thread until `stop` is called.

        Raises:
          FailedPreconditionError: when another thread does already.
        """
        if not self._serving.acquire(blocking=False):
            raise FailedPreconditionError(f"{self._task} is served by another thread already.")
        try:
            if self._closed.is_set():
                return
            self._thread = threading.current_thread()
            try:
                self._serve()
            finally:
                self._close(self._linger)
        finally:
            self._thread = None
            self._serving.release()

    def send(self, peer: Peer, body: msgspec.Struct, frames: Sequence[Buffer] = ()) -> None:
        """Send a peer a message, from any thread; it is dropped when the peer has gone.

        Raises:
          InvalidArgumentError: when it cannot be sent.
        """
        self._post(peer, Kind.NOTICE, 0, encode_body(body), [*checked_frames(frames)])

    def answer(
        self, peer: Peer, request: int, body: msgspec.Struct, frames: Sequence[Buffer] = ()
    ) -> None:
        """Answer a request that the handler has not, from any thread.

        Raises:
          InvalidArgumentError: when it cannot be sent.
        """
        self._post(peer, Kind.REPLY, request, encode_body(body), [*checked_frames(frames)])

    def stop(self) -> None:
        """Have `serve` return, from any thread or a signal handler. May repeat."""
        self._stopping = True
        self._wakeup.wake()
        # Nobody else closes what nobody serves.
        if self._thread is None and self._serving.acquire(blocking=False):
            try:
                self._close(self._linger)
            finally:
                self._serving.release()

    def abandon(self) -> None:
        """End as a process does that is killed: at once, and without last words."""
        self._linger = 0.0
        self.stop()
        if self._thread is not threading.current_thread():
            self._closed.wait(10.0)

    def _open_tcp(self, address: Address, encryption: bool) -> None:
        socket = self._new_door(b"t")
        if encryption:
            _sockets.encrypt_as_server(socket, self._key)
        bound, failure = 0, None
        for number in resolve_host(str(address), self._task):
            socket.setsockopt(zmq.IPV6, ":" in number)
            try:
                socket.bind(_endpoints.tcp_endpoint(Address(number, address.port)))
                bound += 1
            except zmq.ZMQError as error:  # such as IPv6 on a machine that has none
                failure = error
        if not bound:
            raise FailedPreconditionError(
                f"{self._task} cannot listen on {address}: {failure}. Has another process begun to "
                "listen there a moment ago?"
            ) from failure

    def _open_unix_socket(self, address: Address) -> None:
        path = _endpoints.unix_socket(address, self._key)
        if path is None:
            return
        if why := _endpoints.make_directory(path.parent):
            say(f"{self._task} listens for peers on this machine on TCP only: {why}.")
            return
        _endpoints.sweep(path.parent)
        # The port is ours now, so whatever is left of that name is of a process that was killed.
        self._new_door(b"u").bind(f"ipc://{path}")
        self._path = path

    def _new_door(self, name: bytes) -> zmq.Socket[bytes]:
        socket = _sockets.new_socket(self._context, zmq.ROUTER)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._doors[name] = Door(name, socket, self._reception, self._count)
        return socket

    def _serve(self) -> None:
        poller = zmq.Poller()
        for door in self._doors.values():
            poller.register(door.socket, zmq.POLLIN)
            poller.register(door.monitor, zmq.POLLIN)
        poller.register(self._wakeup.fileno(), zmq.POLLIN)
        next_tidy = 0.0
        while not self._stopping:
            self._flush()
            now = time.monotonic()
            if now >= next_tidy:
                next_tidy = now + _TIDY_EVERY
                for door in self._doors.values():
                    door.tidy(now)
            seconds = _RETRY_SENDING if self._waiting else next_tidy - now
            ready = dict(poller.poll(max(1, round(seconds * 1000))))
            if self._wakeup.fileno() in ready:
                self._wakeup.clear()
            for door in self._doors.values():
                # What a peer said before its connection ended comes first.
                ended = door.ended() if door.monitor in ready else []
                if door.socket in ready or ended:
                    self._take(door)
                for session in ended:
                    door.leave(session)
        self._flush()

    def _take(self, door: Door) -> None:
        for _ in range(_MOST_AT_ONCE):
            if not door.receive():
                return
            self._flush()

    def _post(
        self, peer: Peer, kind: Kind, request: int, body: bytes, frames: list[Buffer]
    ) -> None:
        self._outgoing.append((peer.id, kind, request, body, frames))
        if threading.current_thread() is not self._thread:
            self._wakeup.wake()

    def _flush(self) -> None:
        while self._outgoing:
            id, kind, request, body, frames = self._outgoing.popleft()
            door = self._doors[id[:1]]
            if (session := door.sessions.get(id[1:])) is not None:
                door.send(session, kind, request, body, frames)
                if session.unsent:
                    self._waiting.add(session)
        if self._waiting:
            self._waiting = {s for s in self._waiting if not self._push(s)}

    def _push(self, session: Session) -> bool:
        return self._doors[session.peer.id[:1]].push(session)

    def _close(self, linger: float) -> None:
        if self._closed.is_set():
            return
        if self._path is not None:  # while the port is ours: then the next server's has its name
            self._path.unlink(missing_ok=True)
        for door in self._doors.values():
            door.close(linger)
        self._doors.clear()
        self._context.term()  # returns when the port is free again
        self._wakeup.close()
        self._closed.set()

    def _count(self, bytes_in: int, bytes_out: int) -> None:
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out


class _Reception:
    """What happens with everybody who has come in, through whichever door."""

    def __init__(
        self,
        task: str,
        incarnation: str,
        key: ClusterKey,
        handler: Handler,
        post: Callable[[Peer, Kind, int, bytes, list[Buffer]], None],
    ) -> None:
        self.sessions = 0
        self._task = task
        self._incarnation = incarnation
        self._key = key
        self._handler = handler
        self._decode = decoder(handler.bodies)
        self._post = post

    def handshake(self, hello: Hello) -> ServerHandshake:
        return ServerHandshake(self._key, self._task, self._incarnation, hello)

    def joined(self, session: Session) -> None:
        self.sessions += 1
        self._handler.joined(session.peer)

    def left(self, session: Session) -> None:
        self.sessions -= 1
        self._handler.left(session.peer)

    def deliver(self, session: Session, envelope: Envelope, frames: list[Buffer]) -> None:
        peer, request = session.peer, envelope.request
        if envelope.kind is not (Kind.REQUEST if request else Kind.NOTICE):
            raise WireError(f"A {envelope.kind.name} arrived, with {request} as its request.")
        body = self._decode(envelope.body)
        try:
            reply = self._handler.received(peer, request, body, frames)
            if reply is not None:
                encoded, sent = encode_body(reply.body), [*checked_frames(reply.frames)]
                self._post(peer, Kind.REPLY, request, encoded, sent)
        except Exception as error:
            if not isinstance(error, JaxtributeError):  # a bug: of interest on both sides
                say(f"{self._task} failed at a {type(body).__name__} of {peer.task}:")
                traceback.print_exc()
            elif not request:
                say(f"{self._task} could not do what a notice of {peer.task} says: {error}")
            if request:
                self._post(peer, Kind.ERROR, request, encode_body(failure_of(error)), [])
