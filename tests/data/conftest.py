"""Fixtures for the tests of datasets."""

import contextlib
import tracemalloc
from collections.abc import Callable, Iterator

import pytest


class Memory:
    """The most memory that was allocated at once, in bytes, once it is measured."""

    peak: int


@pytest.fixture
def allocated() -> Callable[[], contextlib.AbstractContextManager[Memory]]:
    """Measure what Python and NumPy allocate."""

    @contextlib.contextmanager
    def measure() -> Iterator[Memory]:
        memory = Memory()
        tracemalloc.start()
        try:
            yield memory
            memory.peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    return measure
