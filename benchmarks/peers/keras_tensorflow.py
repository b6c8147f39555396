"""`keras` on TensorFlow, under its `MirroredStrategy`."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from benchmarks.peers.keras_work import DEVICES, Fit
from benchmarks.peers.serve import serve

if __name__ == "__main__":
    (cpu,) = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration() for _ in DEVICES]
    tf.config.set_logical_device_configuration(cpu, logical)
    scope = tf.distribute.MirroredStrategy(DEVICES).scope
    serve(lambda case: Fit(case, scope), ("keras", "tensorflow-cpu", "numpy"))
