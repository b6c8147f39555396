"""Rules every test is held to."""

from collections.abc import Iterator

import hypothesis
import pytest

from tests import _leaks

# Compiling takes a varying time, so no deadline. The same examples every run: a red build
# must not turn green by being run again.
hypothesis.settings.register_profile("jaxtribute", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("jaxtribute")


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    """Fail a test that leaves something behind for the next one."""
    with (
        _leaks.no_environment_changes(),
        _leaks.no_open_strategy_scope(),
        _leaks.no_new_processes(),
        _leaks.no_new_threads(),
    ):
        yield
