"""One socket of a server: who has come in through it, and what they say.

Nobody is a peer before the handshake is over, and nothing that somebody else sends is decoded but
the messages of the handshake. A session belongs to one connection and ends with it.
"""

from __future__ import annotations

import hmac
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ..errors import JaxtributeError
from . import _sockets
from ._errors import failure_of
from ._handshake import Hello, Proof, Refused, ServerHandshake, Tokens
from ._wire import (
    LONGEST_GREETING,
    LONGEST_HEADER,
    MOST_FRAMES,
    NO_TOKEN,
    PROTOCOL,
    Buffer,
    Envelope,
    Kind,
    WireError,
    decoder,
    encode,
    encode_body,
    open_envelope,
    size_of,
)
from ._zmq import zmq

MOST_SESSIONS = 1024
_MOST_GREETED = 1024
_MOST_UNSENT = 10_000
"""Messages that wait for a peer which does not read them, beside those in its socket."""

_decode_greeting = decoder(Hello | Proof)


@dataclass(frozen=True)
class Peer:
    """Who is at the other end of a connection, and has proved it.

    Args:
      id: of the connection; a peer that connects again has another.
      task: its name.
      incarnation: which life of the other side's object; the same if it connects again.
    """

    id: bytes
    task: str
    incarnation: str


@dataclass(eq=False)
class Session:
    """A connection to a peer."""

    peer: Peer
    routing_id: bytes
    descriptor: int
    tokens: Tokens
    unsent: deque[tuple[bytes, list[Buffer]]] = field(default_factory=deque)


class Host(Protocol):
    """What doors have in common: the server they belong to."""

    sessions: int
    """How many there are, over all doors."""

    def handshake(self, hello: Hello) -> ServerHandshake:
        """Return the server's side of a new handshake."""
        ...

    def joined(self, session: Session) -> None:
        """A session has begun."""
        ...

    def left(self, session: Session) -> None:
        """A session has ended."""
        ...

    def deliver(self, session: Session, envelope: Envelope, frames: list[Buffer]) -> None:
        """Do what a message says."""
        ...


class Door:
    """One ROUTER socket.

    Args:
      name: one byte, different from other doors'.
      socket: bound already.
      host: the server.
      count: is told how many bytes go in and out.
    """

    def __init__(
        self,
        name: bytes,
        socket: zmq.Socket[bytes],
        host: Host,
        count: Callable[[int, int], None],
    ) -> None:
        self.socket = socket
        self.monitor = _sockets.monitor(socket)
        self.sessions: dict[bytes, Session] = {}
        self._name = name
        self._host = host
        self._count = count
        self._greeted: dict[bytes, tuple[ServerHandshake, float]] = {}

    def receive(self) -> bool:
        """Take one message, and return whether there was one."""
        parts = _sockets.receive(self.socket)
        if parts is None:
            return False
        self._count(sum(map(len, parts)), 0)
        if len(parts) < 2:
            return True  # nothing but who sent it: no message of ours has no header
        routing_id = parts[0].bytes
        session = self.sessions.get(routing_id)
        try:
            if len(parts) - 2 > MOST_FRAMES:
                raise WireError(f"A message has {len(parts) - 2} frames; {MOST_FRAMES} may be.")
            longest = LONGEST_GREETING if session is None else LONGEST_HEADER
            envelope = open_envelope(_sockets.buffer_of(parts[1]), longest)
            if envelope.version != PROTOCOL:
                raise WireError(
                    f"This server speaks version {PROTOCOL} of the protocol, and was greeted in "
                    f"version {envelope.version}. Install the same version of jaxtribute for all "
                    "tasks."
                )
            if session is None or envelope.kind is Kind.HELLO:
                self._greet(routing_id, envelope, parts)
            elif not hmac.compare_digest(envelope.token, session.tokens.to_server):
                self._refuse(routing_id, "UnauthenticatedError", "Introduce yourself.", again=True)
            else:
                frames: list[Buffer] = [_sockets.buffer_of(part) for part in parts[2:]]
                self._host.deliver(session, envelope, frames)
        except WireError as error:
            if session is None:
                self._refuse(routing_id, "FailedPreconditionError", str(error))
            else:  # its request, if it was one, is answered all the same
                request = _request_in(parts[1])
                self.send(session, Kind.ERROR, request, encode_body(failure_of(error)), [])
        return True

    def send(
        self, session: Session, kind: Kind, request: int, body: bytes, frames: list[Buffer]
    ) -> None:
        """Send a message to a peer, now or when there is room; not at all if it has gone."""
        header = encode(kind, request, session.tokens.to_client, body)
        session.unsent.append((header, frames))
        self.push(session)

    def push(self, session: Session) -> bool:
        """Send what waits for a peer, and return whether nothing does any more."""
        while session.unsent:
            header, frames = session.unsent[0]
            try:
                _sockets.send(self.socket, [session.routing_id, header], frames)
            except zmq.Again:
                if len(session.unsent) > _MOST_UNSENT:
                    self._end(session)  # it asks without reading the answers
                    return True
                return False
            except (zmq.ZMQError, BrokenPipeError):  # it has gone, which the monitor will tell
                session.unsent.clear()
                return True
            session.unsent.popleft()
            self._count(0, len(header) + sum(map(size_of, frames)))
        return True

    def ended(self) -> list[Session]:
        """Return the sessions whose connections have ended since it was last asked."""
        descriptors = {
            descriptor
            for event, descriptor in _sockets.events_of(self.monitor)
            if event == zmq.EVENT_DISCONNECTED
        }
        if not descriptors:
            return []
        return [s for s in self.sessions.values() if s.descriptor in descriptors]

    def leave(self, session: Session) -> None:
        """Forget a session, and tell the host."""
        if self.sessions.get(session.routing_id) is session:
            self._end(session)

    def tidy(self, now: float) -> None:
        """Forget who did not finish the handshake in time."""
        late = [who for who, (_, deadline) in self._greeted.items() if now > deadline]
        for routing_id in late:
            del self._greeted[routing_id]

    def close(self, linger: float) -> None:
        """Close the socket, having waited at most so many seconds for the last messages to go."""
        self.sessions.clear()
        _sockets.close(self.socket, self.monitor, linger)

    def _greet(self, routing_id: bytes, envelope: Envelope, parts: list[zmq.Frame]) -> None:
        if envelope.kind not in (Kind.HELLO, Kind.PROOF):
            # It had a session, or believes so.
            self._refuse(routing_id, "UnauthenticatedError", "Introduce yourself.", again=True)
            return
        if len(parts) > 2:
            raise WireError("The messages of the handshake have no frames.")
        message = _decode_greeting(envelope.body)
        if isinstance(message, Hello):
            self._begin(routing_id, message)
        elif routing_id in self._greeted:
            handshake, _ = self._greeted.pop(routing_id)  # one proof for each challenge
            descriptor: int = parts[1].get(zmq.SRCFD)  # pyright: ignore[reportAssignmentType]
            self._admit(routing_id, descriptor, handshake, message)
        else:
            self._refuse(routing_id, "UnauthenticatedError", "Introduce yourself.", again=True)

    def _begin(self, routing_id: bytes, hello: Hello) -> None:
        if (session := self.sessions.get(routing_id)) is not None:
            self._end(session)
        try:
            handshake = self._host.handshake(hello)
        except JaxtributeError as error:
            self._refuse(routing_id, type(error).__name__, str(error))
            return
        if len(self._greeted) >= _MOST_GREETED:
            del self._greeted[next(iter(self._greeted))]  # the oldest one
        self._greeted.pop(routing_id, None)
        deadline = time.monotonic() + _sockets.HANDSHAKE_SECONDS
        self._greeted[routing_id] = handshake, deadline
        self._say(routing_id, Kind.CHALLENGE, encode_body(handshake.challenge))

    def _admit(
        self, routing_id: bytes, descriptor: int, handshake: ServerHandshake, proof: Proof
    ) -> None:
        if self._host.sessions >= MOST_SESSIONS:
            why = f"{handshake.challenge.task} has {MOST_SESSIONS} connections and takes no more."
            self._refuse(routing_id, "ResourceExhaustedError", why, again=True)
            return
        try:
            welcome, tokens = handshake.admit(proof)
        except JaxtributeError as error:
            self._refuse(routing_id, type(error).__name__, str(error))
            return
        for session in self.ended():  # one of them may have had this descriptor
            self._end(session)
        hello = handshake.hello
        peer = Peer(self._name + routing_id, hello.task, hello.incarnation)
        session = self.sessions[routing_id] = Session(peer, routing_id, descriptor, tokens)
        self._say(routing_id, Kind.WELCOME, encode_body(welcome))
        self._host.joined(session)

    def _end(self, session: Session) -> None:
        del self.sessions[session.routing_id]
        session.unsent.clear()
        self._host.left(session)

    def _refuse(self, routing_id: bytes, error: str, why: str, *, again: bool = False) -> None:
        self._say(routing_id, Kind.REFUSED, encode_body(Refused(error, why[:2048], again)))

    def _say(self, routing_id: bytes, kind: Kind, body: bytes) -> None:
        """Say something to somebody who is no peer, unless it does not listen."""
        try:
            _sockets.send(self.socket, [routing_id, encode(kind, 0, NO_TOKEN, body)], [])
        except (zmq.ZMQError, BrokenPipeError):
            self._greeted.pop(routing_id, None)


def _request_in(header: zmq.Frame) -> int:
    try:
        return open_envelope(_sockets.buffer_of(header)).request
    except WireError:
        return 0
