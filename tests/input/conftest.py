import threading

import pytest

from tests.input import _threads


@pytest.fixture(autouse=True)
def _threads_of_earlier_tests():
    """Let a test that leaves a thread behind fail alone."""
    _threads.EARLIER.update(threading.enumerate())
    yield
    _threads.EARLIER.clear()
