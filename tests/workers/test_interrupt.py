"""Sockets that are made in between are told apart, and can be ended from another thread."""

import socket
import sys
import threading

import pytest

from jaxtribute.workers._interrupt import Connections

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.fixture
def pair():
    """Return a function that makes two connected sockets."""
    made: list[socket.socket] = []

    def make():
        with socket.create_server(("127.0.0.1", 0)) as server:
            client = socket.create_connection(server.getsockname())
            accepted, _ = server.accept()
        for one in client, accepted:
            one.settimeout(20)
        made.extend([client, accepted])
        return client, accepted

    yield make
    for one in made:
        one.close()


def is_open(one, other):
    try:
        one.sendall(b"x")
        return other.recv(1) == b"x"
    except OSError:
        return False


def test_only_those_made_in_between_are_ended(pair):
    before = pair()
    with Connections() as connections:
        between = pair()
    after = pair()
    assert len(connections) == 2
    assert connections.shut_down() == 2
    assert is_open(*before)
    assert is_open(*after)
    assert not is_open(*between)


def test_one_that_waits_is_woken(pair):
    with Connections() as connections:
        one, _ = pair()
    received = []
    thread = threading.Thread(target=lambda: received.append(one.recv(1)))
    thread.start()
    connections.shut_down()
    thread.join(20)
    assert received == [b""]


def test_the_other_side_learns_of_it(pair):
    with Connections() as connections:
        _, other = pair()
    other_end = other.dup()
    try:
        connections.shut_down()
        assert other_end.recv(1) == b""
    finally:
        other_end.close()


def test_what_was_closed_meanwhile_is_left_alone(pair):
    with Connections() as connections:
        one, other = pair()
    one.close()
    other.close()
    successor = pair()  # may have the same descriptors
    assert connections.shut_down() == 0
    assert is_open(*successor)


def test_sockets_that_are_no_network_connections_are_left_alone():
    with Connections() as connections:
        left, right = socket.socketpair()
    try:
        assert connections.shut_down() == 0
        assert is_open(left, right)
    finally:
        left.close()
        right.close()


def test_ending_them_twice_does_no_harm(pair):
    with Connections() as connections:
        pair()
    connections.shut_down()
    connections.shut_down()


def test_several_periods_add_up(pair):
    connections = Connections()
    with connections:
        first = pair()
    between = pair()
    with connections:
        second = pair()
    connections.shut_down()
    assert not is_open(*first)
    assert is_open(*between)
    assert not is_open(*second)


def test_nothing_is_known_at_first():
    assert len(Connections()) == 0
    assert Connections().shut_down() == 0
