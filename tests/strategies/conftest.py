"""Strategies are made once a file: what they have compiled is then used again."""

import pytest

import jaxtribute as jt


@pytest.fixture(scope="module")
def one():
    return jt.MirroredStrategy(["CPU:0"])


@pytest.fixture(scope="module")
def two():
    return jt.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture(scope="module")
def three():
    return jt.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])


@pytest.fixture(scope="module")
def other():
    return jt.MirroredStrategy(["CPU:4", "CPU:5"])


@pytest.fixture(params=["eager", "compiled"])
def way(request):
    """A function that makes another one run in the way under test."""
    return jt.function if request.param == "compiled" else lambda fn: fn
