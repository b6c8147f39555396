"""`multi_worker` in TensorFlow, as its guide on custom training loops writes it."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from benchmarks.peers.mirrored_tensorflow import TensorFlow
from benchmarks.peers.serve import serve

if __name__ == "__main__":
    # Reads TF_CONFIG, and waits for the other worker. What is trained is the same as on two
    # devices of one process; every worker computes only what its own replica is to be fed with.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    serve(lambda case: TensorFlow(case, strategy), ("tensorflow-cpu", "numpy"))
