"""Noticing that this process is asked to end, without changing it for others."""

import os
import signal
import threading

import pytest

from jaxtribute.errors import FailedPreconditionError
from jaxtribute.preemption._termination import Termination
from tests.preemption._support import SECONDS


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(autouse=True)
def earlier():
    """Have a handler of somebody else, and make sure that it is there again afterwards."""
    received = []

    def handler(number, frame):
        received.append(number)

    before = signal.signal(signal.SIGTERM, handler)
    yield received
    assert signal.getsignal(signal.SIGTERM) is handler
    signal.signal(signal.SIGTERM, before)


def test_a_signal_is_noticed_once_and_earlier_handlers_get_it(earlier):
    termination = Termination()
    assert not termination.is_asked
    terminate()
    asked_at = termination.asked_at
    terminate()
    assert termination.is_asked
    assert termination.asked_at == asked_at, "the time there is to end begins with the first"
    assert earlier == [signal.SIGTERM] * 2
    termination.close()


def test_closed_it_notices_nothing(earlier):
    termination = Termination()
    termination.close()
    terminate()
    assert not termination.is_asked
    assert len(earlier) == 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_at_the_same_time_are_closed_in_any_order(earlier, order):
    both = [Termination(), Termination()]
    terminate()
    assert [one.is_asked for one in both] == [True, True]
    both[order[0]].close()
    terminate()
    both[order[1]].close()
    terminate()
    assert len(earlier) == 3


def test_in_another_thread_it_needs_a_function():
    errors = []

    def program():
        try:
            Termination()
        except FailedPreconditionError as error:
            errors.append(str(error))

    thread = threading.Thread(target=program)
    thread.start()
    thread.join(SECONDS)
    assert "main thread" in errors[0]
    assert "termination_watcher_fn" in errors[0]


def until(condition):
    waiting = threading.Event()
    for _ in range(int(SECONDS / 0.01)):
        if condition():
            return
        waiting.wait(0.01)
    pytest.fail("It never came true.")


def test_a_function_is_asked_until_it_says_so_and_the_signal_is_left_alone(earlier):
    termination = Termination(lambda: True)
    until(lambda: termination.is_asked)
    termination.close()
    other = Termination(lambda: False)
    terminate()
    assert not other.is_asked
    other.close()
    assert len(earlier) == 1


def test_a_function_that_fails_says_so_where_it_is_asked_for():
    def fails():
        raise OSError("no answer")

    termination = Termination(fails)

    def failed():
        try:
            return termination.is_asked
        except OSError as error:
            return str(error) == "no answer"

    until(failed)
    termination.close()
