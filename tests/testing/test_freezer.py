"""Threads that stand still where a test wants them to."""

import threading

import pytest

from jaxtribute.testing._freezer import Freezer


def test_a_thread_stands_still_at_its_point_only():
    freezer = Freezer()
    freezer.freeze("worker:0", "report")
    freezer.reached("worker:0", "execute")
    freezer.reached("worker:1", "report")
    thread = threading.Thread(target=freezer.reached, args=("worker:0", "report"))
    thread.start()
    freezer.wait_until_frozen("worker:0", 30)
    assert thread.is_alive()
    freezer.thaw("worker:0")
    thread.join(30)
    assert not thread.is_alive()


def test_waiting_for_what_never_happens_ends():
    freezer = Freezer()
    with pytest.raises(TimeoutError, match="not told to"):
        freezer.wait_until_frozen("worker:0", 0.01)
    freezer.freeze("worker:0", "execute")
    with pytest.raises(TimeoutError, match="execute"):
        freezer.wait_until_frozen("worker:0", 0.01)


def test_a_point_must_exist():
    with pytest.raises(ValueError, match="execute, report"):
        Freezer().freeze("worker:0", "lunch")
