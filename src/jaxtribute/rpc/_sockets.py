"""ZeroMQ sockets as we use them: their options, sending, receiving, and what happens to them."""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Sequence

from .._limits import silence_limit
from ._key import ClusterKey
from ._wire import LARGEST_FRAME, Buffer, size_of
from ._zmq import zmq

HANDSHAKE_SECONDS = 5.0
"""How long a peer may take to introduce itself."""

_MOST_MESSAGES = 1000  # that wait in a socket, in each direction; then the other side waits
_COPIED_BELOW = 512 << 10  # bytes; for less, copying is cheaper than keeping it alive

Events = list[tuple[int, int]]

_numbers = itertools.count()
_lock = threading.Lock()
_clients: list[zmq.Context[zmq.Socket[bytes]]] = []


def client_context() -> zmq.Context[zmq.Socket[bytes]]:
    """Return the context that all clients of this process share."""
    with _lock:
        if not _clients:
            context = new_context()
            _clients.append(context)
        return _clients[0]


def new_context() -> zmq.Context[zmq.Socket[bytes]]:
    """Return a context for many sockets."""
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 16384)
    return context


def new_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """Return a socket that notices when its peer has gone, and keeps no heaps of messages."""
    silence = silence_limit()
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, _MOST_MESSAGES)
    socket.setsockopt(zmq.RCVHWM, _MOST_MESSAGES)
    socket.setsockopt(zmq.MAXMSGSIZE, LARGEST_FRAME)
    socket.setsockopt(zmq.HEARTBEAT_IVL, max(1, int(min(1.0, silence / 3) * 1000)))
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, max(1, int(silence * 1000)))
    socket.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_SECONDS * 1000))
    return socket


def encrypt_as_server(socket: zmq.Socket[bytes], key: ClusterKey) -> None:
    """Have a socket talk to nobody who does not know its public key, which is as secret."""
    socket.curve_server = 1
    socket.curve_publickey, socket.curve_secretkey = key.server_pair


def encrypt_as_client(socket: zmq.Socket[bytes], key: ClusterKey) -> None:
    """Have a socket talk to nobody but a server that knows the key."""
    socket.curve_serverkey, _ = key.server_pair
    socket.curve_publickey, socket.curve_secretkey = key.client_pair


def send(socket: zmq.Socket[bytes], head: Sequence[bytes], frames: Sequence[Buffer]) -> None:
    """Send a message without waiting.

    Raises:
      zmq.Again: when there is no room for it now.
      zmq.ZMQError: when there is nobody to send it to.
      BrokenPipeError: when the connection ended half-way.
    """
    more = zmq.NOBLOCK | zmq.SNDMORE
    last = len(head) + len(frames) - 1
    socket.send(head[0], more if last else zmq.NOBLOCK)
    try:
        for index, part in enumerate(head[1:], 1):
            socket.send(part, more if index < last else zmq.NOBLOCK)
        for index, frame in enumerate(frames, len(head)):
            copy = size_of(frame) < _COPIED_BELOW
            socket.send(frame, more if index < last else zmq.NOBLOCK, copy=copy)
    except zmq.ZMQError as error:
        raise BrokenPipeError("the connection ended while a message was being sent") from error


def receive(socket: zmq.Socket[bytes]) -> list[zmq.Frame] | None:
    """Return the parts of the next message, if there is one."""
    try:
        return socket.recv_multipart(zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return None


def buffer_of(frame: zmq.Frame) -> memoryview:
    """Return what a frame holds, which lives as long as this does."""
    return frame.buffer.toreadonly()


def monitor(socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """Return a socket on which it is told what happens to the connections of another."""
    endpoint = f"inproc://jaxtribute-monitor-{next(_numbers)}"
    socket.monitor(endpoint, zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED)
    listening = socket.context.socket(zmq.PAIR)
    listening.setsockopt(zmq.LINGER, 0)
    listening.setsockopt(zmq.RCVHWM, 0)  # otherwise whoever tells it would wait for us
    listening.connect(endpoint)
    return listening


def events_of(monitor: zmq.Socket[bytes]) -> Events:
    """Return what has happened since it was last asked: numbers of events, and descriptors."""
    found: Events = []
    while monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN:  # pyright: ignore[reportOperatorIssue]
        event, _ = monitor.recv_multipart(zmq.NOBLOCK)
        found.append(struct.unpack("=Hi", event))
    return found


def close(socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes], linger: float = 0.0) -> None:
    """Close a socket, having waited so many seconds at most for its last messages to leave."""
    socket.monitor(None, 0)  # pyright: ignore[reportArgumentType]
    monitor.close(linger=0)
    socket.close(linger=int(linger * 1000))
