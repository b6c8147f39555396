import pytest
from zmq.utils.garbage import gc


@pytest.fixture(scope="session", autouse=True)
def _zero_copy_thread():
    """Start the thread of pyzmq that frees what was sent without copying; it stays for ever."""
    gc.store(object())
