"""Set-up shared by the tests and by the examples in docstrings."""

import gc
import os
from typing import Any

# Read when JAX and Keras are imported. The suite asserts on CPU devices, whatever else there is.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt

# Devices can only be added before JAX first computes something, so not in a fixture. Workers that
# tests/processes/test_conformance.py starts are told how many they have.
if "CONFORMANCE_WORKER" not in os.environ:
    jt.config.set_logical_cpu_devices(8)

# Its examples need a cluster, and run in tests_integrations/ray.
collect_ignore = ["src/jaxtribute/ray"]


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, Any]) -> None:
    """Let the examples in docstrings start without imports."""
    doctest_namespace.update(jt=jt, jax=jax, jnp=jnp, np=np)


def pytest_collection_finish() -> None:
    """Leave what lasts as long as the session out of every search for garbage."""
    gc.collect()
    gc.freeze()
