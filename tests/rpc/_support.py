"""Servers, clients and messages for the tests of `jaxtribute.rpc`."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec

from jaxtribute.cluster._this_machine import free_ports
from jaxtribute.errors import FailedPreconditionError, NotFoundError, TaskUnavailableError
from jaxtribute.rpc import ClusterKey, Connections, Listener, Reply, _endpoints

KEY = ClusterKey(b"the key of these tests")
OTHER_KEY = ClusterKey(b"the key of someone else")


class Ask(msgspec.Struct, tag="ask", tag_field="message"):
    what: str


class Tell(msgspec.Struct, tag="tell", tag_field="message"):
    what: str


class Answer(msgspec.Struct, tag="answer", tag_field="message"):
    what: str


class Handler:
    """Answers `Ask`s; keeps what it is told, and who comes and goes."""

    bodies = Ask | Tell

    def __init__(self) -> None:
        self.listener: Listener | None = None
        self.told: list[str] = []
        self.peers: list = []
        self.gone: list = []
        self.asked: list[tuple] = []
        self.hold = threading.Event()

    def joined(self, peer) -> None:
        self.peers.append(peer)

    def left(self, peer) -> None:
        self.gone.append(peer)

    def received(self, peer, request, body, frames):
        if isinstance(body, Tell):
            self.told.append(body.what)
            self.listener.send(peer, Tell(f"heard {body.what}"), frames)
            return None
        self.asked.append((peer, request, body.what))
        match body.what:
            case "later":
                return None
            case "missing":
                raise NotFoundError("there is no such thing")
            case "unavailable":
                raise TaskUnavailableError("ps:7", "it is asleep")
            case "taken over":
                raise FailedPreconditionError("another coordinator has taken over")
            case "bug":
                raise ZeroDivisionError("division by zero")
            case "huge":
                return Reply(Answer("x" * (2 << 20)))
            case "hold":
                self.hold.wait(60)
        return Reply(Answer(body.what), frames)


def free_address(host: str = "127.0.0.1") -> str:
    return f"{host}:{free_ports(1)[0]}"


@contextmanager
def serving(
    address: str, handler: Handler | None = None, *, task="ps:0", key=KEY, encryption=True
) -> Iterator[Listener]:
    handler = handler or Handler()
    listener = Listener(address, task, key, handler, encryption=encryption)
    handler.listener = listener
    thread = threading.Thread(target=listener.serve)
    thread.start()
    try:
        yield listener
    finally:
        handler.hold.set()
        listener.stop()
        thread.join()


class Events:
    """Notes what happens with `Connections`."""

    def __init__(self) -> None:
        self.ups: list[tuple[str, str]] = []
        self.downs: list[tuple[str, str]] = []
        self.messages: list[tuple[str, str, list[bytes]]] = []
        self.wakes = 0
        self.ticks = 0

    def up(self, task, incarnation):
        self.ups.append((task, incarnation))

    def down(self, task, why):
        self.downs.append((task, why))

    def received(self, task, body, frames):
        self.messages.append((task, body.what, [bytes(frame) for frame in frames]))

    def woken(self):
        self.wakes += 1

    def tick(self, now):
        self.ticks += 1


@contextmanager
def connected(events: Events, *, key=KEY, encryption=True) -> Iterator[Connections]:
    connections = Connections("chief", key, events, Tell, encryption=encryption)
    try:
        yield connections
    finally:
        connections.close()


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


@contextmanager
def tcp_only(monkeypatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(_endpoints, "can_be_trusted", lambda path: False)
        yield


def unix_socket(address: str, key=KEY):
    return _endpoints.unix_socket(_endpoints.parsed(address, "ps:0"), key)


def cut_connections(listener: Listener) -> None:
    """End all connections to a server, as a cable that is pulled would: both sides live on."""
    for door in listener._doors.values():
        for session in list(door.sessions.values()):
            with socket.socket(fileno=os.dup(session.descriptor)) as connection:
                connection.shutdown(socket.SHUT_RDWR)


def end(process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    process.wait()
