"""Strategies that the tests of Keras run under."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import pytest

import jaxtribute as jt

STRATEGIES = {
    "default": jt.get_strategy,
    "one_device": lambda: jt.OneDeviceStrategy("CPU:1"),
    "mirrored_2": lambda: jt.MirroredStrategy(["CPU:0", "CPU:1"]),
    "mirrored_3": lambda: jt.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"]),
}


def pytest_configure(config: Any) -> None:
    # Of every `variable.numpy()` of Keras itself.
    text = "__array__ implementation doesn't accept a copy keyword"
    config.addinivalue_line("filterwarnings", f"ignore:{text}:DeprecationWarning")


@pytest.fixture(params=STRATEGIES)
def strategy(request: Any) -> jt.Strategy:
    """Every strategy that trains in step within one process."""
    return STRATEGIES[request.param]()


@pytest.fixture
def mirrored() -> jt.Strategy:
    """Two replicas."""
    return STRATEGIES["mirrored_2"]()


@pytest.fixture(autouse=True)
def _fresh_keras() -> Iterator[None]:
    """Give layers the same names whatever ran before."""
    keras.backend.clear_session()
    policy = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(policy)
