"""Servers in processes of their own that are killed, stopped and interrupted."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager

import pytest

from jaxtribute import errors
from jaxtribute.rpc import Channel, exchange
from tests._interpreter import STRICT_PYTHON
from tests.rpc._support import (
    KEY,
    Answer,
    Ask,
    Events,
    Tell,
    connected,
    end,
    free_address,
    tcp_only,
    until,
)

pytestmark = pytest.mark.processes

SERVER = textwrap.dedent(
    """
    import sys
    from jaxtribute.rpc import Listener
    from tests.rpc._support import KEY, Handler

    handler = Handler()
    listener = handler.listener = Listener(sys.argv[1], "ps:0", KEY, handler)
    print("ready", flush=True)
    try:
        listener.serve()
    except KeyboardInterrupt:
        sys.exit("interrupted")
    """
)

SILENCE = {"JAXTRIBUTE_SILENCE_TIMEOUT": "1"}


@contextmanager
def server(address, **variables):
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, address],
        env=os.environ | {"PYTHONPATH": "."} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        yield process
    finally:
        end(process)
        process.stdout.close()
        process.stderr.close()


@pytest.fixture(params=["unix", "tcp"])
def way(request, monkeypatch):
    if request.param == "unix":
        yield
    else:
        with tcp_only(monkeypatch):
            yield


@pytest.fixture
def asking():
    address = free_address()
    channel = Channel(address, "ps:0", "worker:0", KEY, Answer)
    channel.address = address
    yield channel
    channel.close()


def ask(channel, what="hello", patience=60.0):
    (reply,) = exchange([(channel, Ask(what), ())], what="an answer", patience=patience)
    return reply.body.what


def while_waiting(channel, act):
    """Ask something that is not answered, act, and return what is raised."""
    raised = []

    def wait():
        with pytest.raises(errors.TaskUnavailableError) as info:
            ask(channel, "later", patience=0.5)
        raised.append(str(info.value))

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: any(r.sent_in for r in list(channel.outstanding.values())))
    act()
    thread.join()
    return raised[0]


def test_a_server_that_is_killed_is_noticed_and_its_successor_found(way, asking):
    with server(asking.address) as process:
        assert ask(asking) == "hello"
        why = while_waiting(asking, process.kill)
    assert f"nothing listens at {asking.address}" in why
    first = asking.incarnation
    with server(asking.address):
        with pytest.raises(errors.TaskUnavailableError, match="it was restarted"):
            ask(asking)
        assert ask(asking) == "hello"
    assert asking.incarnation != first


def test_a_server_that_is_stopped_is_noticed_and_is_the_same_when_it_goes_on(
    way, asking, monkeypatch
):
    monkeypatch.setenv("JAXTRIBUTE_SILENCE_TIMEOUT", "1")
    with server(asking.address, **SILENCE) as process:
        assert ask(asking) == "hello"
        first = asking.incarnation
        why = while_waiting(asking, lambda: process.send_signal(signal.SIGSTOP))
        assert "ps:0 is not available" in why
        process.send_signal(signal.SIGCONT)
        assert ask(asking) == "hello"
        assert asking.incarnation == first


def test_a_server_that_is_busy_is_waited_for_however_short_the_patience(asking, monkeypatch):
    monkeypatch.setenv("JAXTRIBUTE_SILENCE_TIMEOUT", "0.5")
    with server(asking.address) as process:
        assert ask(asking) == "hello"

        def wait():
            with pytest.raises(errors.CancelledError):
                ask(asking, "hold", patience=0.1)

        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(3.0)  # several times the limits
        assert waiting.is_alive()
        asking.close()
        waiting.join()
        assert process.poll() is None


def test_connections_notice_a_kill_and_a_stop(way, monkeypatch):
    monkeypatch.setenv("JAXTRIBUTE_SILENCE_TIMEOUT", "1")
    address = free_address()
    events = Events()
    with connected(events) as connections:
        connections.connect("ps:0", address)
        with server(address, **SILENCE) as process:
            until(lambda: len(events.ups) == 1)
            process.send_signal(signal.SIGSTOP)
            until(lambda: len(events.downs) == 1)
            process.send_signal(signal.SIGCONT)
            until(lambda: len(events.ups) == 2)
            assert events.ups[0] == events.ups[1]
            connections.post("ps:0", Tell("awake again"))
            until(lambda: ("ps:0", "heard awake again", []) in events.messages)
            process.kill()
            until(lambda: len(events.downs) == 2)
        with server(address):
            until(lambda: len(events.ups) == 3)
        assert events.ups[2] != events.ups[1]


def test_a_server_stops_at_once_when_it_is_interrupted(asking):
    with server(asking.address) as process:
        assert ask(asking) == "hello"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 1
        assert process.stderr.read() == "interrupted\n"


def test_a_client_that_waits_can_be_interrupted_and_go_on(asking):
    program = textwrap.dedent(
        """
        import sys, threading
        from jaxtribute.rpc import Channel, exchange
        from tests.rpc._support import KEY, Answer, Ask, until

        channel = Channel(sys.argv[1], "ps:0", "worker:0", KEY, Answer)

        def tell():
            until(lambda: any(r.sent_in for r in list(channel.outstanding.values())))
            print("waiting", flush=True)

        try:
            threading.Thread(target=tell).start()
            exchange([(channel, Ask("later"), ())], what="it", patience=60)
        except KeyboardInterrupt:
            (reply,) = exchange([(channel, Ask("hello"), ())], what="it", patience=60)
            print(reply.body.what, flush=True)
        channel.close()
        """
    )
    with server(asking.address):
        client = subprocess.Popen(
            [*STRICT_PYTHON, "-c", program, asking.address],
            env=os.environ | {"PYTHONPATH": "."},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert client.stdout.readline() == "waiting\n"
            client.send_signal(signal.SIGINT)
            assert client.stdout.readline() == "hello\n"
            assert client.wait(60) == 0
        finally:
            end(client)
            client.stdout.close()
