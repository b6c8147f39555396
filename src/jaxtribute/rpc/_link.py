"""A client's connection to one task, made again whenever it ends.

One socket is one connection is one session: when anything goes wrong, the socket is closed and a
new one begins with a new handshake, by unix socket or TCP, whichever works. A link has no thread:
its owner calls `advance` several times a second and `receive` when `socket` has something.
"""

from __future__ import annotations

import secrets
import time
from ipaddress import ip_address

from .. import errors
from ..errors import FailedPreconditionError, JaxtributeError, UnauthenticatedError
from . import _endpoints, _sockets
from ._handshake import Challenge, ClientHandshake, Refused, Tokens, Welcome
from ._key import ClusterKey
from ._wire import (
    LONGEST_GREETING,
    LONGEST_HEADER,
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
)
from ._zmq import zmq

_FIRST_RETRY = 0.02
_LONGEST_RETRY = 0.5
_REFUSED_RETRY = 1.0

_decode_greeting = decoder(Challenge | Welcome | Refused)
_REFUSALS = {
    name: getattr(errors, name)
    for name in ("FailedPreconditionError", "InvalidArgumentError", "ResourceExhaustedError")
}


class Link:
    """A connection to a task, kept up by `advance` and `receive`.

    Args:
      task: whom to connect to.
      address: where it listens.
      own_task: who this process is.
      key: of the cluster.
      encryption: whether TCP is encrypted.

    Raises:
      InvalidArgumentError: when the address is none.
    """

    def __init__(
        self, task: str, address: str, own_task: str, key: ClusterKey, *, encryption: bool
    ) -> None:
        self.task = task
        self.address = _endpoints.parsed(address, task)
        self.up = False
        self.session = 0
        """How often it has been up."""
        self.incarnation: str | None = None
        """Of the task, once it has been up."""
        self.why = "it has not answered yet"
        """Why it is not up."""
        self.rebuffs = 0
        """How often in a row the connection has ended before anything was answered."""
        self.needs_attention = False
        """Whether that will hardly change by waiting."""
        self.down_since = time.monotonic()
        self.refusal: JaxtributeError | None = None
        """What the task has answered, if it does not want to talk to us."""
        self.socket: zmq.Socket[bytes] | None = None
        self._own_task = own_task
        self._own_incarnation = secrets.token_hex(8)
        self._key = key
        self._encryption = encryption
        self._monitor: zmq.Socket[bytes] | None = None
        self._handshake: ClientHandshake | None = None
        self._tokens = Tokens(NO_TOKEN, NO_TOKEN)
        self._give_up_at = 0.0
        self._retry_at = 0.0
        self._retry_after = _FIRST_RETRY
        self._by_unix_socket = False
        self._ipv6 = True  # so that the first attempt is the other one
        self._connected = False
        self._ended = False

    def advance(self, now: float) -> None:
        """Notice what has happened to the connection, and try to make it if there is none."""
        if self.socket is None or self._monitor is None:
            if now >= self._retry_at:
                self._open(now)
            return
        for event, _ in _sockets.events_of(self._monitor):
            self._connected |= event == zmq.EVENT_CONNECTED
            self._ended |= event in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED)
        if self._ended and not self.socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:  # pyright: ignore[reportOperatorIssue]
            suspicious = self._connected and not self.up
            self._drop(self._why_it_ended(), now)
            self.needs_attention = suspicious
            self.rebuffs = self.rebuffs + 1 if suspicious else 0
        elif not self.up and now > self._give_up_at:
            self._drop(
                f"it has not answered at {self.address} for {_sockets.HANDSHAKE_SECONDS:g} s", now
            )

    def receive(self) -> tuple[Envelope, list[Buffer]] | None:
        """Return the next message of the task, if there is one; never one of the handshake."""
        while self.socket is not None:
            try:
                parts = _sockets.receive(self.socket)
            except BaseException:  # between two parts of a message
                self._drop("this process was interrupted", time.monotonic())
                raise
            if parts is None:
                return None
            try:
                envelope = self._opened(parts)
                if envelope is not None:
                    return envelope, [_sockets.buffer_of(part) for part in parts[1:]]
            except WireError as error:
                self._drop(f"what answers at {self.address} is no task: {error}", time.monotonic())
            except JaxtributeError as error:
                self._refused(error)
        return None

    def send(self, kind: Kind, request: int, body: bytes, frames: list[Buffer]) -> bool:
        """Send a message, and return whether there was room for it."""
        if self.socket is None:
            return False
        try:
            header = encode(kind, request, self._tokens.to_server, body)
            _sockets.send(self.socket, [header], frames)
        except zmq.Again:
            return False
        except BrokenPipeError as error:
            self._drop(str(error), time.monotonic())
            return False
        except BaseException:  # between two parts of a message
            self._drop("this process was interrupted", time.monotonic())
            raise
        return True

    def reset(self, why: str) -> None:
        """End the connection, so that a new one is made."""
        self._drop(why, time.monotonic())

    def close(self, linger: float = 0.0) -> None:
        """End the connection for good."""
        self.up = False
        if self.socket is not None and self._monitor is not None:
            _sockets.close(self.socket, self._monitor, linger)
        self.socket = self._monitor = None

    def _open(self, now: float) -> None:
        path = _endpoints.unix_socket(self.address, self._key)
        # A stale socket refuses, and then it is TCP's turn: the server may not see our files.
        self._by_unix_socket = (
            path is not None and not self._by_unix_socket and _endpoints.can_be_trusted(path)
        )
        socket = _sockets.new_socket(_sockets.client_context(), zmq.DEALER)
        socket.setsockopt(zmq.RECONNECT_IVL, -1)  # we do that
        if self._by_unix_socket:
            endpoint = f"ipc://{path}"
        else:
            endpoint = _endpoints.tcp_endpoint(self.address)
            # A name may stand for numbers of both kinds, and the server listen on only one.
            self._ipv6 = ":" in self.address.host or not (
                _is_number(self.address.host) or self._ipv6
            )
            socket.setsockopt(zmq.IPV6, self._ipv6)
            if self._encryption:
                _sockets.encrypt_as_client(socket, self._key)
        self.socket, self._monitor = socket, _sockets.monitor(socket)
        self._connected = self._ended = False
        self._give_up_at = now + _sockets.HANDSHAKE_SECONDS
        self._handshake = ClientHandshake(
            self._key, self._own_task, self._own_incarnation, self.task
        )
        self._tokens = Tokens(NO_TOKEN, NO_TOKEN)
        socket.connect(endpoint)
        self.send(Kind.HELLO, 0, encode_body(self._handshake.hello), [])

    def _opened(self, parts: list[zmq.Frame]) -> Envelope | None:
        """Return a message that is for our owner; carry on with the handshake otherwise."""
        longest = LONGEST_HEADER if self.up else LONGEST_GREETING
        envelope = open_envelope(_sockets.buffer_of(parts[0]), longest)
        if envelope.version != PROTOCOL:
            raise FailedPreconditionError(
                f"{self.task} speaks version {envelope.version} of the protocol, and this process "
                f"version {PROTOCOL}. Install the same version of jaxtribute for all tasks."
            )
        if envelope.kind is Kind.REFUSED:
            self._told(_decode_greeting(envelope.body))
            return None
        if self.up:
            # Whoever listens at the address now need not be the one that proved itself.
            if envelope.token == self._tokens.to_client and envelope.kind in _FOR_OWNER:
                return envelope
            raise WireError("a message arrived that belongs to no session")
        self._greet(_decode_greeting(envelope.body))
        return None

    def _greet(self, message: Challenge | Welcome | Refused) -> None:
        handshake = self._handshake
        if isinstance(message, Challenge) and handshake is not None:
            self.send(Kind.PROOF, 0, encode_body(handshake.prove(message)), [])
        elif isinstance(message, Welcome) and handshake is not None:
            self._tokens = handshake.accept(message)
            assert handshake.challenge is not None
            self.incarnation = handshake.challenge.incarnation
            self._handshake = None
            self._by_unix_socket = False  # may be tried first again
            self._retry_after = _FIRST_RETRY
            self.refusal = None
            self.session += 1
            self.rebuffs = 0
            self.up = True
        else:
            raise WireError("a part of the handshake arrived that does not fit")

    def _told(self, message: Challenge | Welcome | Refused) -> None:
        if not isinstance(message, Refused):
            raise WireError("a refusal arrived that is none")
        if message.again:
            self._drop(message.why, time.monotonic())
        else:
            raise _REFUSALS.get(message.error, UnauthenticatedError)(message.why)

    def _refused(self, error: JaxtributeError) -> None:
        now = time.monotonic()
        self._drop(f"it was refused: {error}", now)
        self.refusal = error
        self.needs_attention = True
        self._retry_at = now + _REFUSED_RETRY

    def _drop(self, why: str, now: float) -> None:
        if self.up:
            self.down_since = now
        self.why = why.rstrip(".")
        self.needs_attention = False
        self.close()
        self._retry_at = now + self._retry_after
        self._retry_after = min(2 * self._retry_after, _LONGEST_RETRY)

    def _why_it_ended(self) -> str:
        if self.up:
            return "its connection has ended"
        if not self._connected:
            return f"nothing listens at {self.address}"
        return (
            f"it ends the connection at {self.address} before it has answered: its cluster key may "
            "be another, it may not encrypt as this process does, or it is no task of jaxtribute"
        )


def _is_number(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


_FOR_OWNER = (Kind.REPLY, Kind.ERROR, Kind.NOTICE)
