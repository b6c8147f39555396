"""A Ray cluster on this machine, and the rules every test is held to."""

import os
import secrets
import time
import warnings
from collections.abc import Iterator

import psutil
import pytest
import ray

from tests import _leaks

SECONDS_TO_END = 10.0


@pytest.fixture(scope="session", autouse=True)
def _token() -> Iterator[None]:
    """Give Ray a secret, which it would otherwise write to the home directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        yield


@pytest.fixture(scope="module")
def cluster(_token: None) -> Iterator[None]:
    """Connect to a small cluster, whose GPUs are numbers and no more."""
    with warnings.catch_warnings():
        # JAX may have been started by another test; what Ray forks becomes another program at once.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        ray.init(
            num_cpus=4,
            num_gpus=2,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=100 << 20,
        )
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    """Fail a test that leaves something behind; Ray itself keeps idle processes."""
    with (
        _leaks.no_environment_changes(),
        _leaks.no_open_strategy_scope(),
        _leaks.no_new_threads(),
    ):
        yield
    deadline = time.monotonic() + SECONDS_TO_END
    while left := _actors():
        assert time.monotonic() < deadline, f"The test left actors running: {left}"
        time.sleep(0.05)


def _actors() -> list[str]:
    titles: list[str] = []
    for child in psutil.Process(os.getpid()).children(recursive=True):
        try:
            title = " ".join(child.cmdline())
        except psutil.Error:  # it ended meanwhile
            continue
        if "TrainingTask" in title or "ServingTask" in title:
            titles.append(title)
    return titles
