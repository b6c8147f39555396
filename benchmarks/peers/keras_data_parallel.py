"""`keras` under Keras's own `DataParallel`, on JAX."""

from __future__ import annotations

import os
from contextlib import nullcontext

# As for the handwritten contestant of `mirrored`: collectives need threads of their own.
os.environ["PJRT_NPROC"] = "8"

import jax
import keras

from benchmarks.peers.keras_work import DEVICES, Fit
from benchmarks.peers.serve import serve

if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", len(DEVICES))
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=DEVICES))
    serve(lambda case: Fit(case, nullcontext), ("keras", "jax", "jaxlib", "numpy"))
