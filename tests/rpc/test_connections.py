"""Connections to many tasks, over which nobody waits for anything."""

import threading

import pytest

from jaxtribute import errors
from jaxtribute.rpc import Listener
from tests.rpc._support import (
    KEY,
    OTHER_KEY,
    Ask,
    Events,
    Handler,
    Tell,
    connected,
    cut_connections,
    free_address,
    serving,
    tcp_only,
    until,
)


@pytest.mark.parametrize("way", ["unix", "tcp", "tcp, not encrypted"])
def test_messages_go_both_ways_in_order(way, monkeypatch):
    address = free_address()
    handler, events = Handler(), Events()
    encryption = way != "tcp, not encrypted"
    if way != "unix":
        monkeypatch.setattr("jaxtribute.rpc._endpoints.can_be_trusted", lambda path: False)
    with serving(address, handler, encryption=encryption) as listener:
        with connected(events, encryption=encryption) as connections:
            connections.connect("ps:0", address)
            until(lambda: events.ups == [("ps:0", listener.incarnation)])
            for number in range(200):
                connections.post("ps:0", Tell(str(number)), [str(number).encode()])
            until(lambda: len(events.messages) == 200)
        until(lambda: handler.gone)
    assert handler.told == [str(number) for number in range(200)]
    assert events.messages == [("ps:0", f"heard {n}", [str(n).encode()]) for n in range(200)]


def test_many_tasks_are_served_by_one_thread():
    addresses = {f"ps:{number}": free_address() for number in range(5)}
    events = Events()
    before = threading.active_count()
    with connected(events) as connections:
        for task, address in addresses.items():
            connections.connect(task, address)
        assert threading.active_count() == before + 1
        listeners = [serving(address, task=task) for task, address in addresses.items()]
        for each in listeners:
            each.__enter__()
        until(lambda: {task for task, _ in events.ups} == set(addresses))
        for task in addresses:
            connections.post(task, Tell(task))
        until(lambda: {text for _, text, _ in events.messages} == {f"heard {t}" for t in addresses})
        for each in listeners:
            each.__exit__(None, None, None)


def test_a_task_that_goes_and_returns_is_noticed():
    address = free_address()
    events = Events()
    with connected(events) as connections:
        connections.connect("ps:0", address)
        with serving(address) as first:
            until(lambda: events.ups)
        until(lambda: events.downs == [("ps:0", "its connection has ended")])
        connections.post("ps:0", Tell("lost"))
        handler = Handler()
        with serving(address, handler) as second:
            until(lambda: len(events.ups) == 2)
            connections.post("ps:0", Tell("arrives"))
            until(lambda: handler.told)
        assert handler.told == ["arrives"]
    assert events.ups == [("ps:0", first.incarnation), ("ps:0", second.incarnation)]


def test_a_connection_that_is_cut_is_made_again():
    address = free_address()
    events, handler = Events(), Handler()
    with serving(address, handler) as listener, connected(events) as connections:
        connections.connect("ps:0", address)
        until(lambda: events.ups)
        cut_connections(listener)
        until(lambda: len(events.ups) == 2)
        until(lambda: len(handler.gone) == 1)
        assert {incarnation for _, incarnation in events.ups} == {listener.incarnation}
        assert len({peer.incarnation for peer in handler.peers}) == 1
        assert handler.gone == handler.peers[:1]


def test_a_message_for_a_session_that_is_over_does_not_reach_the_next():
    address = free_address()
    handler = Handler()

    class Blocking(Events):
        """Stands still while another thread posts and the connection is lost."""

        def __init__(self):
            super().__init__()
            self.standing, self.go_on = threading.Event(), threading.Event()

        def woken(self):
            self.standing.set()
            self.go_on.wait(60)

    events = Blocking()
    with connected(events) as connections:
        connections.connect("ps:0", address)
        with serving(address):
            until(lambda: events.ups)
            connections.wake()
            events.standing.wait(60)
        connections.post("ps:0", Tell("stale"))
        with serving(address, handler):
            events.go_on.set()
            until(lambda: len(events.ups) == 2)
            connections.post("ps:0", Tell("fresh"))
            until(lambda: handler.told)
    assert "stale" not in handler.told


def test_posting_does_not_wait_for_a_task_that_does_not_read():
    address = free_address()
    handler, events = Handler(), Events()
    with serving(address, handler) as listener, connected(events) as connections:
        connections.connect("ps:0", address)
        until(lambda: events.ups)
        received = handler.received
        handler.received = lambda *message: (handler.hold.wait(60), received(*message))[1]
        for number in range(5000):
            connections.post("ps:0", Tell(str(number)), [bytes(1000)])
        handler.hold.set()
        until(lambda: len(events.messages) == 5000)
        assert handler.told == [str(number) for number in range(5000)]
        assert listener.bytes_in > 5000 * 1000


def test_what_was_posted_last_arrives_before_the_end():
    address = free_address()
    handler, events = Handler(), Events()
    with serving(address, handler):
        with connected(events) as connections:
            connections.connect("ps:0", address)
            until(lambda: events.ups)
            connections.post("ps:0", Tell("goodbye"))
        until(lambda: handler.told == ["goodbye"])


def test_waking_and_ticking_happen_in_the_thread():
    events = Events()
    with connected(events) as connections:
        connections.wake()
        until(lambda: events.wakes)
        until(lambda: events.ticks > 2)
        before = events.wakes
        connections.wake()
        until(lambda: events.wakes > before)


@pytest.mark.parametrize("encryption", [True, False])
def test_another_key_is_reported_with_its_reason(encryption, monkeypatch):
    address = free_address()
    events, handler = Events(), Handler()
    with (
        serving(address, handler, encryption=encryption),
        tcp_only(monkeypatch),
        connected(events, key=OTHER_KEY, encryption=encryption) as connections,
    ):
        connections.connect("ps:0", address)
        until(lambda: events.downs)
    assert "key" in events.downs[0][1]
    assert not events.ups
    assert not handler.peers


def test_a_task_that_sends_something_else_is_reported(capsys):
    address = free_address()
    events, handler = Events(), Handler()
    with serving(address, handler) as listener, connected(events) as connections:
        connections.connect("ps:0", address)
        until(lambda: events.ups)
        listener.send(handler.peers[0], Ask("this was not agreed on"))
        until(lambda: events.downs)
    assert "it sends what is no message" in events.downs[0][1]
    assert "ends the connection to ps:0" in capsys.readouterr().err


def test_an_error_in_what_a_notice_asks_for_is_printed_by_the_server(capsys):
    address = free_address()
    events, handler = Events(), Handler()

    def fail(peer, request, body, frames):
        raise errors.NotFoundError("there is no such thing")

    handler.received = fail
    with serving(address, handler), connected(events) as connections:
        connections.connect("ps:0", address)
        until(lambda: events.ups)
        connections.post("ps:0", Tell("it"))
        until(lambda: "there is no such thing" in capsys.readouterr().err)


def test_what_cannot_be_posted_is_refused_at_once():
    events = Events()
    with connected(events) as connections:
        with pytest.raises(errors.NotFoundError, match="no connection to ps:0"):
            connections.post("ps:0", Tell("x"))
        connections.connect("ps:0", free_address())
        with pytest.raises(errors.AlreadyExistsError, match="already"):
            connections.connect("ps:0", free_address())
        with pytest.raises(errors.InvalidArgumentError, match="cannot be sent"):
            connections.post("ps:0", Tell(object()))
        with pytest.raises(errors.InvalidArgumentError, match="host and a port"):
            connections.connect("ps:1", "nowhere")
    connections.close()
    with pytest.raises(errors.FailedPreconditionError, match="closed"):
        connections.post("ps:0", Tell("x"))
    with pytest.raises(errors.FailedPreconditionError, match="closed"):
        connections.connect("ps:2", free_address())
    connections.wake()


def test_a_handler_may_close_its_own_connections():
    address = free_address()

    class Closing(Events):
        def up(self, task, incarnation):
            super().up(task, incarnation)
            self.connections.close()

    events = Closing()
    with serving(address), connected(events) as connections:
        events.connections = connections
        connections.connect("ps:0", address)
        until(lambda: events.ups)


def test_what_a_handler_posts_while_they_are_closed_is_sent():
    address = free_address()
    handler = Handler()

    class Late(Events):
        def woken(self):
            self.connections.close()  # as others may do at any moment
            self.connections.post("ps:0", Tell("goodbye"))

    events = Late()
    with serving(address, handler), connected(events) as connections:
        events.connections = connections
        connections.connect("ps:0", address)
        until(lambda: events.ups)
        connections.wake()
        until(lambda: handler.told == ["goodbye"])


def test_abandoning_frees_the_address_at_once():
    address = free_address()
    events = Events()
    with connected(events) as connections:
        connections.connect("ps:0", address)
        for number in range(5):
            handler = Handler()
            with serving(address, handler) as listener:
                until(lambda expected=number + 1: len(events.ups) == expected)
                listener.abandon()
                Listener(address, "ps:0", KEY, Handler()).stop()
