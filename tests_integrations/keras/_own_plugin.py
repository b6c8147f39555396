"""A plugin of pytest for Keras's own tests: runs each in a scope, and notes how it went.

What it is to do is in environment variables, as it is loaded by its name.
"""

from __future__ import annotations

import json
import os
import sys
import time
import types
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import keras
import pytest

import jaxtribute as jt

jt.config.set_logical_cpu_devices(2)

_noted: dict[str, dict[str, Any]] = {}


def _skip_if_backend(given_backend: str, reason: str) -> Any:
    return pytest.mark.skipif(keras.backend.backend() == given_backend, reason=reason)


# Some tests import it from a file that is not installed with Keras.
sys.modules["conftest"] = types.ModuleType("conftest")
sys.modules["conftest"].skip_if_backend = _skip_if_backend


def pytest_configure(config: Any) -> None:
    for marker in ("requires_trainable_backend", "multi_device"):
        config.addinivalue_line("markers", f"{marker}: used by Keras")


@pytest.fixture(autouse=True)
def _scope() -> Iterator[None]:
    if os.environ["OWN_TESTS_SCOPED"] == "1":
        with jt.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            yield
    else:
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Generator[None, Any, Any]:
    # Not by the clock, which also counts what other processes do.
    start = time.process_time()
    noted = _noted.setdefault(item.nodeid, {"outcome": "passed", "why": ""})
    result = yield
    noted["seconds"] = time.process_time() - start
    return result


def pytest_runtest_logreport(report: Any) -> None:
    if report.outcome == "passed":
        return
    noted = _noted.setdefault(report.nodeid, {"outcome": "passed", "why": "", "seconds": 0.0})
    if noted["outcome"] != "failed":
        noted["outcome"] = report.outcome
        crash = getattr(report.longrepr, "reprcrash", None)
        noted["why"] = str(report.longrepr if crash is None else crash.message)


def pytest_sessionfinish() -> None:
    Path(os.environ["OWN_TESTS_REPORT"]).write_text(json.dumps(_noted))
