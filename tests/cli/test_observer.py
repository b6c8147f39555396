"""Asking tasks how they are, over real sockets."""

import threading
import time
from contextlib import contextmanager

import pytest

from jaxtribute.cli._observer import Observer
from jaxtribute.cluster._this_machine import free_ports
from jaxtribute.errors import InternalError
from jaxtribute.ps._messages import Request, ServerStatus
from jaxtribute.rpc import ClusterKey, Listener, Reply

KEY = ClusterKey(b"the same for all of them")


class Answers:
    """A parameter server that does nothing but answer, or not even that."""

    bodies = Request

    def __init__(self, answer):
        self._answer = answer

    def joined(self, peer): ...

    def left(self, peer): ...

    def received(self, peer, request, body, frames):
        assert peer.task == "observer"
        return self._answer()


def figures(updates=0):
    return Reply(
        ServerStatus(
            task="ps:0",
            seconds=time.monotonic(),
            variables=3,
            bytes_held=0,
            updates=updates,
            repeated_updates=0,
            reads=0,
            bytes_in=0,
            bytes_out=0,
            staleness=0.0,
            peers=1,
        )
    )


@pytest.fixture
def address():
    return f"127.0.0.1:{free_ports(1)[0]}"


@contextmanager
def serving(address, answer, key=KEY):
    listener = Listener(address, "ps:0", key, Answers(answer))
    thread = threading.Thread(target=listener.serve)
    thread.start()
    try:
        yield
    finally:
        listener.stop()
        thread.join()


@contextmanager
def observing(**addresses):
    observer = Observer(
        {name.replace("_", ":"): address for name, address in addresses.items()},
        KEY,
        encryption=True,
    )
    try:
        yield observer
    finally:
        observer.close()


def test_what_a_task_answers(address):
    with serving(address, figures), observing(ps_0=address) as observer:
        first, second = observer.ask().servers + observer.ask().servers
    assert first.status.variables == 3
    assert first.life == second.life != ""
    assert second.status.seconds > first.status.seconds


def test_one_that_is_not_there_is_told_of_until_it_comes(address):
    with observing(ps_0=address) as observer:
        (missing,) = observer.ask().servers
        assert missing.status is None
        assert f"nothing listens at {address}" in missing.why
        with serving(address, figures):
            (found,) = observer.ask().servers
        assert found.status is not None


def test_one_that_was_started_again_has_another_life(address):
    with observing(ps_0=address) as observer:
        with serving(address, figures):
            (before,) = observer.ask().servers
        with serving(address, figures):
            deadline = time.monotonic() + 20
            while (after := observer.ask().servers[0]).status is None:
                assert time.monotonic() < deadline, after.why
        assert before.life != after.life


def test_one_that_is_there_and_silent_is_not_waited_for(address):
    silent, other = (f"127.0.0.1:{port}" for port in free_ports(2))
    with (
        serving(silent, lambda: None),
        serving(other, figures),
        observing(ps_1=other, ps_0=silent) as observer,
    ):
        # The other one is no ps:1, and says so.
        stranger, waited_for = observer.ask().servers
        assert "ps:1" in stranger.why
        assert waited_for.status is None
        assert waited_for.why.startswith("it has not answered for ")
        assert observer.ask().servers[1].status is None


def test_an_error_is_why(address):
    def fail():
        raise InternalError("the disk is full")

    with serving(address, fail), observing(ps_0=address) as observer:
        (sample,) = observer.ask().servers
    assert (sample.status, sample.why) == (None, "the disk is full")


def test_another_key_is_said_to_be_possible(address):
    with (
        serving(address, figures, key=ClusterKey(b"that of another cluster")),
        observing(ps_0=address) as observer,
    ):
        (sample,) = observer.ask().servers
    assert sample.status is None
    assert "cluster key" in sample.why
