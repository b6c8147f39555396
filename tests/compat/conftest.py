import pytest

import jaxtribute as jt
from jaxtribute.compat.v1 import _deprecation


@pytest.fixture
def strategy():
    return jt.compat.v1.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture
def nothing_told(monkeypatch):
    """Have deprecations told as in a new process."""
    monkeypatch.setattr(_deprecation, "_told", set())
