"""Fixtures for the tests of datasets."""

import contextlib
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.data._support import Counted


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


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture(params=["memory", "file"])
def filename(request: pytest.FixtureRequest, tmp_path: Path) -> str | Path:
    """Where `cache` keeps elements."""
    return "" if request.param == "memory" else tmp_path / "cache"
