"""TensorFlow's devices, and the rules every test is held to.

The CPU devices of JAX are made by `conftest.py` at the root, as for all other tests.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read when TensorFlow is imported

import tensorflow as tf

from tests.conftest import _no_leaks  # noqa: F401  # a fixture

# Devices can only be added before TensorFlow first computes something, so not in a fixture.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 3
)
